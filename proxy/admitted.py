"""The last of the three types: a request that has its places, with what comes back for it.

The permit is an object that rides with the stream; closing it gives place, row and bytes back by whichever
path the stream ends: complete, cut by a stop string, cancelled by the client, or failed.
"""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from proxy.request import Measured
from shared.errors import Refusal
from shared.messages import FinishReason, RowLogprobs
from shared.sampling import Sampling

HAPPENINGS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class TokenCame:
    """The next token of an answer; indices come in order, once each. `logprobs` only if asked for."""

    answer: int
    token: int
    logprobs: RowLogprobs | None = None


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """The worker ended an answer."""

    answer: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request can't go on; nothing more comes."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class NothingCame:
    """Nothing was sent to the client for long; a stream tells itself so."""


Event = TokenCame | AnswerEnded | RequestFailed | NothingCame


@dataclass(slots=True, eq=False)
class LiveSequence:
    """One answer in the making, as the proxy sees it; changed by the dispatcher only.

    `emitted` holds every id the client was or will be shown, which is all a resume needs. `attempt` counts
    submits, `interruptions` those ends of an attempt that were not on purpose. `pinged` is the number of the
    last ping sent before the submit: a worker that has seen a later one, and doesn't hold the sequence, has
    lost it. `park_pinged` is the same of a park that is under way, and None while there is none: with a
    worker that has seen a later one, the park or its answer got lost. `ran_on` is the epoch it was submitted
    to last, None once its end there is settled. `lost_at` is when a worker's end took its row, until its next
    token; `came_at` is when its last token came, `reason` why its text came to an end, once it has.
    `cached_tokens` of its prompt were there already when it was first begun; None until that is told. `names`
    are those of its prompt's blocks.
    """

    name: str
    answer: int
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    events: asyncio.Queue[Event]
    fingerprint: str
    emitted: list[int] = field(default_factory=list)
    attempt: int = 0
    interruptions: int = 0
    parks: int = 0
    running: bool = False
    pinged: int = 0
    park_pinged: int | None = None
    ran_on: int | None = None
    lost_at: float | None = None
    came_at: float | None = None
    cached_tokens: int | None = None
    reason: FinishReason | None = None
    names: tuple[int, ...] = ()

    @property
    def full(self) -> bool:
        """All its tokens came; only the worker's word that it ended may be missing."""
        return len(self.emitted) == self.max_tokens


@dataclass(frozen=True, slots=True)
class Happening:
    """What came between a request and its answer, and when."""

    kind: Literal["parked", "interrupted", "resumed"]
    at: float


class Release(Protocol):
    """Gives an answer's place, row and bytes back. `complete` says whether its text came to an end."""

    def __call__(self, sequence: LiveSequence, *, complete: bool) -> None: ...


@dataclass(slots=True)
class Admitted:
    """A measured request that is queued or runs. Close it on every path: it gives everything back.

    `lane` is the name of the lane that serves it; `failed_at` is when one of its answers did, `failed_code`
    by what. `arrived_at` is when the request's head was read, `received_at` when it was measured and let in,
    `started_at` when its first answer was submitted, `first_at` when its first token came. It `broke` if
    the gateway itself went wrong on it: nobody left then.
    """

    measured: Measured
    sequences: tuple[LiveSequence, ...]
    events: asyncio.Queue[Event]
    arrived_at: float
    received_at: float
    release: Release
    lane: str
    started_at: float | None = None
    first_at: float | None = None
    failed_at: float | None = None
    failed_code: str = ""
    broke: bool = False
    happened: list[Happening] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broke = isinstance(error, Exception) and not isinstance(error, (Refusal, ConnectionError))
        for sequence in self.sequences:
            self.release(sequence, complete=False)

    def note(self, kind: Literal["parked", "interrupted", "resumed"], at: float) -> None:
        """Take note of what happened; of a request to which very much does, the first of it."""
        if len(self.happened) < HAPPENINGS_MAX:
            self.happened.append(Happening(kind, at))

    def stop(self, answer: int) -> None:
        """End one answer early, because its text is complete; the others go on."""
        self.release(self.sequences[answer], complete=True)

    @property
    def queue_ms(self) -> int:
        """Milliseconds from arrival to the first answer's start, or to the end of waiting for one."""
        until = self.failed_at if self.started_at is None else self.started_at
        return 0 if until is None else round(1000 * (until - self.received_at))

    @property
    def attempts(self) -> int:
        """How often the most unlucky of the answers was submitted."""
        return max(sequence.attempt for sequence in self.sequences)

    @property
    def tokens(self) -> int:
        """How many tokens the answers took so far, each one's prompt among them once it was submitted."""
        begun = (sequence for sequence in self.sequences if sequence.attempt)
        return sum(len(sequence.prompt_ids) + len(sequence.emitted) for sequence in begun)
