"""Items of /v1/responses: a conversation's input checked one by one, and put into a chat template's form.

An item is a plain object in the API's own form, flattened to text: so it is stored, listed, and turned into
messages by the same rules whether it has just come or was stored long ago.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from proxy.dialects.parts import arguments_of, text_of
from proxy.dialects.responses_shell import LOCAL_SHELL, SHELL_CALL, SHELL_OUTPUT, ShellAction, shell_arguments
from proxy.fields import Fields, problem
from shared.errors import InvalidRequest
from shared.limits import ITEM_ID_CHARS_MAX, TOOL_NAME_CHARS_MAX

Item = dict[str, Any]
Message = dict[str, Any]

_TEXTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
# What clients send back when they append an answer to the conversation as they got it.
_PART_EXTRAS: Final = frozenset({"annotations", "logprobs", "parsed", "prompt_cache_breakpoint"})
_ITEM_EXTRAS: Final = frozenset({"type", "status", "phase", "caller", "created_by", "parsed_arguments"})
# Begins what stands in for an encrypted thought: the thought itself, for clients that send nothing else back.
_SEALED: Final = "forebay:"
_PREFIXES: Final[Mapping[str, str]] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    SHELL_CALL: "lsh",
    SHELL_OUTPUT: "lsho",
}

_Id = Annotated[str, Field(min_length=1, max_length=ITEM_ID_CHARS_MAX)]
_Called = Annotated[str, Field(min_length=1, max_length=TOOL_NAME_CHARS_MAX)]


def _text(value: Any) -> str:
    return text_of(value, _TEXTS, _PART_EXTRAS)


_PARTS: Final = {"type": "array", "items": {"type": "object", "required": ["type"]}, "minItems": 1}
_Content = Annotated[str, PlainValidator(_text), WithJsonSchema({"anyOf": [{"type": "string"}, _PARTS]})]


class _Fields(Fields):
    """One kind of item; `item` is its form here."""

    harmless: ClassVar[frozenset[str]] = _ITEM_EXTRAS

    id: str = Field("", max_length=ITEM_ID_CHARS_MAX)

    @property
    def item(self) -> Item:
        raise NotImplementedError

    def _item(self, kind: str, **fields: Any) -> Item:
        return {"type": kind, "id": self.id, "status": "completed", **fields}


class _Message(_Fields):
    role: Literal["user", "assistant", "system", "developer"]
    content: _Content

    @property
    def item(self) -> Item:
        if self.role == "assistant":
            part: Item = {"type": "output_text", "text": self.content, "annotations": []}
        else:
            part = {"type": "input_text", "text": self.content}
        return self._item("message", role=self.role, content=[part])


class _Thought(Fields):
    harmless: ClassVar[frozenset[str]] = frozenset({"type"})

    text: str


class _Reasoning(_Fields):
    """A thought given back. What another server encrypted can't be read, and a summary is no thought."""

    harmless: ClassVar[frozenset[str]] = _ITEM_EXTRAS | {"summary"}

    content: list[_Thought] = Field([])
    encrypted_content: str = ""

    @property
    def item(self) -> Item:
        text = "".join(each.text for each in self.content) or unsealed(self.encrypted_content)
        content = [{"type": "reasoning_text", "text": text}] if text else []
        return self._item("reasoning", summary=[], content=content)


class _FunctionCall(_Fields):
    call_id: _Id
    name: _Called
    namespace: str = Field("", max_length=TOOL_NAME_CHARS_MAX)
    arguments: str

    @property
    def item(self) -> Item:
        space = {"namespace": self.namespace} if self.namespace else {}
        return self._item(
            "function_call", call_id=self.call_id, name=self.name, arguments=self.arguments, **space
        )


class _CustomCall(_Fields):
    call_id: _Id
    name: _Called
    namespace: str = Field("", max_length=TOOL_NAME_CHARS_MAX)
    input: str

    @property
    def item(self) -> Item:
        space = {"namespace": self.namespace} if self.namespace else {}
        return self._item("custom_tool_call", call_id=self.call_id, name=self.name, input=self.input, **space)


class _Output(_Fields):
    harmless: ClassVar[frozenset[str]] = _ITEM_EXTRAS | {"name", "namespace"}

    call_id: _Id
    output: _Content

    @property
    def item(self) -> Item:
        return self._item("function_call_output", call_id=self.call_id, output=self.output)


class _CustomOutput(_Output):
    @property
    def item(self) -> Item:
        return self._item("custom_tool_call_output", call_id=self.call_id, output=self.output)


class _ShellCall(_Fields):
    """A command that was called for. One without a call's id is called by its own."""

    call_id: str = Field("", max_length=ITEM_ID_CHARS_MAX)
    action: ShellAction

    @property
    def item(self) -> Item:
        call_id = self.call_id or self.id
        if not call_id:
            raise problem("is required", "call_id")
        return self._item(SHELL_CALL, call_id=call_id, action=self.action.shown)


class _ShellOutput(_Fields):
    """What a command printed. OpenAI's types say which by `id`, others by `call_id` as everywhere else.

    An item's own id is unlike any other's: where it is the call's, the item gets another one.
    """

    call_id: str = Field("", max_length=ITEM_ID_CHARS_MAX)
    output: _Content

    @property
    def item(self) -> Item:
        call_id = self.call_id or self.id
        if not call_id:
            raise problem("is required", "call_id")
        item = self._item(SHELL_OUTPUT, call_id=call_id, output=self.output)
        return item if self.call_id else {**item, "id": ""}


