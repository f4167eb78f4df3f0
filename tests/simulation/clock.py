"""A false clock: things happen in the order of their times, and of equal times in the order of making."""

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """Seconds from 0. Time passes only in `run`."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (max(when, self.now), next(self._numbers), what))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.at(self.now + delay_s, what)

    def run(self, until: float) -> None:
        """Let everything happen that is due until then."""
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heapq.heappop(self._due)
            what()
        self.now = max(self.now, until)
