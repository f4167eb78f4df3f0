"""The last quarter of an hour in short intervals: tokens, times to first token, what waited and was held."""

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

INTERVAL_S: Final = 2.0
SPAN_S: Final = 900.0
_INTERVALS: Final = int(SPAN_S / INTERVAL_S)
# Of one interval; more of them say nothing more of its median.
_TIMES_MAX: Final = 512
# Speeds are those of about ten seconds.
INTERVALS_OF_NOW: Final = 5
# What was asked for isn't an answer: a browser looks for icons, others look around.
_NOT_ASKED: Final = frozenset({"route_not_found", "method_not_allowed"})


@dataclass(frozen=True, slots=True)
class Levels:
    """What is there at one moment: answers, and bytes of KV caches."""

    queued: int
    running: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Interval:
    """One interval, once it is over. Times to first token are None where none began.

    `end` is the clock's, `at` the same in Unix seconds as the wall clock was then, None if it wasn't asked.
    """

    end: float
    tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    refused: int
    deaths: int
    levels: Levels
    at: float | None = None


@dataclass(slots=True)
class _Open:
    """The interval that goes on."""

    tokens: int = 0
    refused: int = 0
    deaths: int = 0
    times_s: list[float] = field(default_factory=list)


class History:
    """A ring of intervals. `close` is to be called every INTERVAL_S; it takes what was told since."""

    def __init__(self) -> None:
        self.intervals: deque[Interval] = deque(maxlen=_INTERVALS)
        self._lately: deque[list[float]] = deque(maxlen=INTERVALS_OF_NOW)
        self._open = _Open()
        self._since: float | None = None

    def came(self) -> None:
        self._open.tokens += 1

    def began(self, ttft_s: float) -> None:
        """Take an answer's time to its first token, from the request's arrival."""
        if len(self._open.times_s) < _TIMES_MAX:
            self._open.times_s.append(ttft_s)

    def refused(self, code: str) -> None:
        """Take a refusal of whoever wanted something that is served here."""
        self._open.refused += code not in _NOT_ASKED

    def died(self) -> None:
        self._open.deaths += 1

    def close(self, now: float, levels: Levels, at: float | None = None) -> None:
        """End the interval that goes on, and begin the next. `at` is the wall clock's time."""
        took_s = now - self._since if self._since is not None else INTERVAL_S
        told, self._open, self._since = self._open, _Open(), now
        p50, p95 = _quantiles(told.times_s)
        speed = told.tokens / took_s if took_s > 0 else 0.0
        self.intervals.append(Interval(now, speed, p50, p95, told.refused, told.deaths, levels, at))
        self._lately.append(told.times_s)

    def ttft_lately_s(self) -> tuple[float | None, float | None]:
        """Return median and p95 of all that began in the last INTERVALS_OF_NOW intervals."""
        return _quantiles([each for times_s in self._lately for each in times_s])


def _quantiles(times_s: list[float]) -> tuple[float | None, float | None]:
    if not times_s:
        return None, None
    if len(times_s) == 1:
        return times_s[0], times_s[0]
    cuts = statistics.quantiles(times_s, n=20, method="inclusive")
    return cuts[9], cuts[18]
