"""What is set side by side: a face that both ways of batching show to the works that are measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.model_facts import ModelFacts
from shared.sampling import Sampling
from worker.engine.grouping import SHORT_TOKENS


@dataclass(frozen=True, slots=True)
class Request:
    """A row to come, and how many tokens it makes at most.

    `seeded` says that its noise must be its own. Our engine's always is, whatever this says.
    """

    name: str
    ids: tuple[int, ...]
    tokens_max: int
    sampling: Sampling
    seeded: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a row was there for its reader, at a time of `time.perf_counter`."""

    row: str
    at_s: float


class Side(Protocol):
    """One way to run rows together, from the first request to the last token."""

    def add(self, requests: Sequence[Request]) -> None:
        """Take rows in; they prefill in the turns that follow."""

    def turn(self) -> list[Token]:
        """Do the next piece of work; return what became readable, in order of time."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of all cache arrays held now."""

    def close(self) -> None:
        """Wait for what is under way and let go of everything."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A side that can be begun again and again, and what a row's tokens cost in its caches."""

    name: str
    facts: ModelFacts
    begin: Callable[[], Side]


def held_bytes(facts: ModelFacts, lengths: Sequence[int]) -> int:
    """Return what rows of these lengths, in tokens, hold: without any padding, or room for more.

    A short row counts as one of SHORT_TOKENS, which is how our engine means its promise.
    """
    return sum(
        tokens * facts.kv_bytes_per_token
        + min(tokens, facts.window_tokens) * facts.window_bytes_per_token
        + facts.fixed_bytes_per_row
        for tokens in (max(length, SHORT_TOKENS) for length in lengths)
    )
