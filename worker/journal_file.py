"""Writing the journal: each record on disk before the next, in a thread of its own, within its bytes.

A disk that is full or read-only costs records, never the worker: they are counted, and the next record that
can be written says how many are missing before it.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from shared import logs
from worker.journal import FILE_NAME, FILE_NAMES, Entry
from worker.scribe import Scribe

# On a Mac, fsync alone leaves the record in the drive's own cache.
_FULL_SYNC: Final = getattr(fcntl, "F_FULLFSYNC", None)

_log = logs.get("supervisor")


class JournalFile:
    """The files of a journal: appended to one record at a time, and turned over when the current one is full.

    The file is opened for each record: one that was removed or turned over by somebody else does no harm.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._file_bytes_max = bytes_max // len(FILE_NAMES)

    def append(self, line: bytes) -> None:
        """Put a line on disk, whole or not at all. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone_in(self._folder):
            self._turn_over(len(line) + 2)
            self._put(line)

    def _put(self, line: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._folder / FILE_NAME, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # A writer that was killed left half a line; nothing may be glued to it.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            try:
                _write_all(descriptor, (b"\n" if torn else b"") + line + b"\n")
                _sync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def _turn_over(self, more_bytes: int) -> None:
        try:
            size = (self._folder / FILE_NAME).stat().st_size
        except FileNotFoundError:
            return
        if size == 0 or size + more_bytes <= self._file_bytes_max:
            return
        for older, newer in reversed(list(zip(FILE_NAMES[1:], FILE_NAMES, strict=False))):
            if (self._folder / newer).exists():
                (self._folder / newer).replace(self._folder / older)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep another port's supervisor out meanwhile: what it appends would be cut off with a torn line."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Not every file system can; two supervisors of one home are rare, and a full disk as well.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        # Not every file system can; then the weaker promise must do.
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
    os.fsync(descriptor)


class Journal:
    """Takes entries at any time, without waiting, and has a scribe write them down."""

    def __init__(
        self,
        file: JournalFile,
        scribe: Scribe,
        *,
        boot: str,
        port: int,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._file = file
        self._scribe = scribe
        self._head = {"boot": boot, "port": port}
        self._wall_clock = wall_clock
        self._counting = threading.Lock()
        self._lost = 0

    @property
    def lost(self) -> int:
        """How many records could not be written and were not yet mentioned by a later one."""
        return self._lost

    def write(self, entry: Entry) -> None:
        at = self._wall_clock().isoformat(timespec="milliseconds")
        record = {"at": at, **self._head, "kind": entry.kind, **dataclasses.asdict(entry)}
        if not self._scribe.submit(lambda: self._append(record)):
            self._lose("too many records wait for the disk")

    def _append(self, record: dict[str, Any]) -> None:
        with self._counting:
            lost = self._lost
        if lost:
            record = {**record, "lost_before": lost}
        try:
            self._file.append(json.dumps(record, ensure_ascii=False).encode(errors="replace"))
        except OSError as problem:
            self._lose(str(problem))
            return
        if lost:
            with self._counting:
                self._lost -= lost
            _log.warning("the journal is written again", records_lost=lost)

    def _lose(self, problem: str) -> None:
        with self._counting:
            self._lost += 1
            first = self._lost == 1
        if first:
            _log.warning("the journal can't be written; records are lost", problem=problem)
