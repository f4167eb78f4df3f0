"""What tests of Anthropic's endpoint share: its types read strictly, a small format, and an agent's body."""

import json
from functools import cache

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from proxy.answer import Call, Text, Thought
from proxy.formats.format import Format

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


# --- Anthropic's own types ----------------------------------------------------------------------------------


@cache
def _adapter(kind):
    return TypeAdapter(kind)


def unknown_fields(value):
    """Return the names in a parsed value that Anthropic's types don't have."""
    if isinstance(value, list):
        return [name for each in value for name in unknown_fields(each)]
    if not isinstance(value, BaseModel):
        return []
    inner = [name for field in type(value).model_fields for name in unknown_fields(getattr(value, field))]
    return [*(value.model_extra or {}), *inner]


def strictly(kind, value):
    """Return a JSON value as one of Anthropic's types; no field may be missing, wrong or unknown."""
    parsed = _adapter(kind).validate_python(value, strict=True)
    assert unknown_fields(parsed) == []
    return parsed


def read_events(raw):
    """Return the data of an event stream's events, each read strictly, but for comments."""
    *blocks, rest = raw.decode().split("\n\n")
    assert rest == ""
    events = []
    for block in blocks:
        if block.startswith(":"):
            continue
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        if event["type"] != "error":
            strictly(RawMessageStreamEvent, event)
        events.append(event)
    return events


_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("input", "partial_json"),
}


def gathered(events):
    """Put a stream together to the message that it tells of, checking the order in which it comes."""
    first, *middle, last_delta, last = events
    assert (first["type"], last_delta["type"], last) == (
        "message_start",
        "message_delta",
        {"type": "message_stop"},
    )
    message = first["message"]
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], None, 0)
    message["content"] = _blocks(middle)
    message |= last_delta["delta"]
    message["usage"] |= last_delta["usage"]
    return strictly(Message, message) and message


def _blocks(events):
    blocks, is_open = [], False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append(_begun(event["content_block"]))
                is_open = True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                field, part = _DELTAS[event["delta"]["type"]]
                assert event["delta"][part], "a delta says something"
                blocks[-1][field] += event["delta"][part]
            case kind:
                assert (kind, event["index"], is_open) == ("content_block_stop", len(blocks) - 1, True)
                is_open = False
    assert not is_open
    return [{**block, "input": json.loads(block["input"])} if "input" in block else block for block in blocks]


def _begun(block):
    """Return a block as it begins: with nothing in it, whatever it will have."""
    if block["type"] == "tool_use":
        assert block["input"] == {}
        return {**block, "input": ""}
    field = "text" if block["type"] == "text" else "thinking"
    assert block[field] == ""
    return block


# --- a format -----------------------------------------------------------------------------------------------


_MARKS = {Text: {"<t>": Thought, "<c>": Call}, Thought: {"</t>": Text}, Call: {"</c>": Text}}


class _Reader:
    """Reads <t>thoughts</t> and <c>name {…}</c>."""

    def __init__(self, thinks, _tools):
        self._kind = Thought if thinks else Text
        self._held = ""

    @property
    def held_chars(self):
        return len(self._held)

    @property
    def is_thinking(self):
        return self._kind is Thought

    def feed(self, text):
        self._held += text
        pieces = []
        while found := self._first_mark():
            at, mark = found
            pieces += self._made(self._held[:at])
            self._held = self._held[at + len(mark) :]
            self._kind = _MARKS[self._kind][mark]
        if self._kind is not Call:
            begun = max(n for n in range(4) for mark in _MARKS[self._kind] if self._held.endswith(mark[:n]))
            cut = len(self._held) - begun
            pieces += self._made(self._held[:cut])
            self._held = self._held[cut:]
        return pieces

    def finish(self):
        rest, self._held = self._held, ""
        return [Text(rest)] if rest else []

    def _first_mark(self):
        places = ((self._held.find(mark), mark) for mark in _MARKS[self._kind])
        return min(((at, mark) for at, mark in places if at >= 0), default=None)

    def _made(self, text):
        if self._kind is Call:
            name, _, arguments = text.partition(" ")
            return [Call(name, arguments)]
        return [self._kind(text)] if text else []


SMALL = Format("small", _Reader, thought=("<t>", "</t>"), call_begins="<c>")


# --- bodies -------------------------------------------------------------------------------------------------


def body(**fields):
    return {"model": "small", "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}], **fields}


def tool(name, **schema):
    """Return a tool of the client's with a schema of its own."""
    return {
        "name": name,
        "description": f"What {name} does, told at some length. " * 20,
        "input_schema": {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "An absolute path"}, **schema},
            "required": ["path"],
            "additionalProperties": False,
        },
    }


CACHED = {"cache_control": {"type": "ephemeral"}}


def agents_body(**fields):
    """Return a coding agent's request amid its work: many tools, marks for caching, beta fields."""
    tools = [tool(f"Tool{n}") for n in range(40)]
    tools[-1] |= CACHED
    called = {"type": "tool_use", "id": "toolu_01A", "name": "Tool3", "input": {"path": "/a"}}
    result = {
        "tool_use_id": "toolu_01A",
        "type": "tool_result",
        "content": [_text("1\tone")],
        "is_error": False,
    }
    return {
        "model": "small",
        "system": [
            _text("x-anthropic-billing-header: cc_version=1.2.3; cch=0a1b2;"),
            _text("You help with code.", **CACHED),
            _text("Be brief.\n", **CACHED),
        ],
        "messages": [
            {
                "role": "user",
                "content": [_text("<system-reminder>Today is Monday.</system-reminder>"), _text("Read /a")],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I look at it.", "signature": "forebay"},
                    _text("I read it."),
                    called,
                ],
            },
            {
                "role": "user",
                "content": [result, _text("<system-reminder>Go on.</system-reminder>", **CACHED)],
            },
        ],
        "tools": tools,
        "metadata": {"user_id": "user_1_account__session_2"},
        "max_tokens": 32000,
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "temperature": 1,
        "stream": True,
        **fields,
    }


def _text(text, **fields):
    return {"type": "text", "text": text, **fields}