class _Reference(_Fields):
    id: _Id

    @property
    def item(self) -> Item:
        return {"type": "item_reference", "id": self.id}


_KINDS: Final[Mapping[str, type[_Fields]]] = {
    "message": _Message,
    "reasoning": _Reasoning,
    "function_call": _FunctionCall,
    "function_call_output": _Output,
    "custom_tool_call": _CustomCall,
    "custom_tool_call_output": _CustomOutput,
    SHELL_CALL: _ShellCall,
    SHELL_OUTPUT: _ShellOutput,
    "item_reference": _Reference,
}


def checked_item(value: Any) -> Item:
    """Return one element of `input` in its form here. Raises a field's problem."""
    if not isinstance(value, dict):
        raise problem("must be an object")
    # Two kinds may leave their type out: a message has a role, a reference has nothing but an id.
    kind = value.get("type") or ("item_reference" if value.keys() == {"id"} else "message")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise problem(f"must be one of {', '.join(_KINDS)}: this server takes no other items", "type")
    return _KINDS[kind].model_validate(value).item


InputItem = Annotated[
    Item,
    PlainValidator(checked_item),
    WithJsonSchema({"type": "object", "properties": {"type": {"type": "string", "enum": list(_KINDS)}}}),
]


def sealed(thought: str) -> str:
    """Return a thought as what clients take for encrypted: those that keep nothing else give it back."""
    return _SEALED + base64.b64encode(thought.encode()).decode()


def unsealed(text: str) -> str:
    """Return the thought, or nothing for what isn't ours."""
    if not text.startswith(_SEALED):
        return ""
    try:
        return base64.b64decode(text[len(_SEALED) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def named(items: Sequence[Item], mark: str) -> list[Item]:
    """Return items that all have an id; `mark` makes those that are given here unlike any other's."""
    return [
        item if item.get("id") else {**item, "id": f"{_PREFIXES[item['type']]}_{mark}{index:04x}"}
        for index, item in enumerate(items)
    ]


def function_name(namespace: str, name: str) -> str:
    """Return what a function of a namespace is called where there are no namespaces."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def messages_of(items: Sequence[Item], instructions: str, past: int = 0) -> tuple[Message, ...]:
    """Return a conversation as messages. InvalidRequest for an output of a call that isn't there.

    The first `past` items aren't this request's. What an assistant thinks, says and calls one after the other
    is one message, as its answer was. Instructions, and messages of that kind at the beginning, are one:
    many templates have a place for one only.
    """
    messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    called: dict[
        str, tuple[str, str]
    ] = {}  # ids by which outputs name a call: its own, and the function's name
    for index, item in enumerate(items):
        match item["type"]:
            case "message":
                _add_text(messages, item)
            case "reasoning":
                _add_thought(messages, item)
            case "function_call" | "custom_tool_call":
                called[item["call_id"]] = item["call_id"], _add_call(messages, item)
            case "local_shell_call":
                ids = (item["call_id"], _add_call(messages, item))
                called |= {item["id"]: ids, item["call_id"]: ids}
            case _:
                if item["call_id"] not in called:
                    raise _no_call(item["call_id"], index - past)
                messages.append(_result(item, *called[item["call_id"]]))
    return tuple(messages)


def _result(item: Item, call_id: str, name: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": item["output"]}


def _no_call(call_id: str, index: int) -> InvalidRequest:
    param = f"input.{index}.call_id"
    return InvalidRequest(f"'{param}' names '{call_id}', which is no call before it.", param=param)


def _add_text(messages: list[Message], item: Item) -> None:
    role = "system" if item["role"] == "developer" else item["role"]
    text = item["content"][0]["text"]
    last = messages[-1] if messages else None
    if role == "assistant" and last is not None and _only_thinks(last):
        last["content"] = text
    elif role == "system" and last is not None and len(messages) == 1 and last["role"] == "system":
        last["content"] += f"\n\n{text}"
    else:
        messages.append({"role": role, "content": text})


def _add_thought(messages: list[Message], item: Item) -> None:
    text = "".join(part["text"] for part in item.get("content") or ())
    last = messages[-1] if messages else None
    if not text:
        return
    if last is not None and _only_thinks(last):
        last["reasoning_content"] += text
    else:
        messages.append({"role": "assistant", "content": "", "reasoning_content": text})


def _only_thinks(message: Message) -> bool:
    thinks = message["role"] == "assistant" and "reasoning_content" in message
    return thinks and not message["content"] and "tool_calls" not in message


def _add_call(messages: list[Message], item: Item) -> str:
    """Add a call to the assistant's message that comes before it; return the function's name."""
    name, arguments = _call(item)
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    calls = messages[-1].setdefault("tool_calls", [])
    function = {"name": name, "arguments": arguments}
    calls.append({"id": item["call_id"], "type": "function", "function": function})
    return name


def _call(item: Item) -> tuple[str, dict[str, Any]]:
    """Return what a model called for this, and with which arguments."""
    if item["type"] == SHELL_CALL:
        return LOCAL_SHELL, shell_arguments(item["action"])
    name = function_name(item.get("namespace", ""), item["name"])
    if item["type"] == "custom_tool_call":
        return name, {"input": item["input"]}
    return name, arguments_of(item["arguments"])


def decoded_items(items: Sequence[bytes]) -> list[Item]:
    return [json.loads(item) for item in items]
