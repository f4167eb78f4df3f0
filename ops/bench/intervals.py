"""How sure a figure is: bootstrap intervals of percentiles and of ratios, for values that came in groups.

What was measured in one repetition has more in common than what was measured in two, and so have the gaps of
one answer. So a draw takes repetitions with replacement, then requests of each with replacement, and a
request brings all of its values (a hierarchical bootstrap, Efron's percentile method).
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from ops.load.statistics import percentile

_OUTSIDE_PERCENT: Final = 2.5  # of the draws, on either side
_DRAWS_MAX: Final = 1000
_DRAWS_MIN: Final = 200
_VALUES_DRAWN_MAX: Final = 2_000_000

# Of one metric at one point: repetitions, of requests, of values.
Samples = Sequence[Sequence[Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Interval:
    """Where 95 of 100 such runs would fall."""

    low: float
    high: float


class Resampled:
    """One side's values, sorted once, from which percentiles of resampled runs are drawn."""

    def __init__(self, samples: Samples) -> None:
        self._repetitions: list[list[int]] = []
        pairs: list[tuple[float, int]] = []
        owner = 0
        for requests in samples:
            owners = []
            for values in filter(None, requests):
                pairs += [(value, owner) for value in values]
                owners.append(owner)
                owner += 1
            if owners:
                self._repetitions.append(owners)
        pairs.sort()
        self._values = [value for value, _ in pairs]
        self._owners = [owner for _, owner in pairs]
        self._requests = owner

    def __len__(self) -> int:
        return len(self._values)

    @property
    def draws(self) -> int:
        """How many draws are worth their time."""
        return max(_DRAWS_MIN, min(_DRAWS_MAX, _VALUES_DRAWN_MAX // max(1, len(self))))

    @property
    def says_noise(self) -> bool:
        """Whether there is more than one request: of one nobody knows how far it scatters."""
        return self._requests > 1

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """Return percentiles of what was measured."""
        return [percentile(self._values, percent) for percent in percents]

    def draw(self, percents: Sequence[float], numbers: random.Random) -> list[float]:
        """Return percentiles of one resampled run."""
        taken = [0] * self._requests
        for owners in numbers.choices(self._repetitions, k=len(self._repetitions)):
            for owner in numbers.choices(owners, k=len(owners)):
                taken[owner] += 1
        counts = list(accumulate(map(taken.__getitem__, self._owners)))
        return [self._at((counts[-1] - 1) * percent / 100, counts) for percent in percents]

    def _at(self, place: float, counts: list[int]) -> float:
        """Return the value at a place between 0 and the count of all, between two by straight line."""
        below = int(place)
        low = self._values[bisect_right(counts, below)]
        if place == below:
            return low
        return low + (self._values[bisect_right(counts, below + 1)] - low) * (place - below)


def percentile_intervals(
    samples: Samples, percents: Sequence[float], seed: int
) -> list[tuple[float, Interval | None]]:
    """Return each percentile with its interval; no interval of a single request, nothing without values."""
    side = Resampled(samples)
    if not len(side):
        return []
    if not side.says_noise:
        return [(value, None) for value in side.percentiles(percents)]
    numbers = _dice(seed)
    drawn = [side.draw(percents, numbers) for _ in range(side.draws)]
    return [
        (value, _interval([draw[place] for draw in drawn]))
        for place, value in enumerate(side.percentiles(percents))
    ]


def percentile_ratios(
    above: Samples, below: Samples, percents: Sequence[float], seed: int
) -> list[tuple[float, Interval | None]]:
    """Return percentile(above) / percentile(below) with their intervals; nothing if a side has no values."""
    sides = Resampled(above), Resampled(below)
    if not all(len(side) for side in sides):
        return []
    values = list(zip(*(side.percentiles(percents) for side in sides), strict=True))
    if not all(side.says_noise for side in sides):
        return [(_ratio(top, bottom), None) for top, bottom in values]
    numbers = _dice(seed)
    drawn = [
        [_ratio(*pair) for pair in zip(*(side.draw(percents, numbers) for side in sides), strict=True)]
        for _ in range(min(side.draws for side in sides))
    ]
    return [
        (_ratio(top, bottom), _interval([draw[place] for draw in drawn]))
        for place, (top, bottom) in enumerate(values)
    ]


def _ratio(top: float, bottom: float) -> float:
    """Two times of zero are alike; beside one of zero any other is beyond measure."""
    if bottom > 0:
        return top / bottom
    return 1.0 if top <= 0 else float("inf")


def _interval(values: list[float]) -> Interval:
    finite = [value for value in values if value != float("inf")]
    if len(finite) < len(values):
        return Interval(percentile(finite, _OUTSIDE_PERCENT) if finite else float("inf"), float("inf"))
    return Interval(percentile(values, _OUTSIDE_PERCENT), percentile(values, 100 - _OUTSIDE_PERCENT))


def _dice(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 (it resamples, it guards nothing)
