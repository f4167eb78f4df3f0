"""Anthropic's event stream: a message begins, its blocks follow each other, and it ends with a reason."""

from typing import Any, Final

from proxy.answer import Call, EndReason, Piece, Text, Thought, Usage, chars_of
from proxy.dialects.dialect import Head, News
from proxy.dialects.messages_blocks import (
    SIGNATURE,
    call_block,
    call_id,
    encode,
    ending_of,
    head_of,
    is_cut_short,
    shows_thoughts,
    thought_block,
    totals_of,
    usage_of,
)
from proxy.dialects.messages_errors import error_of
from proxy.failures import Failure
from proxy.request import Parsed

_EMPTY: Final = {Text: '{"type":"text","text":""}', Thought: thought_block("", "")}
_DELTAS: Final = {Text: ("text_delta", "text"), Thought: ("thinking_delta", "thinking")}


def failed(failure: Failure) -> bytes:
    """Return the event of a stream that fails; no message_stop follows it."""
    error = error_of(failure)
    return event(error["type"], f'"error":{encode(error["error"])}')


def event(kind: str, fields: str) -> bytes:
    """Return one event; `fields` are its data's fields but for the type, as JSON, or empty."""
    more = f",{fields}" if fields else ""
    return f'event: {kind}\ndata: {{"type":"{kind}"{more}}}\n\n'.encode()


class MessageStream:
    """One answer's stream. Each run of text, each run of thoughts and each call is a block of its own.

    A client may not want to read thoughts; that there was one is told all the same.
    """

    def __init__(self, head: Head, parsed: Parsed) -> None:
        self._head = head
        self._parsed = parsed
        self._shows_thoughts = shows_thoughts(parsed)
        self._open: type[Text | Thought] | None = None  # what the block is made of that hasn't ended yet
        self._next = 0  # the next block's index
        self._calls = 0
        self._delta = ("", "")  # what stands around the open block's texts
        self._reason: EndReason = "length"
        self._stop: str | None = None

    def opening(self, usage: Usage) -> bytes:
        """Return the message as it begins. What was cached may not be known yet; the end says it again."""
        message: dict[str, Any] = {
            **head_of(self._head),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                **usage_of(usage, self._head.service_tier),
                **totals_of(Usage(usage.prompt_tokens, 0, usage.cached_tokens)),
            },
        }
        return event("message_start", f'"message":{encode(message)}')

    def news(self, news: News) -> bytes:
        blocks = [self._piece(piece) for piece in news.pieces if chars_of(piece)]
        if news.reason is not None:
            self._reason, self._stop = news.reason, news.stop
            blocks.append(self._close())
        return b"".join(blocks)

    def closing(self, usage: Usage) -> bytes:
        cut = is_cut_short(self._parsed, usage)
        ending = encode(ending_of(self._reason, self._stop, self._calls, cut=cut))
        totals = encode(totals_of(usage))
        return event("message_delta", f'"delta":{ending},"usage":{totals}') + event("message_stop", "")

    def _piece(self, piece: Piece) -> bytes:
        if isinstance(piece, Call):
            return self._call(piece)
        begun = b"" if self._open is type(piece) else self._begin(type(piece))
        if isinstance(piece, Thought) and not self._shows_thoughts:
            return begun
        before, after = self._delta
        return begun + f"{before}{encode(piece.text)}{after}".encode()

    def failed(self, failure: Failure) -> bytes:
        return failed(failure)

    def _begin(self, kind: type[Text | Thought]) -> bytes:
        closed = self._close()
        begun = self._start(_EMPTY[kind])
        self._open = kind
        type_, field = _DELTAS[kind]
        start, end = self._delta_event(type_, field, '"\0"').split('"\0"')
        self._delta = (start, end)
        return closed + begun

    def _call(self, call: Call) -> bytes:
        """Return a call as a block: its input begins empty and comes in one delta."""
        closed = self._close()
        begun = self._start(call_block(call_id(self._head, self._calls), call.name, "{}"))
        self._calls += 1
        delta = self._delta_event("input_json_delta", "partial_json", encode(call.arguments)).encode()
        return closed + begun + delta + self._stopped()

    def _close(self) -> bytes:
        """End the open block, if there is one. A thought's signature comes before its end."""
        if self._open is None:
            return b""
        signed = b""
        if self._open is Thought:
            signed = self._delta_event("signature_delta", "signature", encode(SIGNATURE)).encode()
        self._open = None
        return signed + self._stopped()

    def _start(self, block: str) -> bytes:
        return event("content_block_start", f'"index":{self._next},"content_block":{block}')

    def _stopped(self) -> bytes:
        stopped = event("content_block_stop", f'"index":{self._next}')
        self._next += 1
        return stopped

    def _delta_event(self, kind: str, field: str, value: str) -> str:
        delta = f'{{"type":"{kind}","{field}":{value}}}'
        return event("content_block_delta", f'"index":{self._next},"delta":{delta}').decode()
