"""Does something grow: a straight line through samples, and how sure it is; pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth a second, and its standard error, both in the samples' own unit."""

    per_s: float
    error_per_s: float


def slope(times: Sequence[float], values: Sequence[float]) -> Slope | None:
    """Fit values = a + b·time by least squares; None with fewer than three different times.

    The standard error takes the residuals as independent, which those of a process's memory, sampled each
    second, aren't: so they are thinned out before, by who calls.
    """
    count = len(times)
    if count < 3 or len(set(times)) < 3:
        return None
    time_mean, value_mean = math.fsum(times) / count, math.fsum(values) / count
    spread = math.fsum((time - time_mean) ** 2 for time in times)
    shared = math.fsum(
        (time - time_mean) * (value - value_mean) for time, value in zip(times, values, strict=True)
    )
    per_s = shared / spread
    residuals = math.fsum(
        (value - value_mean - per_s * (time - time_mean)) ** 2
        for time, value in zip(times, values, strict=True)
    )
    return Slope(per_s, math.sqrt(residuals / (count - 2) / spread))


def thinned(samples: Sequence[tuple[float, float]], places: int) -> list[tuple[float, float]]:
    """Return the means of so many stretches of samples, one after the other."""
    size = max(1, math.ceil(len(samples) / places))
    stretches = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [
        (
            math.fsum(time for time, _ in stretch) / len(stretch),
            math.fsum(value for _, value in stretch) / len(stretch),
        )
        for stretch in stretches
    ]
