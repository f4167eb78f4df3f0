"""The queue in front of the worker: first come, first served, bounded by count; the interrupted go first."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """An answer that waits: `tokens` is what it may grow to, prompt included."""

    name: str
    tokens: int


class Queue:
    """Order of waiting answers. Those that a worker's death interrupted don't count against the bound."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._interrupted: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, count: int) -> bool:
        return len(self._waiting) - len(self._interrupted) + count <= self.places

    def append(self, waiting: Waiting) -> None:
        assert waiting.name not in self._waiting
        self._waiting[waiting.name] = waiting

    def put_first(self, interrupted: Iterable[Waiting]) -> None:
        """Put these in front of everybody, in their own order."""
        for waiting in reversed(list(interrupted)):
            assert waiting.name not in self._waiting
            self._waiting[waiting.name] = waiting
            self._waiting.move_to_end(waiting.name, last=False)
            self._interrupted.add(waiting.name)

    def head(self) -> Waiting | None:
        return next(iter(self._waiting.values()), None)

    def remove(self, name: str) -> None:
        """Take an answer out, wherever it stands; an unknown one is ignored."""
        self._waiting.pop(name, None)
        self._interrupted.discard(name)
