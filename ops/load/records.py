"""What became of one request, as its client saw it, and what many of them add up to."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Outcome = Literal["completed", "refused", "failed", "cut"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A chat request to be sent. `scheduled_at` is when it was meant to go, where that was planned."""

    prompt: str
    max_tokens: int
    lane: str = "interactive"
    key: str | None = None
    scheduled_at: float | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sending. `answered_at` is when the status line came; status 0: none did."""

    name: str
    sent_at: float
    answered_at: float | None
    status: int
    retry_after_s: float | None
    code: str

    @property
    def refused(self) -> bool:
        return self.status in (429, 503)


@dataclass(frozen=True, slots=True)
class Record:
    """One request from its first sending to its end; all times are seconds of the monotonic clock.

    `text_times` are when each piece of text came, which is about once a token; `tokens` is what the answer's
    usage said, and the number of pieces where the answer never came to that. Outcomes: completed; refused by
    its last attempt; failed, which is anything else that the server or the connection did; cut, because the
    client left. `piece_chars` are the pieces' lengths; `prompt_tokens` and `cached_tokens` are what usage
    said, and None where it said nothing.
    """

    ask: Ask
    attempts: tuple[Attempt, ...]
    text_times: tuple[float, ...]
    ended_at: float
    tokens: int
    outcome: Outcome
    code: str
    lane_served: str
    queue_ms: float | None
    piece_chars: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str = ""

    @property
    def name(self) -> str:
        """The x-request-id of the last sending."""
        return self.attempts[-1].name

    @property
    def sent_at(self) -> float:
        """When the last attempt was sent."""
        return self.attempts[-1].sent_at

    @property
    def scheduled_at(self) -> float:
        """When it was meant to be sent first: a client that is late itself makes no server look faster."""
        return self.attempts[0].sent_at if self.ask.scheduled_at is None else self.ask.scheduled_at

    @property
    def status(self) -> int:
        return self.attempts[-1].status

    @property
    def retry_after_s(self) -> float | None:
        return self.attempts[-1].retry_after_s

    @property
    def first_token_at(self) -> float | None:
        return self.text_times[0] if self.text_times else None

    @property
    def completed(self) -> bool:
        return self.outcome == "completed"


def first_token_waits_s(records: Iterable[Record]) -> list[float]:
    """Return completed requests' times to first token, from when each was meant to be sent."""
    return [record.text_times[0] - record.scheduled_at for record in _with_text(records)]


def accepted_waits_s(records: Iterable[Record]) -> list[float]:
    """Return completed requests' times to first token, from sending the attempt that was accepted."""
    return [record.text_times[0] - record.sent_at for record in _with_text(records)]


def whole_times_s(records: Iterable[Record]) -> list[float]:
    """Return how long completed requests took, from when each was meant to be sent."""
    return [record.ended_at - record.scheduled_at for record in records if record.completed]


def gaps_s(records: Iterable[Record]) -> list[float]:
    """Return the times between one piece of text and the next, within each answer, complete or not."""
    return [later - earlier for record in records for earlier, later in pairwise(record.text_times)]


def _with_text(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.completed and record.text_times]


def tokens_between(records: Iterable[Record], begin: float, end: float, *, completed: bool) -> float:
    """Return the tokens that came in [begin, end), of completed requests only or of all.

    An answer's tokens are spread evenly over its pieces of text.
    """
    return sum(
        record.tokens * sum(begin <= moment < end for moment in record.text_times) / len(record.text_times)
        for record in records
        if record.text_times and (record.completed or not completed)
    )


def outcomes(records: Sequence[Record]) -> dict[str, int]:
    """Return how many ended how; what was refused or failed stands there with its code."""
    return dict(sorted(Counter(map(_ending, records)).items()))


def _ending(record: Record) -> str:
    return f"{record.outcome} {record.code}" if record.outcome in ("refused", "failed") else record.outcome
