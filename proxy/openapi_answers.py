"""What comes back, as JSON Schema: the parts that clients rely on. Answers may have more keys than these."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from proxy.status.snapshot import HistoryView, Snapshot

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_ANY: Final[Schema] = {}


def _object(*optional: str, **properties: Schema) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _always(*values: str | None) -> Schema:
    return {"enum": list(values)}


_USAGE: Final = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
_CALL: Final = _object(id=_TEXT, type=_always("function"), function=_object(name=_TEXT, arguments=_TEXT))
_CHAT_MESSAGE: Final = _object(
    "tool_calls",
    "reasoning_content",
    "refusal",
    role=_always("assistant"),
    content=_MAYBE_TEXT,
    refusal=_MAYBE_TEXT,
    reasoning_content=_MAYBE_TEXT,
    tool_calls=_list(_CALL),
)
_REASONS: Final = _always("stop", "length", "tool_calls")
_HEAD: Final[Mapping[str, Schema]] = {
    "id": _TEXT,
    "created": _COUNT,
    "model": _TEXT,
    "system_fingerprint": _TEXT,
    "service_tier": _MAYBE_TEXT,
    "usage": _USAGE,
}
_MODEL: Final = _object(
    "forebay",
    id=_TEXT,
    object=_always("model"),
    created=_COUNT,
    owned_by=_TEXT,
    forebay={"type": "object", "description": "What is true of the model here: bounds, batching, formats."},
)

ANSWERS: Final[Mapping[str, Schema]] = {
    "ChatAnswer": _object(
        "service_tier",
        **_HEAD,
        object=_always("chat.completion"),
        choices=_list(
            _object("logprobs", index=_COUNT, message=_CHAT_MESSAGE, finish_reason=_REASONS, logprobs=_ANY)
        ),
    ),
    "CompletionAnswer": _object(
        "service_tier",
        **_HEAD,
        object=_always("text_completion"),
        choices=_list(_object("logprobs", index=_COUNT, text=_TEXT, finish_reason=_REASONS, logprobs=_ANY)),
    ),
    "MessageAnswer": _object(
        id=_TEXT,
        type=_always("message"),
        role=_always("assistant"),
        model=_TEXT,
        content=_list(_object(type=_always("text", "thinking", "redacted_thinking", "tool_use"))),
        stop_reason=_TEXT,
        stop_sequence=_MAYBE_TEXT,
        usage=_object(input_tokens=_COUNT, output_tokens=_COUNT),
    ),
    "ResponseAnswer": _object(
        id=_TEXT,
        object=_always("response"),
        created_at={"type": "number", "minimum": 0},
        status=_always("completed", "incomplete", "in_progress", "failed", "cancelled"),
        model=_TEXT,
        output=_list(_object(type=_TEXT)),
        usage={"type": ["object", "null"]},
    ),
    "Deleted": _object(id=_TEXT, object=_TEXT, deleted={"type": "boolean"}),
    "Items": _object(object=_always("list"), data=_list({"type": "object"}), has_more={"type": "boolean"}),
    "EmbeddingAnswer": _object(object=_always("list"), data=_list({"type": "object"}), model=_TEXT),
    "CountAnswer": _object(input_tokens=_COUNT),
    "TokenizeAnswer": _object(
        count=_COUNT,
        max_model_len=_COUNT,
        tokens=_list(_COUNT),
        token_strs={"anyOf": [_list(_TEXT), {"type": "null"}]},
    ),
    "DetokenizeAnswer": _object(prompt=_TEXT),
    "ModelList": _object(object=_always("list"), data=_list(_MODEL)),
    "Model": _MODEL,
    "Live": _object(status=_TEXT),
    "Ready": _object(status=_TEXT),
    "Snapshot": _object(**{each.name: _ANY for each in fields(Snapshot)}),
    "History": _object(**{each.name: _ANY for each in fields(HistoryView)}),
    "Described": {"type": "object"},
    "Words": _TEXT,
    "OpenaiError": _object(error=_object(message=_TEXT, type=_TEXT, param=_MAYBE_TEXT, code=_MAYBE_TEXT)),
    "AnthropicError": _object(
        "request_id",
        type=_always("error"),
        error=_object(type=_TEXT, message=_TEXT),
        request_id=_MAYBE_TEXT,
    ),
}
