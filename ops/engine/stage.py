"""Turns a side until something is reached, and keeps when each row's tokens came."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ops.engine.side import Request, Side

_TURNS_MAX: Final = 100_000


class NotReached(RuntimeError):
    """A side has turned for as long as nothing may take."""


class Stage:
    """A side at work. `times` are each row's tokens, by `time.perf_counter`."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.times: dict[str, list[float]] = {}
        self.prompts: dict[str, int] = {}

    def add(self, requests: Sequence[Request]) -> None:
        self.times.update((request.name, []) for request in requests)
        self.prompts.update((request.name, len(request.ids)) for request in requests)
        self.side.add(requests)

    def until(self, rows: Collection[str], tokens: int) -> None:
        """Turn until each of these rows has made so many tokens."""
        self._turn_until(lambda: all(len(self.times[row]) >= tokens for row in rows))

    def on(self, row: str, tokens: int) -> None:
        """Turn until this row has made so many tokens more."""
        self.until([row], len(self.times[row]) + tokens)

    def _turn_until(self, is_reached: Callable[[], bool]) -> None:
        for _ in range(_TURNS_MAX):
            if is_reached():
                return
            for token in self.side.turn():
                self.times[token.row].append(token.at_s)
        raise NotReached(f"after {_TURNS_MAX} turns rows have {counts(self.times)} tokens")

    @property
    def now_s(self) -> float:
        """When the newest token came; 0 before any did."""
        return max((moment for times in self.times.values() for moment in times), default=0.0)

    @property
    def lengths(self) -> list[int]:
        """What each row holds, in tokens: its prompt and what it has said, the last of it on its way in."""
        return [self.prompts[row] + len(times) for row, times in self.times.items()]


def counts(times: Mapping[str, Sequence[float]]) -> list[int]:
    return [len(each) for each in times.values()]


def tokens_between(times: Mapping[str, Sequence[float]], since_s: float, until_s: float) -> int:
    """Return how many tokens came after `since_s`, up to and with `until_s`."""
    return sum(since_s < moment <= until_s for each in times.values() for moment in each)


def gaps_ms(
    times: Mapping[str, Sequence[float]], rows: Collection[str], since_s: float, until_s: float
) -> list[float]:
    """Return the gaps between tokens of these rows that ended after `since_s`, up to and with `until_s`."""
    return [
        1000 * (later - earlier)
        for row in rows
        for earlier, later in zip(times[row], times[row][1:], strict=False)
        if since_s < later <= until_s
    ]
