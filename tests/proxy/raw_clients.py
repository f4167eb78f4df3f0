"""Clients that read when they are told to, over sockets that hold next to nothing."""

import asyncio
import contextlib
import json
import socket

SMALL_BUFFERS = ((socket.SOL_SOCKET, socket.SO_SNDBUF, 4096),)


def hold_little(here):
    """Give connections that come from now on as little room in the system as it allows."""
    here.proxy.listening._options += SMALL_BUFFERS


class RawClient:
    """A connection whose bytes stay in the system until `read`."""

    def __init__(self, port):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self._socket.setblocking(False)
        self._port = port

    async def __aenter__(self):
        await asyncio.get_running_loop().sock_connect(self._socket, ("127.0.0.1", self._port))
        return self

    async def __aexit__(self, *_):
        self._socket.close()

    @property
    def address(self):
        return self._socket.getsockname()

    async def send(self, content):
        await asyncio.get_running_loop().sock_sendall(self._socket, content)

    async def read(self, size=1024):
        """Return some bytes; none if the connection has ended, in whatever way."""
        with contextlib.suppress(ConnectionError):
            return await asyncio.get_running_loop().sock_recv(self._socket, size)
        return b""

    async def read_all(self):
        """Return what comes until the connection ends."""
        parts = []
        while part := await self.read(65_536):
            parts.append(part)
        return b"".join(parts)


def connection_of(here, client):
    """Return the proxy's end of a client's connection."""
    (found,) = (
        each
        for each in here.proxy.listening._open
        if each.transport is not None and each.transport.get_extra_info("peername") == client.address
    )
    return found


def parsed(raw):
    """Return (status, headers in lower case, body) of one response that is all there."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)
