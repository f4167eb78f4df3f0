"""What the worker is about to run, where its death can't take it: in memory that the supervisor shares.

Before each step the worker writes down the step's rows. However it dies, the supervisor reads what ran: a
frame on a socket or a pipe might not have left the process. The memory has two halves that are written in
turn, each with a counter and a checksum, so a death in the middle of writing leaves the one before.
"""

import errno
import mmap
import os
import struct
import sys
import tempfile
import zlib
from collections.abc import Sequence as Seq
from typing import Final

import msgpack

from shared.limits import NAME_CHARS_MAX, SLOTS_MAX
from shared.messages import ManifestRow

# A name of four-byte characters, and the numbers and heads of a row.
_ROW_BYTES_MAX: Final = 4 * NAME_CHARS_MAX + 24
_HEADER: Final = struct.Struct(">QLL")  # counter, bytes, CRC-32 of both and the payload
_HALF_BYTES: Final = 1 << 19
_BYTES: Final = 2 * _HALF_BYTES
_NO_ROWS: Final = msgpack.packb([])

assert _HEADER.size + 8 + 2 * SLOTS_MAX * _ROW_BYTES_MAX <= _HALF_BYTES


def create() -> int:
    """Return the descriptor of new, empty memory that a child may inherit; it has no name. Raises OSError."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("manifest")
        os.ftruncate(descriptor, _BYTES)
        return descriptor
    with tempfile.TemporaryFile(buffering=0) as file:
        # All of it is written, for a hole in a file can't be filled later if the disk is full by then.
        if file.write(bytes(_BYTES)) < _BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.dup(file.fileno())


class ManifestWriter:
    """The worker's end. Writing is copying some hundred bytes; it never waits and doesn't fail.

    With the descriptor -1 the memory is its own, and nobody reads it.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _BYTES)
        self._counter = 0

    def write(self, rows: Seq[ManifestRow]) -> None:
        """Take note that these rows, and no others, run from now on."""
        payload = msgpack.packb(
            [(row.sequence, row.attempt, row.index, row.prefilling) for row in rows[: 2 * SLOTS_MAX]]
        )
        self._counter += 1
        start = (self._counter % 2) * _HALF_BYTES
        head = _HEADER.pack(self._counter, len(payload), _checksum(self._counter, payload))
        self._memory[start : start + _HEADER.size + len(payload)] = head + payload


def read(descriptor: int) -> tuple[ManifestRow, ...]:
    """Return the rows that ran last, none if nothing readable was written. Writing may go on meanwhile."""
    try:
        halves = [os.pread(descriptor, _HALF_BYTES, start) for start in (0, _HALF_BYTES)]
    except OSError:
        return ()
    newest: tuple[int, bytes] = (0, _NO_ROWS)
    for half in halves:
        if len(half) == _HALF_BYTES:
            counter, size, checksum = _HEADER.unpack_from(half)
            payload = half[_HEADER.size : _HEADER.size + size]
            if counter > newest[0] and checksum == _checksum(counter, payload):
                newest = counter, payload
    return _rows(newest[1])


def _rows(payload: bytes) -> tuple[ManifestRow, ...]:
    try:
        return tuple(ManifestRow(*row) for row in msgpack.unpackb(payload))
    except (ValueError, TypeError, msgpack.UnpackException):
        return ()


def _checksum(counter: int, payload: bytes) -> int:
    return zlib.crc32(payload, counter & 0xFFFFFFFF)
