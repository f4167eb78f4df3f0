"""What the tier's callers and its two threads share: read and changed under one condition."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from shared.clock import Clock
from shared.logs import Logger
from worker.prefix_disk.day_budget import DayBudget
from worker.prefix_disk.index import DiskIndex
from worker.prefix_disk.records import DiskReading
from worker.prefix_disk.write_queue import WriteQueue

# After a write that failed, and between looks at a folder that another process has.
_REST_S: Final = 60.0
_BETWEEN_WARNINGS_S: Final = 60.0
_DAY_S: Final = 86_400


class TierState:
    """The index, the queue, the counts, and what is due. Its fields are for those who hold `changed`.

    Methods take the condition themselves. `clock` is for rests, `now` is the wall clock's time.
    """

    def __init__(
        self,
        index: DiskIndex,
        writes: WriteQueue,
        budget: DayBudget,
        *,
        clock: Clock,
        now: Callable[[], float],
        log: Logger,
    ) -> None:
        self.changed = threading.Condition()
        self.index, self.queue, self.budget = index, writes, budget
        self.now, self.log = now, log
        self._clock = clock
        self.doomed: deque[bytes] = deque()  # blocks that nobody can find any more, whose files may be there
        self.look_again = False  # something wasn't where it had been put
        self.reads = self.writes = self.evictions = self.failures = 0
        self._bad = 0
        self.readings_open = 0
        self.closing = False  # write what waits, and end
        self.stopped = False  # end
        self._rests_until = self._quiet_until = float("-inf")
        self._warned: set[str] = set()

    def today(self) -> int:
        return int(self.now() // _DAY_S)

    def rest_s(self) -> float:
        """Return how long nothing is to be done yet, 0.0 if it may."""
        return max(0.0, self._rests_until - self._clock.now())

    def ends(self) -> bool:
        """Whether nothing more is to be done at all."""
        return self.stopped or (self.closing and not self.queue)

    def work_waits(self) -> bool:
        """Whether the thread that writes has something to do now."""
        due = bool(self.queue or self.doomed or self.look_again)
        return due and not self.ends() and not self.rest_s()

    def lost(self, parent: bytes) -> bool:
        """Whether what is built on this block can't be found: it was refused, and isn't on disk."""
        return self.queue.refused(parent) and parent not in self.index

    def forget(self, key: bytes) -> None:
        """Forget a block that isn't there any more, and have what is built on it removed."""
        with self.changed:
            self.doomed.extend(self.index.remove_tree(key))
            self.changed.notify_all()

    def count_bad(self, problem: str) -> None:
        with self.changed:
            self._bad += 1
            bad, now = self._bad, self._clock.now()
            warn = now >= self._quiet_until
            if warn:
                self._quiet_until = now + _BETWEEN_WARNINGS_S
        if warn:
            self.log.warning("a file of prefixes is bad, and computed again", problem=problem, bad_files=bad)

    def rest(self, why: str, **details: str) -> None:
        """Do nothing for a while, and let go of what waits. Warns once, until something is written again."""
        with self.changed:
            self._rests_until = self._clock.now() + _REST_S
            self.queue.clear()
            warn = why not in self._warned
            self._warned.add(why)
        if warn:
            self.log.warning(why, **details)

    def recovered(self) -> None:
        """Take note that the disk takes what is written."""
        with self.changed:
            warned = bool(self._warned)
            self._warned.clear()
        if warned:
            self.log.info("prefixes are written to disk again")

    def reading(self) -> DiskReading:
        with self.changed:
            return DiskReading(
                bytes=self.index.nbytes,
                blocks=len(self.index),
                reads=self.reads,
                writes=self.writes,
                evictions=self.evictions,
                bad=self._bad,
                failures=self.failures,
                queued_bytes=self.queue.nbytes,
                paused=self.closing or self.rest_s() > 0,
            )
