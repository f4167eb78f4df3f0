"""What the system is asked for: file descriptors, and connections that end when their peer has vanished."""

import asyncio
import contextlib
import math
import os
import resource
import socket
import sys
from typing import Final

from shared.logs import Logger

DESCRIPTORS_WANTED: Final = 65_536
# The wire, the log, files, threads, listening sockets, and connections that are being turned away.
DESCRIPTORS_RESERVED: Final = 128
_DESCRIPTORS_TO_COME: Final = 16
CONNECTIONS_MIN: Final = 4
_PROBES: Final = 3
# Above the time after which a stuck connection is cut here, so that it's cut with a word in the log.
_KERNEL_EXTRA: Final = 1.1

# macOS has these; Python has no names for the last one: from <netinet/tcp.h>.
_DARWIN_KEEPALIVE: Final = 0x10
_DARWIN_KEEPINTVL: Final = 0x101
_DARWIN_KEEPCNT: Final = 0x102
_DARWIN_RXT_CONNDROPTIME: Final = 0x80

Option = tuple[int, int, int]  # level, name, value


def raised_descriptor_limit() -> int:
    """Raise this process's limit of file descriptors towards the hard one; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS may refuse what it calls unlimited; then it stays as it was.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_WANTED)


def connections_allowed(configured: int | None, descriptors: int, log: Logger) -> int:
    """Return how many connections may be open at a time: as configured, if so many descriptors are there."""
    reserved = min(DESCRIPTORS_RESERVED, max(descriptors // 2, _open_now() + _DESCRIPTORS_TO_COME))
    possible = max(CONNECTIONS_MIN, descriptors - reserved)
    if configured is not None and configured > possible:
        log.warning(
            "fewer connections than configured: file descriptors are short",
            configured=configured,
            possible=possible,
        )
    return possible if configured is None else min(configured, possible)


def _open_now() -> int:
    """Return how many descriptors this process has open; 0 where the system doesn't list them."""
    try:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208 (only their number is wanted)
    except OSError:
        return 0


def connection_options(patience_s: float, platform: str = sys.platform) -> tuple[Option, ...]:
    """Return the socket options by which a connection ends soon after its peer has vanished.

    Keep-alive probes find it while nothing is sent, the other option while something is: after about
    `patience_s` without an acknowledgement, in both cases.
    """
    idle_s = max(1, math.ceil(patience_s / 2))
    between_s = max(1, math.ceil(patience_s / 2 / _PROBES))
    tcp = socket.IPPROTO_TCP
    keepalive = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if platform == "darwin":
        return (
            keepalive,
            (tcp, _DARWIN_KEEPALIVE, idle_s),
            (tcp, _DARWIN_KEEPINTVL, between_s),
            (tcp, _DARWIN_KEEPCNT, _PROBES),
            (tcp, _DARWIN_RXT_CONNDROPTIME, math.ceil(_KERNEL_EXTRA * patience_s)),
        )
    if platform == "linux":
        return (
            keepalive,
            (tcp, socket.TCP_KEEPIDLE, idle_s),
            (tcp, socket.TCP_KEEPINTVL, between_s),
            (tcp, socket.TCP_KEEPCNT, _PROBES),
            (tcp, socket.TCP_USER_TIMEOUT, math.ceil(1000 * _KERNEL_EXTRA * patience_s)),
        )
    return (keepalive,)


async def listening_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host; OSError if one of them can't be had."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as unless_all_listen:
        listening = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = unless_all_listen.enter_context(socket.socket(family, kind, protocol))
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
            each.listen(backlog)
            listening.append(each)
        unless_all_listen.pop_all()
    return listening
