"""How long until a newcomer would start: from what runs, what waits before it, and how past estimates did."""

from dataclasses import dataclass
from typing import Final

_COVERAGE: Final = 0.8
_LEARNING: Final = 0.05
_WAIT_S_MIN: Final = 0.1
_FACTOR_MIN: Final = 0.25
_FACTOR_MAX: Final = 4.0
_RESTART_S_UNSEEN: Final = 10.0
_OVERDUE_SHARE: Final = 0.5
_PROMISE_S_MAX: Final = 50.0  # times the greatest jitter, 1.2, is the longest Retry-After


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a newcomer finds before it. Times in milliseconds.

    `ahead` answers start before it, `free_rows` could be taken at once; `ends_ms` is when each row that is
    held against it ends; `bytes_ms` when enough of them have ended to leave it the bytes.
    """

    ahead: int
    ahead_prefill_ms: float
    free_rows: int
    ends_ms: tuple[float, ...]
    bytes_ms: float
    service_ms: float
    step_ms: float

    @property
    def wait_ms(self) -> float:
        return max(self._row_ms, self.bytes_ms) + self.ahead_prefill_ms

    @property
    def _row_ms(self) -> float:
        """Return when a row is free for it: those ahead take the free ones, then those that end first."""
        missing = self.ahead - self.free_rows
        if missing < 0:
            return 0.0
        ends_ms = sorted([*self.ends_ms, *[self.service_ms] * self.free_rows])
        rounds, place = divmod(missing, len(ends_ms))
        return ends_ms[place] + rounds * self.service_ms


class Calibration:
    """A factor on estimates such that four in five waits turn out no longer: it follows each outcome."""

    def __init__(self) -> None:
        self.factor = 1.0

    def started(self, estimated_s: float, waited_s: float) -> None:
        """Learn from a wait, if it was worth one.

        A miss moves the factor four times as far as a hit: where they meet is the p80.
        """
        if max(estimated_s, waited_s) < _WAIT_S_MIN:
            return
        late = waited_s > estimated_s
        moved = 1 + _LEARNING * (_COVERAGE if late else _COVERAGE - 1)
        self.factor = min(_FACTOR_MAX, max(_FACTOR_MIN, self.factor * moved))


class Restarts:
    """When the next worker will be ready, from how long it took before. Seconds.

    `restart_s` is what it takes once it is started. The wait before, which is told each time, isn't part of
    that: one breaker's minute would have those refused for whom the next worker would be back in time.
    """

    def __init__(self) -> None:
        self.restart_s = _RESTART_S_UNSEEN
        self._lost_at: float | None = None
        self._starts_at: float | None = None

    def lost(self, now: float) -> None:
        self._lost_at = now

    def delayed(self, starts_at: float) -> None:
        """Take note that the next worker won't be started before a time."""
        self._starts_at = starts_at

    def came(self, now: float) -> None:
        if self._lost_at is not None:
            self.restart_s += 0.5 * (max(0.0, now - self._begins_at(self._lost_at)) - self.restart_s)
        self._lost_at = self._starts_at = None

    def left_s(self, now: float) -> float:
        """Return how long until a worker is there; 0 with one. What is overdue is expected ever later."""
        if self._lost_at is None:
            return 0.0
        left_s = self._begins_at(self._lost_at) + self.restart_s - now
        return max(left_s, _OVERDUE_SHARE * -left_s, 1.0)

    def _begins_at(self, lost_at: float) -> float:
        return lost_at if self._starts_at is None else self._starts_at


class Promises:
    """Times to come back that don't meet: each refused answer is given the next place on the device.

    All that come back at one time would be refused again but for the first few.
    """

    def __init__(self) -> None:
        self._last_at = float("-inf")

    def next_s(self, earliest_s: float, answers_s: float, now: float) -> float:
        """Return the seconds until someone refused now should ask again; its answers take `answers_s`."""
        at = max(self._last_at, now + earliest_s)
        self._last_at = min(at + answers_s, now + _PROMISE_S_MAX)
        return min(_PROMISE_S_MAX, max(1.0, at - now))
