"""Whose turn it is inside a lane: a virtual counter for each key, in milliseconds of device time.

The scheme is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (2024),
charged in measured time instead of tokens. The key with the least goes next. A key that comes back after a
pause is lifted to the least of those that stayed, so that a pause is no credit. What the house caused
(computing again after a park or a death) is charged to nobody.
"""

from typing import Final

_KEYS_KEPT: Final = 4096


class Counters:
    """One lane's counters. A key is active while it has answers in the lane, queued or running."""

    def __init__(self) -> None:
        self._ms: dict[str, float] = {}
        self._answers: dict[str, int] = {}
        self._floor_ms = 0.0

    def of(self, key: str) -> float:
        """Return a key's counter: device time over weight, in milliseconds."""
        return self._ms.get(key, self._floor_ms)

    def entered(self, key: str) -> None:
        """Count one more answer of a key; the first one lifts its counter."""
        if key not in self._answers:
            self._ms[key] = max(self._ms.get(key, 0.0), self._least_active())
        self._answers[key] = self._answers.get(key, 0) + 1

    def left(self, key: str) -> None:
        """Count one answer less. Of keys that are gone, the counter is kept while it is above the floor."""
        self._answers[key] -= 1
        if self._answers[key]:
            return
        del self._answers[key]
        self._floor_ms = self._least_active() if self._answers else max(self._floor_ms, self._ms[key])
        self._forget()

    def charge(self, key: str, gpu_ms: float, weight: float) -> None:
        """Charge device time; negative to give prepaid time back. Only active keys are charged."""
        assert key in self._answers, f"{key!r} has no answers here"
        self._ms[key] += gpu_ms / weight

    def active(self) -> tuple[str, ...]:
        return tuple(self._answers)

    def _least_active(self) -> float:
        return min((self._ms[key] for key in self._answers), default=self._floor_ms)

    def _forget(self) -> None:
        """Drop counters that a lift would raise anyway, and the oldest above a bound."""
        gone = [key for key in self._ms if key not in self._answers]
        for key in gone:
            if self._ms[key] <= self._floor_ms or len(self._ms) > _KEYS_KEPT:
                del self._ms[key]
