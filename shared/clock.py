"""Time as a dependency: the real clock, and one that tests move by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, whatever the wall clock does."""

    def now(self) -> float: ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class FalseClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time does not go back"
        self._now_s += seconds
