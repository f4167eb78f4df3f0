"""Blocks that wait to be written: pure, bounded in bytes, each key once."""

from typing import Final

from shared.limits import PREFIX_BLOCKS_MAX
from worker.prefix_disk.records import Record

_REFUSED_MAX: Final = PREFIX_BLOCKS_MAX


class WriteQueue:
    """First in, first out. A record stays in, and counts, until it is done.

    What was refused is remembered: what is built on it couldn't be found, and isn't worth a write, let alone
    the room of what can be.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._records: dict[bytes, Record] = {}
        self._refused: dict[bytes, None] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: bytes) -> bool:
        return key in self._records

    def has(self, key: bytes, *, snapshot: bool) -> bool:
        """Whether it waits, and with a snapshot if that is asked for."""
        record = self._records.get(key)
        return record is not None and (bool(record.snapshot) or not snapshot)

    def refused(self, key: bytes) -> bool:
        return key in self._refused

    def refuse(self, key: bytes) -> None:
        """Remember that a block wasn't written, until it is taken another time."""
        self._refused[key] = None
        if len(self._refused) > _REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def put(self, record: Record) -> bool:
        """Take a record, in the place of an older one of its key. False if there is no room."""
        old = self._records.get(record.key)
        nbytes = self.nbytes + record.nbytes - (0 if old is None else old.nbytes)
        if nbytes > self._bytes_max:
            return False
        self._records[record.key] = record
        self._refused.pop(record.key, None)
        self.nbytes = nbytes
        return True

    def first(self) -> Record:
        return next(iter(self._records.values()))

    def done(self, record: Record, *, written: bool) -> None:
        """Let a record go, unless another one took its place meanwhile."""
        if self._records.get(record.key) is record:
            del self._records[record.key]
            self.nbytes -= record.nbytes
            if not written:
                self.refuse(record.key)

    def clear(self) -> None:
        """Let all go, without having written them."""
        for key in self._records:
            self.refuse(key)
        self._records.clear()
        self.nbytes = 0
