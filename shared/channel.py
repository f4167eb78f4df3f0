"""ZeroMQ, and the only file that imports it: one router in the proxy, a dealer in each peer.

Nobody relies on a high-water mark for backpressure: a ROUTER drops silently. The proxy counts credits, and
what a worker has to say is bounded by what it was given to do.
"""

import contextlib
from pathlib import Path

import zmq
import zmq.asyncio

from shared.limits import FRAME_BYTES_MAX, FRAMES_PER_DRAIN_MAX, HIGH_WATER_FRAMES


def _configure(socket: "zmq.Socket[bytes] | zmq.asyncio.Socket") -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_FRAMES)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_FRAMES)
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)


class RouterChannel:
    """The proxy's end: many peers, told apart by identity."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        _configure(self._socket)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._endpoint = endpoint
        self._bound = self._bind()

    def _bind(self) -> tuple[int, int] | None:
        """Make the socket's file and listen there; return which file that is."""
        self._socket.bind(self._endpoint)
        return self._file()

    def _file(self) -> tuple[int, int] | None:
        try:
            status = Path(self._endpoint.removeprefix("ipc://")).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def bind_again(self) -> bool:
        """Listen anew if the socket's file was removed: peers to come need it, those connected don't.

        True if that was needed and done.
        """
        if self._file() == self._bound:
            return False
        try:
            self._bound = self._bind()
        except zmq.ZMQError:
            return False
        return True

    async def receive(self) -> tuple[bytes, bytes]:
        """Return (identity, frame). A message of more or fewer parts comes back with an empty frame."""
        parts = await self._socket.recv_multipart()
        return parts[0], parts[1] if len(parts) == 2 else b""

    async def send(self, identity: bytes, frame: bytes) -> bool:
        """Hand a frame to a peer. False if no such peer is connected or its queue is full."""
        try:
            await self._socket.send_multipart((identity, frame), flags=zmq.DONTWAIT)
        except zmq.ZMQError as problem:
            if problem.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


class DealerChannel:
    """A worker's end, without asyncio: the MLX loop drains it at the start of a step."""

    def __init__(self, endpoint: str, identity: bytes) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _configure(self._socket)
        self._socket.setsockopt(zmq.IDENTITY, identity)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.connect(endpoint)

    def drain(self) -> list[bytes]:
        """Return the frames that are here, at most FRAMES_PER_DRAIN_MAX, without waiting."""
        frames: list[bytes] = []
        with contextlib.suppress(zmq.Again):
            while len(frames) < FRAMES_PER_DRAIN_MAX:
                parts = self._socket.recv_multipart(flags=zmq.DONTWAIT)
                frames.append(parts[0] if len(parts) == 1 else b"")
        return frames

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a frame is here, or the time is over. True if there is one."""
        return bool(self._socket.poll(int(timeout_s * 1000), zmq.POLLIN))

    def send(self, frame: bytes) -> bool:
        """Hand a frame over without waiting. False if no proxy is connected: nobody would read it."""
        try:
            self._socket.send(frame, flags=zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def close(self, linger_ms: int = 0) -> None:
        """Close, after at most so long in which what was sent can still leave."""
        self._socket.close(linger=linger_ms)
        self._context.term()
