"""What every endpoint that generates has of its own: how a body is read, and how answers are written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from proxy.answer import Answer, EndReason, Piece, Usage
from proxy.answer_logprobs import Form
from proxy.failures import Failure
from proxy.request import Parsed
from proxy.spelling import Spelling


@dataclass(frozen=True, slots=True)
class Head:
    """What is said of one request as a whole: `id` as its dialect has them; `created` in Unix seconds.

    `service_tier` is what the lane that serves the request is called there.
    """

    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: str


@dataclass(frozen=True, slots=True)
class News:
    """Some pieces of one answer; `reason` is set on its last news, and `stop` if a stop string ended it.

    `logprobs` is JSON, "null" for none. `usage` is what was used up to here, if each chunk is to say so.
    """

    answer: int
    pieces: tuple[Piece, ...]
    reason: EndReason | None
    logprobs: str = "null"
    stop: str | None = None
    usage: Usage | None = None


class AnswerStream(Protocol):
    """One request's event stream, in bytes: `opening`, news, and `closing` or, if it fails, `failed`."""

    def opening(self, usage: Usage) -> bytes: ...
    def news(self, news: News) -> bytes: ...
    def closing(self, usage: Usage) -> bytes: ...
    def failed(self, failure: Failure) -> bytes: ...


class Dialect(Protocol):
    """One endpoint. `id_prefix` begins its answers' ids.

    `continues` says that answers go on in the prompt's text, and don't begin one of their own. `whole`
    returns the body of answers that all ended, as JSON; `logprobs` are theirs, as JSON, if they were asked
    for. `failed` returns the event of a stream that was heard from a recording, and of which nothing else is
    known where it fails.
    """

    id_prefix: str
    continues: bool

    def parse(self, body: bytes, seeds: Callable[[], int]) -> Parsed: ...
    def form(self, spelling: Spelling, tops: int) -> Form: ...
    def stream(self, head: Head, parsed: Parsed) -> AnswerStream: ...
    def whole(
        self, head: Head, parsed: Parsed, answers: Sequence[Answer], usage: Usage, logprobs: Sequence[str]
    ) -> bytes: ...
    def failed(self, failure: Failure) -> bytes: ...
