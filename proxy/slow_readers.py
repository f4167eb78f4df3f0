"""Who reads too slowly: decides which connections are cut off, from what each has still to take."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

Cause = Literal["reads nothing", "largest laggard"]
K = TypeVar("K", bound=Hashable)

READS_NOTHING: Final[Cause] = "reads nothing"
LARGEST_LAGGARD: Final[Cause] = "largest laggard"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one connection has to take, as of now.

    `taken` is a number that changes whenever the peer's side takes some of it; `buffered_bytes` are written
    and not taken, `backlog_bytes` (roughly) wait to be written.
    """

    taken: int
    buffered_bytes: int
    backlog_bytes: int = 0

    @property
    def undelivered_bytes(self) -> int:
        return self.buffered_bytes + self.backlog_bytes


class SlowReaders(Generic[K]):
    """Told now and then what every connection has to take; says which ones are to be cut off.

    One is cut that takes nothing of what is written to it for `patience_s`. While all of them together have
    more than `undelivered_bytes_max` to take, the one that has most is cut. One that takes a little now and
    then is otherwise left alone: what it may take long for is bounded.
    """

    def __init__(self, patience_s: float, undelivered_bytes_max: int) -> None:
        self._patience_s = patience_s
        self._undelivered_bytes_max = undelivered_bytes_max
        self._stuck: dict[K, tuple[int, float]] = {}  # what it had taken, and since when

    def look(self, readings: Mapping[K, Reading], now_s: float) -> dict[K, Cause]:
        """Return whom to cut off and why. Who isn't among the readings is forgotten."""
        self._stuck = {
            key: self._since(key, each, now_s) for key, each in readings.items() if each.buffered_bytes
        }
        cut: dict[K, Cause] = {
            key: READS_NOTHING
            for key, (_, since_s) in self._stuck.items()
            if now_s - since_s >= self._patience_s
        }
        self._cut_laggards(readings, cut)
        return cut

    def _since(self, key: K, reading: Reading, now_s: float) -> tuple[int, float]:
        before = self._stuck.get(key)
        return before if before is not None and before[0] == reading.taken else (reading.taken, now_s)

    def _cut_laggards(self, readings: Mapping[K, Reading], cut: dict[K, Cause]) -> None:
        rest = {key: each.undelivered_bytes for key, each in readings.items() if key not in cut}
        undelivered_bytes = sum(rest.values())
        if undelivered_bytes <= self._undelivered_bytes_max:
            return
        for key in sorted(rest, key=rest.__getitem__, reverse=True):
            cut[key] = LARGEST_LAGGARD
            undelivered_bytes -= rest[key]
            if undelivered_bytes <= self._undelivered_bytes_max:
                return
