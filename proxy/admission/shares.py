"""Which lane had how much of the device's time in the last minute, in buckets of a second."""

from collections import deque
from typing import Final

WINDOW_S: Final = 60


class StepShares:
    """Sums of milliseconds, by lane; what is older than the window is forgotten."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, dict[str, float]]] = deque()
        self._sums: dict[str, float] = {}

    def add(self, lane: str, gpu_ms: float, now: float) -> None:
        second = int(now)
        if not self._buckets or self._buckets[-1][0] != second:
            self._buckets.append((second, {}))
            self._drop_old(second)
        bucket = self._buckets[-1][1]
        bucket[lane] = bucket.get(lane, 0.0) + gpu_ms
        self._sums[lane] = self._sums.get(lane, 0.0) + gpu_ms

    def of(self, lane: str, now: float) -> float:
        """Return a lane's share, in [0, 1]; 0 if nothing ran."""
        self._drop_old(int(now))
        whole = sum(self._sums.values())
        return self._sums.get(lane, 0.0) / whole if whole > 0 else 0.0

    def _drop_old(self, second: int) -> None:
        while self._buckets and self._buckets[0][0] <= second - WINDOW_S:
            for lane, gpu_ms in self._buckets.popleft()[1].items():
                self._sums[lane] = max(0.0, self._sums[lane] - gpu_ms)
        if not self._buckets:
            self._sums.clear()
