"""The pipe by which a worker process tells its supervisor how far it is: both of its ends.

A frame is two marker bytes, the payload's length in two bytes, and the payload: a Progress as the codec
writes it. A frame is shorter than 512 bytes, the smallest PIPE_BUF that POSIX allows (and macOS has), so a
write is all or nothing and never waits.
"""

import os
import struct
from dataclasses import replace
from typing import Final

from shared.codec import decode, encode
from shared.errors import FrameError
from shared.messages import Progress

FRAME_BYTES_MAX: Final = 511

_MARKER: Final = b"\xfb\xf7"
_HEADER: Final = struct.Struct(">2sH")
_PAYLOAD_BYTES_MAX: Final = FRAME_BYTES_MAX - _HEADER.size


class ProgressWriter:
    """The worker's end. It never waits and never raises: the MLX loop has better things to do.

    `dropped` counts what could not be written, because the pipe is full (a supervisor that is stopped) or
    broken (one that is gone, which the lifeline tells).
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self.dropped = 0

    def write(self, progress: Progress) -> None:
        """Send a Progress without the names in `running`, which only the proxy needs."""
        try:
            os.write(self._descriptor, _frame(progress))
        except (OSError, ValueError, OverflowError):
            self.dropped += 1


def _frame(progress: Progress) -> bytes:
    """Return a frame; ValueError or OverflowError for a Progress that no sane loop would write."""
    payload = encode(replace(progress, running=()))
    if len(payload) > _PAYLOAD_BYTES_MAX:
        raise ValueError(f"a payload of {len(payload)} bytes exceeds {_PAYLOAD_BYTES_MAX}")
    return _HEADER.pack(_MARKER, len(payload)) + payload


class ProgressReader:
    """The supervisor's end: bytes in, cut anywhere, messages out.

    A worker gone wrong can write anything, so nothing here raises. What is no frame is skipped byte by byte
    until a marker is found again; `garbled` counts such places.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._lost = False
        self.garbled = 0

    def feed(self, data: bytes) -> list[Progress]:
        """Return the messages that `data` completes."""
        self._buffer += data
        messages: list[Progress] = []
        start = 0
        while (size := self._frame_bytes(start)) is not None:
            message = self._message(start, size)
            if message is None:
                self._lose()
                start = self._next_marker(start + 1)
            else:
                self._lost = False
                messages.append(message)
                start += size
        del self._buffer[:start]
        return messages

    def _frame_bytes(self, start: int) -> int | None:
        """Return the size of what stands at `start`, 0 if that is no frame, None if bytes are missing."""
        head = bytes(self._buffer[start : start + _HEADER.size])
        if not _MARKER.startswith(head[:2]):
            return 0
        if len(head) < _HEADER.size:
            return None
        size = _HEADER.size + int(_HEADER.unpack(head)[1])
        if size > FRAME_BYTES_MAX:
            return 0
        return size if start + size <= len(self._buffer) else None

    def _message(self, start: int, size: int) -> Progress | None:
        if size == 0:
            return None
        try:
            message = decode(bytes(self._buffer[start + _HEADER.size : start + size]))
        except FrameError:
            return None
        return message if isinstance(message, Progress) else None

    def _next_marker(self, start: int) -> int:
        found = self._buffer.find(_MARKER[:1], start)
        return len(self._buffer) if found < 0 else found

    def _lose(self) -> None:
        if not self._lost:
            self.garbled += 1
        self._lost = True
