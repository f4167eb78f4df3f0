"""What figures are made of: percentiles, intervals of their ratios, and how even shares are."""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_DRAWS: Final = 2000
_OUTSIDE: Final = 0.025  # of the draws, on either side of the interval


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of them don't exceed, between two neighbours by straight line.

    Raises ValueError if there are no values.
    """
    if not values:
        raise ValueError("no values, so no percentile")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is no percentage")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    """Return the middle value; raises ValueError if there is none."""
    return percentile(values, 50)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return count, mean, p50, p95, p99 and the largest value; only the count where there are none."""
    if not values:
        return {"count": 0}
    parts = {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}
    return {"count": len(values), "mean": statistics.fmean(values), **parts, "max": max(values)}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two percentiles, and the interval that 95 of 100 resampled runs fall into."""

    value: float
    low: float
    high: float


def percentile_ratio(
    above: Sequence[float], below: Sequence[float], percent: float, *, seed: int
) -> Ratio | None:
    """Return percentile(above) / percentile(below) with its bootstrap interval; None without values.

    Both sides are drawn again with replacement, each as often as it has values: Efron's percentile method.
    With few values a p95 hangs on the largest two or three, and the interval says so.
    """
    if not above or not below or percentile(below, percent) <= 0:
        return None
    numbers = random.Random(seed)  # noqa: S311 (it resamples, it guards nothing)
    ratios = []
    for _ in range(_DRAWS):
        bottom = percentile(numbers.choices(below, k=len(below)), percent)
        if bottom > 0:
            ratios.append(percentile(numbers.choices(above, k=len(above)), percent) / bottom)
    return Ratio(
        percentile(above, percent) / percentile(below, percent),
        percentile(ratios, 100 * _OUTSIDE),
        percentile(ratios, 100 * (1 - _OUTSIDE)),
    )


def jain(shares: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 where all shares are equal, 1/n where one of n has everything."""
    if not shares or min(shares) < 0:
        raise ValueError("shares are at least one number, and none is negative")
    squares = len(shares) * sum(share * share for share in shares)
    return sum(shares) ** 2 / squares if squares else 1.0


def ratio(above: float, below: float) -> float | None:
    """Return above / below, None where there is nothing below."""
    return above / below if below else None
