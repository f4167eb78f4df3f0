"""Messages in the forms that chat templates expect: most take the first, a few only another."""

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

from proxy.request import Tool

Messages = list[dict[str, Any]]

_SHORT_ID_CHARS: Final = 9


class _Arguments(dict[str, Any]):
    """A call's arguments: an object to templates that look inside, JSON to those that write it out."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)


def normal(messages: Iterable[Mapping[str, Any]]) -> Messages:
    """Return copies with a content that is text, without keys that say nothing, arguments as objects."""
    return [_normal(message) for message in messages]


def _normal(message: Mapping[str, Any]) -> dict[str, Any]:
    # Templates ask whether a key is there, and not what it has.
    told = {key: value for key, value in message.items() if value is not None and value != []}
    told["content"] = told.get("content", "")
    if "tool_calls" in told:
        told["tool_calls"] = [_with_arguments(call, _Arguments) for call in told["tool_calls"]]
    return told


def _with_arguments(call: Mapping[str, Any], make: Any) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": make(function["arguments"])}}


def have_calls(messages: Messages) -> bool:
    return any("tool_calls" in message for message in messages)


def with_arguments_as_text(messages: Messages) -> Messages:
    """Return the messages with each call's arguments as JSON text, as OpenAI's have them."""
    return [
        {**message, "tool_calls": [_with_arguments(call, str) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def with_short_ids(messages: Messages) -> Messages:
    """Return the messages with nine letters and digits for each call's id, as Mistral's templates demand."""
    return [_with_short_ids(message) for message in messages]


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if "tool_calls" in message:
        changed["tool_calls"] = [
            {**call, "id": _short_id(call["id"])} if "id" in call else call for call in message["tool_calls"]
        ]
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    return {**message, **changed}


def _short_id(id_: str) -> str:
    return blake2b(id_.encode(), digest_size=5).hexdigest()[:_SHORT_ID_CHARS]


def begin_with_system(messages: Messages) -> bool:
    """Whether a system's words could be said by the user instead."""
    return len(messages) > 1 and messages[0]["role"] == "system" and messages[1]["role"] == "user"


def with_system_in_user(messages: Messages) -> Messages:
    """Return the messages with the system's words before the user's first, for families without a system."""
    system, user, *rest = messages
    return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]


def in_parts(messages: Messages) -> Messages:
    """Return the messages with their texts as lists of one part."""
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]


def tool(tool: Tool) -> dict[str, Any]:
    """Return a tool in OpenAI's shape, in which all families' templates were trained to write it."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
