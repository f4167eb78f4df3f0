"""Blocks of prompts on disk: written behind, read ahead of need, never waited for and never trusted.

Two threads do all that touches the disk: one takes the folder, scans, writes and evicts, the other reads, so
that who waits for the first token doesn't wait for somebody's fsync. A file that isn't bit by bit what was
written is removed and counted, and its block is computed again. A disk that fails costs what it would have
held: it is left alone for a while, and tried again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from shared.clock import Clock
from shared.limits import MIB, PREFIX_BLOCKS_MAX
from shared.logs import Logger
from worker.prefix_disk.block_file import Seal
from worker.prefix_disk.day_budget import DayBudget
from worker.prefix_disk.files import BlockFiles
from worker.prefix_disk.index import DiskIndex
from worker.prefix_disk.reading import Reading, ReadingThread
from worker.prefix_disk.records import DiskReading, Entry, Record
from worker.prefix_disk.state import TierState
from worker.prefix_disk.write_queue import WriteQueue
from worker.prefix_disk.writing import WritingThread

_QUEUE_BYTES_MAX: Final = 256 * MIB
_READING_BYTES_MAX: Final = 1024 * MIB
_CLOSE_S: Final = 1.0
_DRAIN_S: Final = 20.0


class DiskTier:
    """What its callers see never waits for the disk and never raises for it.

    `clock` is for rests, `now` the wall clock's time: for days, and for what was used last before a restart.
    At most `queue_bytes_max` wait to be written; a Reading brings at most `reading_bytes_max`, one at a time.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        *,
        bytes_max: int,
        writes_bytes_a_day: int,
        clock: Clock,
        now: Callable[[], float],
        log: Logger,
        queue_bytes_max: int = _QUEUE_BYTES_MAX,
        reading_bytes_max: int = _READING_BYTES_MAX,
        blocks_max: int = PREFIX_BLOCKS_MAX,
    ) -> None:
        files, seal = BlockFiles(folder, fingerprint), Seal(fingerprint)
        index, writes = DiskIndex(bytes_max, blocks_max), WriteQueue(queue_bytes_max)
        budget = DayBudget(writes_bytes_a_day)
        self._state = TierState(index, writes, budget, clock=clock, now=now, log=log)
        self._writing = WritingThread(self._state, files, seal)
        self._reading = ReadingThread(self._state, files, seal, reading_bytes_max)

    def start(self) -> None:
        """Begin to scan; what was scanned is known from then on."""
        self._writing.start()
        self._reading.start()

    def knows(self, key: bytes) -> bool:
        """Whether a block is on disk, or waits to be written."""
        state = self._state
        with state.changed:
            return not state.closing and (key in state.index or key in state.queue)

    def find(self, root: bytes, ids: Sequence[int]) -> list[Entry]:
        """Return the chain from `root` on as far as it is on disk, and take note that it is used.

        Whole blocks, then perhaps one in part that is wholly in `ids`: of several the longest.
        """
        state = self._state
        with state.changed:
            if state.closing:
                return []
            found = state.index.find(root, ids)
            state.index.touch([entry.key for entry in found], state.now())
            return found

    def write(self, record: Record) -> bool:
        """Have a block written. True also if it is there already, with a snapshot if `record` has one.

        False if too much waits, the day's bytes are used up, or nothing is written at present; or if the
        block's parent was refused so, without which nobody finds it.
        """
        state, snapshot, nbytes = self._state, bool(record.snapshot), record.nbytes
        with state.changed:
            if state.closing:
                return False
            if state.index.has(record.key, snapshot=snapshot):
                state.index.touch([record.key], state.now())
                return True
            if state.queue.has(record.key, snapshot=snapshot):
                return True
            if self._refuses(record, nbytes) or not state.queue.put(record):
                state.queue.refuse(record.key)
                return False
            state.changed.notify_all()
            return True

    def _refuses(self, record: Record, nbytes: int) -> bool:
        state = self._state
        left = state.budget.left(state.today()) - state.queue.nbytes
        room = min(left, state.index.bytes_max)
        return nbytes > room or state.rest_s() > 0 or state.lost(record.parent)

    def read(self, entries: Sequence[Entry]) -> Reading:
        """Have blocks read that `find` returned, in this order."""
        return self._reading.read(entries)

    @property
    def reading(self) -> DiskReading:
        return self._state.reading()

    def keys(self) -> list[bytes]:
        """Return the keys of all whole blocks on disk."""
        with self._state.changed:
            return self._state.index.keys()

    def take_news(self) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of whole blocks that came to the disk, and that went, since the last call."""
        with self._state.changed:
            return self._state.index.take_news()

    def drain(self, timeout_s: float = _DRAIN_S) -> bool:
        """Wait until all that was due was done, or at least tried. False if that takes longer."""
        return self._writing.drain(timeout_s)

    def close(self) -> None:
        """Write what waits if that takes a second at most; drop the rest, and let the folder go."""
        state = self._state
        with state.changed:
            state.closing = True
            state.changed.notify_all()
        self._reading.end()
        self._writing.join(_CLOSE_S)
        with state.changed:
            state.stopped = True
        self._writing.join(_CLOSE_S / 2)
