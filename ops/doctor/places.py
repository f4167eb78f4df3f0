"""Verdicts on disk, port and socket: where Forebay keeps things, and where it is spoken to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.doctor.finding import GB, Finding, bad, gigabytes, good, warn
from shared.limits import SOCKET_PATH_BYTES_MAX

_DISK_BAD_BYTES: Final = 1 * GB
_DISK_WARN_BYTES: Final = 5 * GB


def judge_disk(what: str, place: Path, free_bytes: int, wanted_bytes: int = 0) -> Finding:
    """Judge a disk's free space; `wanted_bytes` is what settings may have put there in time."""
    says = f"{gigabytes(free_bytes)} free for {what} ({place})"
    do = "make room there, or choose another place by home in the settings"
    if free_bytes < _DISK_BAD_BYTES:
        return bad("disk", says, do)
    if free_bytes < _DISK_WARN_BYTES:
        return warn("disk", says, do)
    if free_bytes < wanted_bytes:
        return warn(
            "disk",
            f"{says}, and prefix_disk_gb allows {gigabytes(wanted_bytes)}",
            "make room there, or lower prefix_disk_gb in [worker]",
        )
    return good("disk", says)


@dataclass(frozen=True, slots=True)
class Port:
    """A port that was tried: `problem` is empty if something could listen there.

    `gateway` says what our own gateway of this home and port does, and is empty if none answers. `holder`
    names the program that listens, where that could be found out.
    """

    host: str
    port: int
    problem: str = ""
    gateway: str = ""
    holder: str = ""


def judge_port(port: Port) -> Finding:
    where = f"port {port.port} of {port.host}"
    if port.gateway:
        return good("port", f"{where} is held by this home's own gateway; {port.gateway}")
    if not port.problem:
        return good("port", f"{where} is free")
    other = port.port + 1 if port.port < 65535 else 8000
    holder = f", held by {port.holder}" if port.holder else ""
    return bad(
        "port",
        f"nothing can listen on {where}: {port.problem}{holder}",
        f"end what holds it, or take another: --port {other}",
    )


def judge_socket(socket: Path, size_bytes: int, home: Path, allowed_bytes: int) -> Finding:
    """Judge the path of the operator's socket, the longest one; `allowed_bytes` is what the system takes."""
    says = f"the socket's path has {size_bytes} of the {allowed_bytes} bytes that this system allows"
    if size_bytes > SOCKET_PATH_BYTES_MAX:
        return bad("socket", says, "choose a shorter home, and a shorter temporary folder")
    if not socket.is_relative_to(home):
        return warn(
            "socket",
            f"the home's path is too long for a socket, which lies in {socket.parent} instead",
            "choose a shorter home: systems clean their temporary folders",
        )
    return good("socket", says)
