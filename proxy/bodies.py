"""What OpenAI's clients expect to read: the bodies of answers, whole and in chunks, as plain dicts.

`logprobs` is null in each choice here; `event_blocks` puts those that were asked for in its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.answer import Answer, EndReason, Usage
from proxy.dialects.dialect import Head

Body = dict[str, Any]

_OWNER: Final = "forebay"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that requests may name; `created` is in Unix seconds, `facts` is what is true of it here."""

    id: str
    created: int
    facts: Body = field(default_factory=dict)


def chat_completion(head: Head, answers: Sequence[Answer], usage: Usage) -> Body:
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": None,
            "finish_reason": answer.reason,
        }
        for index, answer in enumerate(answers)
    ]
    return {**_chat_head(head, "chat.completion"), "choices": choices, "usage": _usage(usage)}


def text_completion(head: Head, answers: Sequence[Answer], usage: Usage) -> Body:
    choices = [_text_choice(index, answer.text, answer.reason) for index, answer in enumerate(answers)]
    return {**_head(head, "text_completion"), "choices": choices, "usage": _usage(usage)}


def model_list(models: Sequence[ServedModel]) -> Body:
    return {"object": "list", "data": [model(served) for served in models]}


def model(served: ServedModel) -> Body:
    """Return OpenAI's model object, with our facts beside it under a name of their own."""
    facts = {"forebay": served.facts} if served.facts else {}
    return {"id": served.id, "object": "model", "created": served.created, "owned_by": _OWNER, **facts}


class ChatChunks:
    """The chunks of a streamed chat answer: `opening` first, `text` as it comes, `ending`, then `usage`.

    `include_usage` is the client's wish: then every chunk has the key `usage`, null but in the last one.
    """

    def __init__(self, head: Head, *, include_usage: bool) -> None:
        self._head = _chat_head(head, "chat.completion.chunk")
        self._usage: Body = {"usage": None} if include_usage else {}

    def opening(self, index: int) -> list[Body]:
        """Return what comes before a choice's text: its role."""
        return [self._chunk(index, {"role": "assistant", "content": "", "refusal": None}, None)]

    def text(self, index: int, text: str) -> Body:
        return self._chunk(index, {"content": text}, None)

    def ending(self, index: int, reason: EndReason) -> Body:
        return self._chunk(index, {}, reason)

    def usage(self, usage: Usage) -> Body:
        """Return the stream's last chunk; to be sent only if the client wishes it."""
        return {**self._head, "choices": [], "usage": _usage(usage)}

    def _chunk(self, index: int, delta: Body, reason: EndReason | None) -> Body:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._head, "choices": [choice], **self._usage}


class CompletionChunks:
    """The chunks of a streamed text completion, with ChatChunks' methods."""

    def __init__(self, head: Head, *, include_usage: bool) -> None:
        self._head = _head(head, "text_completion")
        self._usage: Body = {"usage": None} if include_usage else {}

    def opening(self, index: int) -> list[Body]:  # noqa: ARG002 (ChatChunks' signature)
        """Return nothing: a completion has no role."""
        return []

    def text(self, index: int, text: str) -> Body:
        return self._chunk(_text_choice(index, text, None))

    def ending(self, index: int, reason: EndReason) -> Body:
        return self._chunk(_text_choice(index, "", reason))

    def usage(self, usage: Usage) -> Body:
        """Return the stream's last chunk; to be sent only if the client wishes it."""
        return {**self._head, "choices": [], "usage": _usage(usage)}

    def _chunk(self, choice: Body) -> Body:
        return {**self._head, "choices": [choice], **self._usage}


Chunks = ChatChunks | CompletionChunks


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


def _usage(usage: Usage) -> Body:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
