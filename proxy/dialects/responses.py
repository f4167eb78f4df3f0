"""OpenAI's /v1/responses: answers as items, streams of typed events that are numbered."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from proxy.answer import Answer, EndReason, Usage
from proxy.answer_logprobs import ChatForm, Entry, Form
from proxy.dialects.dialect import AnswerStream, Head, News
from proxy.dialects.responses_output import Event, Output, encode
from proxy.dialects.responses_request import ASKED, Asked, parse_response
from proxy.event_blocks import NO_LOGPROBS
from proxy.failures import Failure
from proxy.request import Parsed
from proxy.spelling import Spelling, Word

KEEP: Final = "keep"  # where Parsed.extras have a Keep, if the response is to be kept
_ID_PREFIX: Final = "resp_"
_RATE: Final = "rate_limit_exceeded"


class Keep(Protocol):
    """Keeps a finished response: its id, its body, and the items of its output, all as JSON."""

    def __call__(self, id_: str, body: bytes, output: Sequence[str]) -> None: ...


class Body:
    """Writes the Response object of one request, in all its states. What never changes is written once."""

    def __init__(self, head: Head, parsed: Parsed) -> None:
        self._head = head
        asked = asked_of(parsed)
        same = {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "model": head.model,
            "service_tier": head.service_tier,
            **asked.repeated,
        }
        self._same = encode(same)[:-1]

    def begun(self) -> str:
        return self._text("in_progress", ())

    def ended(self, reason: EndReason, items: Iterable[str], usage: Usage) -> str:
        if reason == "stop":
            return self._text("completed", items, usage=usage_of(usage))
        details = {"reason": "max_output_tokens"}
        return self._text("incomplete", items, incomplete_details=details, usage=usage_of(usage))

    def failed(self, items: Iterable[str], error: dict[str, Any]) -> str:
        return self._text("failed", items, error=error)

    def _text(self, status: str, items: Iterable[str], **fields: Any) -> str:
        own = {"status": status, "error": None, "incomplete_details": None, "usage": None, **fields}
        return f'{self._same},{encode(own)[1:-1]},"output":[{",".join(items)}]}}'


def usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.thought_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def asked_of(parsed: Parsed) -> Asked:
    asked = parsed.extras[ASKED]
    assert isinstance(asked, Asked), "this dialect has parsed it"
    return asked


def _output(head: Head, asked: Asked) -> Output:
    return Output(head.id.removeprefix(_ID_PREFIX), asked.names, seals=asked.encrypts)


def _keep(parsed: Parsed, id_: str, body: str, output: Sequence[str]) -> None:
    keep: Keep | None = parsed.extras.get(KEEP)
    if keep is not None:
        keep(id_, body.encode(), output)


class ResponseStream:
    """The events of one response. Each has the next number, and its type for a name.

    The opening's numbers are the first, even where the first news is written before it.
    """

    def __init__(self, head: Head, parsed: Parsed) -> None:
        self._head = head
        self._parsed = parsed
        self._body = Body(head, parsed)
        self._output = _output(head, asked_of(parsed))
        self._reason: EndReason = "length"
        self._number = 2

    def opening(self, usage: Usage) -> bytes:  # noqa: ARG002 (AnswerStream's signature)
        begun = f'"response":{self._body.begun()}'
        blocks = _block("response.created", 0, begun) + _block("response.in_progress", 1, begun)
        return blocks.encode()

    def news(self, news: News) -> bytes:
        blocks = self._blocks(self._output.take(news.pieces, news.logprobs))
        if news.reason is not None:
            self._reason = news.reason
            blocks += self._blocks(self._output.end(news.reason))
        return blocks

    def closing(self, usage: Usage) -> bytes:
        """Return the last event, which has all of the response, and keep that."""
        body = self._body.ended(self._reason, self._output.items, usage)
        _keep(self._parsed, self._head.id, body, self._output.items)
        status = "completed" if self._reason == "stop" else "incomplete"
        return self._blocks([(f"response.{status}", f'"response":{body}')])

    def failed(self, failure: Failure) -> bytes:
        """Return the last event of a stream that fails; what was finished by then is in it."""
        body = self._body.failed(self._output.items, error_of(failure))
        return self._blocks([("response.failed", f'"response":{body}')])

    def _blocks(self, events: Iterable[Event]) -> bytes:
        blocks = []
        for kind, rest in events:
            blocks.append(_block(kind, self._number, rest))
            self._number += 1
        return "".join(blocks).encode()


def _block(kind: str, number: int, rest: str) -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":{number},{rest}}}\n\n'


def error_of(failure: Failure) -> dict[str, Any]:
    """Return a failure as a Response has it: of our codes, one is also OpenAI's. Ours is beside it."""
    error = failure.event["error"]
    code = _RATE if error["code"] == _RATE else "server_error"
    return {**error, "code": code, "forebay_code": error["code"]}


class ResponsesForm(ChatForm):
    """Log probabilities of a text's tokens: chat's entries in a list. A token without text has no bytes."""

    def __init__(self, spelling: Spelling) -> None:
        super().__init__(spelling)
        word = self._word

        def with_bytes(token: int) -> Word:
            known = word(token)
            return known if known.raw != NO_LOGPROBS else Word(known.text, "[]")

        self._word = with_bytes

    def value(self, entries: Sequence[Entry]) -> str:
        return f"[{','.join(entry for (entry,) in entries)}]"


class Responses:
    """/v1/responses."""

    id_prefix = _ID_PREFIX
    continues = False

    def parse(self, body: bytes, seeds: Callable[[], int]) -> Parsed:
        return parse_response(body, seeds)

    def form(self, spelling: Spelling, tops: int) -> Form:  # noqa: ARG002 (Dialect's signature)
        return ResponsesForm(spelling)

    def stream(self, head: Head, parsed: Parsed) -> AnswerStream:
        return ResponseStream(head, parsed)

    def whole(
        self, head: Head, parsed: Parsed, answers: Sequence[Answer], usage: Usage, logprobs: Sequence[str]
    ) -> bytes:
        """Return the body of the one answer, and keep it."""
        (answer,) = answers
        output = _output(head, asked_of(parsed))
        for _ in output.take(answer.pieces, logprobs[0] if logprobs else NO_LOGPROBS):
            pass
        for _ in output.end(answer.reason):
            pass
        body = Body(head, parsed).ended(answer.reason, output.items, usage)
        _keep(parsed, head.id, body, output.items)
        return body.encode()

    def failed(self, failure: Failure) -> bytes:
        """Return the event of a stream of which nothing else is known any more."""
        error = failure.event["error"]
        body = {"type": "error", "sequence_number": 0, **error_event(error)}
        return f"event: error\ndata: {encode(body)}\n\n".encode()


def error_event(error: dict[str, Any]) -> dict[str, Any]:
    later = {"retry_after_ms": error["retry_after_ms"]} if "retry_after_ms" in error else {}
    return {
        "code": error["code"] or error["type"],
        "message": error["message"],
        "param": error["param"],
        **later,
    }
