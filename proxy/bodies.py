"""What OpenAI's clients expect to read: the bodies of answers, whole and in chunks, as plain dicts.

`logprobs` is null in each choice here; `event_blocks` puts those that were asked for in its place. Thoughts
have two names, since clients of open models read either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal

from proxy.answer import Answer, Call, EndReason, Usage
from proxy.dialects.dialect import Head

Body = dict[str, Any]
FinishReason = Literal["stop", "length", "tool_calls", "function_call"]

_OWNER: Final = "forebay"
_CALL_ID_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that requests may name; `created` is in Unix seconds, `facts` is what is true of it here."""

    id: str
    created: int
    facts: Body = field(default_factory=dict)


def chat_completion(
    head: Head, answers: Sequence[Answer], usage: Usage, *, older_calls: bool = False
) -> Body:
    """Return the body; with `older_calls`, a call is a message's `function_call`, and only the first is."""
    choices = [
        {
            "index": index,
            "message": _message(head, index, answer, older_calls=older_calls),
            "logprobs": None,
            "finish_reason": _finish_reason(answer.reason, len(answer.calls), older_calls=older_calls),
        }
        for index, answer in enumerate(answers)
    ]
    return {**_chat_head(head, "chat.completion"), "choices": choices, "usage": _chat_usage(usage)}


def text_completion(head: Head, answers: Sequence[Answer], usage: Usage, echoes: Sequence[str] = ()) -> Body:
    """Return the body; `echoes` are texts that come before the answers', if any."""
    texts = [answer.text for answer in answers]
    if echoes:
        texts = [echo + text for echo, text in zip(echoes, texts, strict=True)]
    choices = [
        _text_choice(index, text, answer.reason)
        for index, (text, answer) in enumerate(zip(texts, answers, strict=True))
    ]
    return {**_head(head, "text_completion"), "choices": choices, "usage": _usage(usage)}


def model_list(models: Sequence[ServedModel]) -> Body:
    return {"object": "list", "data": [model(served) for served in models]}


def model(served: ServedModel) -> Body:
    """Return OpenAI's model object, with our facts beside it under a name of their own."""
    facts = {"forebay": served.facts} if served.facts else {}
    return {"id": served.id, "object": "model", "created": served.created, "owned_by": _OWNER, **facts}


class ChatChunks:
    """The chunks of a streamed chat answer: `opening` first, pieces as they come, `ending`, then `usage`.

    `include_usage` is the client's wish: then every chunk has the key `usage`, null but in the last one.
    `older_calls` is as in `chat_completion`.
    """

    def __init__(self, head: Head, *, include_usage: bool, older_calls: bool = False) -> None:
        self._id = head.id
        self._head = _chat_head(head, "chat.completion.chunk")
        self._usage: Body = {"usage": None} if include_usage else {}
        self._older_calls = older_calls

    def opening(self, index: int) -> list[Body]:
        """Return what comes before all else of a choice: its role."""
        return [self._chunk(index, {"role": "assistant", "content": "", "refusal": None}, None)]

    def text(self, index: int, text: str) -> Body:
        return self._chunk(index, {"content": text}, None)

    def thought(self, index: int, text: str) -> Body:
        return self._chunk(index, _thought(text), None)

    def call(self, index: int, number: int, call: Call) -> list[Body]:
        """Return the chunks of an answer's call, counted from 0: who it is first, then its arguments."""
        if self._older_calls:
            name = {"name": call.name, "arguments": ""}
            deltas: list[Body] = [{"function_call": name}, {"function_call": {"arguments": call.arguments}}]
            return [self._chunk(index, delta, None) for delta in deltas if number == 0]
        first = {"index": number, **_tool_call(self._id, index, number, Call(call.name, ""))}
        rest = {"index": number, "function": {"arguments": call.arguments}}
        return [self._chunk(index, {"tool_calls": [each]}, None) for each in (first, rest)]

    def ending(self, index: int, reason: EndReason, calls: int = 0) -> Body:
        """Return the last chunk of an answer that made so many calls."""
        return self._chunk(index, {}, _finish_reason(reason, calls, older_calls=self._older_calls))

    def usage(self, usage: Usage) -> Body:
        """Return the stream's last chunk; to be sent only if the client wishes it."""
        return {**self._head, "choices": [], "usage": _chat_usage(usage)}

    def _chunk(self, index: int, delta: Body, reason: FinishReason | None) -> Body:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._head, "choices": [choice], **self._usage}


class CompletionChunks:
    """The chunks of a streamed text completion. `echoes` are texts that come before the answers', if any."""

    def __init__(self, head: Head, *, include_usage: bool, echoes: Sequence[str] = ()) -> None:
        self._head = _head(head, "text_completion")
        self._usage: Body = {"usage": None} if include_usage else {}
        self._echoes = echoes

    def opening(self, index: int) -> list[Body]:
        """Return what comes before a choice's text: its echo. A completion has no role."""
        return [self.text(index, self._echoes[index])] if self._echoes else []

    def text(self, index: int, text: str) -> Body:
        return self._chunk(_text_choice(index, text, None))

    def ending(self, index: int, reason: EndReason) -> Body:
        return self._chunk(_text_choice(index, "", reason))

    def usage(self, usage: Usage) -> Body:
        """Return the stream's last chunk; to be sent only if the client wishes it."""
        return {**self._head, "choices": [], "usage": _usage(usage)}

    def _chunk(self, choice: Body) -> Body:
        return {**self._head, "choices": [choice], **self._usage}


def _message(head: Head, index: int, answer: Answer, *, older_calls: bool) -> Body:
    """Return an answer's message. Without a text it has none, if it has calls instead."""
    calls = answer.calls
    message: Body = {"role": "assistant", "content": answer.text, "refusal": None}
    if calls and not answer.text:
        message["content"] = None
    if answer.thought:
        message |= _thought(answer.thought)
    if calls and older_calls:
        message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
    elif calls:
        message["tool_calls"] = [
            _tool_call(head.id, index, number, call) for number, call in enumerate(calls)
        ]
    return message


def _thought(text: str) -> Body:
    return {"reasoning_content": text, "reasoning": text}


def _tool_call(answer_id: str, index: int, number: int, call: Call) -> Body:
    """Return a call. Its id follows from where it stands, so whole answers and streams name it alike."""
    place = f"{answer_id}/{index}/{number}".encode()
    return {
        "id": f"call_{blake2b(place, digest_size=_CALL_ID_BYTES).hexdigest()}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish_reason(reason: EndReason, calls: int, *, older_calls: bool) -> FinishReason:
    """Return what ended an answer: its calls, if it wasn't cut off."""
    if reason == "stop" and calls:
        return "function_call" if older_calls else "tool_calls"
    return reason


def _chat_head(head: Head, kind: str) -> Body:
    """Return what chat bodies say at their top; OpenAI's text completions have no service_tier."""
    return {**_head(head, kind), "service_tier": head.service_tier}


def _head(head: Head, kind: str) -> Body:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.system_fingerprint,
    }


def _text_choice(index: int, text: str, reason: EndReason | None) -> Body:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _chat_usage(usage: Usage) -> Body:
    return {**_usage(usage), "completion_tokens_details": {"reasoning_tokens": usage.thought_tokens}}


def _usage(usage: Usage) -> Body:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
