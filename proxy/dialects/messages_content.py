"""Anthropic's turns of blocks to messages as chat templates expect them.

What a user's turn holds may become several messages: each tool's result is one of its own, in the order in
which they came. Texts that stand side by side become one, with a blank line between them, except in an
assistant's turn: there a text goes on where the one before it was cut.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Final, Literal

from proxy.dialects.parts import Name
from proxy.fields import Fields, check
from shared.errors import InvalidRequest

_BETWEEN_TEXTS: Final = "\n\n"
_ERROR: Final = "Error: "
# A client's own note to its vendor, put at the head of its instructions and different every time: it says
# nothing to a model, and no prompt would begin like the one before.
_BILLING_NOTE: Final = "x-anthropic-billing-header:"
_MEDIA: Final = frozenset({"image", "document", "search_result", "container_upload", "browser_state"})

Message = dict[str, Any]
Role = Literal["user", "assistant", "system"]


class _Block(Fields):
    harmless: ClassVar[frozenset[str]] = frozenset({"type", "cache_control"})


class _TextBlock(_Block):
    harmless: ClassVar[frozenset[str]] = _Block.harmless | {"citations"}

    text: str


class _ThinkingBlock(_Block):
    harmless: ClassVar[frozenset[str]] = _Block.harmless | {"signature"}

    thinking: str


class _RedactedBlock(_Block):
    """Thoughts that only their author can read."""

    harmless: ClassVar[frozenset[str]] = _Block.harmless | {"data"}


class _CallBlock(_Block):
    harmless: ClassVar[frozenset[str]] = _Block.harmless | {"caller", "toolset_name"}

    id: str
    name: Name
    input: dict[str, Any]


class _ResultBlock(_Block):
    harmless: ClassVar[frozenset[str]] = _Block.harmless | {"toolset_name"}

    tool_use_id: str
    content: Any = ""
    is_error: bool = False


_TEXT: Final = {"text": _TextBlock}
_KINDS: Final[dict[str, dict[str, type[_Block]]]] = {
    "system": {**_TEXT},
    "user": {**_TEXT, "tool_result": _ResultBlock},
    "assistant": {
        **_TEXT,
        "thinking": _ThinkingBlock,
        "redacted_thinking": _RedactedBlock,
        "tool_use": _CallBlock,
    },
}


class _Message(Fields):
    role: Role
    content: Any


@dataclass(frozen=True, slots=True)
class _Placed:
    """A block with its place in the body."""

    block: _Block
    at: str


def conversation(system: Any, messages: Sequence[Any]) -> tuple[tuple[Message, ...], bool]:
    """Return a body's messages in templates' form, and whether the last one is an assistant's to go on with.

    Neighbouring turns of one role are one. Raises InvalidRequest, with the path of what is wrong.
    """
    turns = [("system", list(_system_blocks(system)))]
    for index, given in enumerate(messages):
        fields = check(_Message, given, f"messages.{index}")
        turns.append((fields.role, _blocks(fields.content, fields.role, f"messages.{index}.content")))
    writer = _Writer()
    for role, alike in groupby(turns, lambda turn: turn[0]):
        writer.add(role, [placed for _, blocks in alike for placed in blocks])
    continues = role == "assistant" and writer.settle_last(f"messages.{len(messages) - 1}")
    if not any(message["role"] != "system" for message in writer.messages):
        raise _refusal("messages", "must have a message of the user's")
    return tuple(writer.messages), continues


class _Writer:
    """Grows messages in templates' form, turn by turn."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._tools: dict[str, str] = {}  # a call's id → its tool's name

    def add(self, role: str, blocks: Sequence[_Placed]) -> None:
        if role == "assistant":
            self._assistant(blocks)
        elif role == "user":
            self._user(blocks)
        elif text := _joined(blocks):
            self.messages.append({"role": "system", "content": text})

    def settle_last(self, at: str) -> bool:
        """Return whether the last message, an assistant's, is gone on with; one that is empty is dropped."""
        last = self.messages[-1]
        if "tool_calls" in last:
            raise _refusal(at, "has calls, and no results follow; there is nothing to go on with")
        if not last["content"] and "reasoning_content" in last:
            raise _refusal(at, "is the last one and has thoughts only; there is nothing to go on with")
        if not last["content"]:
            self.messages.pop()
        return bool(last["content"])

    def _user(self, blocks: Sequence[_Placed]) -> None:
        for is_result, alike in groupby(blocks, lambda placed: isinstance(placed.block, _ResultBlock)):
            run = list(alike)
            if is_result:
                self.messages += map(self._result, run)
            elif (text := _joined(run)) or len(run) == len(blocks):
                self.messages.append({"role": "user", "content": text})

    def _result(self, placed: _Placed) -> Message:
        block = placed.block
        assert isinstance(block, _ResultBlock)
        if block.tool_use_id not in self._tools:
            raise _refusal(f"{placed.at}.tool_use_id", "is the id of no 'tool_use' block before it")
        text = _joined(_blocks(block.content or "", "system", f"{placed.at}.content"))
        return {
            "role": "tool",
            "tool_call_id": block.tool_use_id,
            "name": self._tools[block.tool_use_id],
            "content": _ERROR + text if block.is_error else text,
        }

    def _assistant(self, blocks: Sequence[_Placed]) -> None:
        given = [placed.block for placed in blocks]
        calls = [block for block in given if isinstance(block, _CallBlock)]
        thoughts = [block.thinking for block in given if isinstance(block, _ThinkingBlock) and block.thinking]
        message: Message = {"role": "assistant", "content": _said(given)}
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = [_call(block) for block in calls]
        self._tools |= {block.id: block.name for block in calls}
        self.messages.append(message)


def _call(block: _CallBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": block.input}
    return {"id": block.id, "type": "function", "function": function}


def _said(blocks: Sequence[_Block]) -> str:
    """Return an assistant's text: neighbours as they are, a blank line where something stood between."""
    runs = groupby(blocks, lambda block: isinstance(block, _TextBlock))
    texts = ("".join(each.text for each in run if isinstance(each, _TextBlock)) for _, run in runs)
    return _BETWEEN_TEXTS.join(filter(None, texts))


def _joined(blocks: Sequence[_Placed]) -> str:
    texts = (placed.block.text for placed in blocks if isinstance(placed.block, _TextBlock))
    return _BETWEEN_TEXTS.join(filter(None, texts))


def _system_blocks(system: Any) -> Iterator[_Placed]:
    for placed in _blocks(system, "system", "system"):
        assert isinstance(placed.block, _TextBlock)
        text = placed.block.text
        if text.startswith(_BILLING_NOTE):
            _, _, text = text.partition("\n")
        yield _Placed(_TextBlock(text=text), placed.at)


def _blocks(content: Any, role: str, at: str) -> list[_Placed]:
    """Return a content's blocks, checked: of the kinds that a role may have. A string is one of text."""
    if isinstance(content, str):
        blocks = [_Placed(_TextBlock(text=content), at)]
    elif isinstance(content, list):
        blocks = [_block(given, role, f"{at}.{index}") for index, given in enumerate(content)]
    else:
        raise _refusal(at, "must be a string or a list of blocks")
    if role == "user" and content in ("", []):
        raise _refusal(at, "must not be empty")
    return blocks


def _block(given: Any, role: str, at: str) -> _Placed:
    if not isinstance(given, dict):
        raise _refusal(at, "must be an object")
    kinds, type_ = _KINDS[role], given.get("type")
    if isinstance(type_, str) and type_ in kinds:
        return _Placed(check(kinds[type_], given, at), at)
    if isinstance(type_, str) and type_ in _MEDIA:
        raise _refusal(f"{at}.type", f"is '{type_}', and this model reads text only")
    raise _refusal(f"{at}.type", f"must be one of {', '.join(kinds)}")


def _refusal(at: str, predicate: str) -> InvalidRequest:
    return InvalidRequest(f"'{at}' {predicate}.", param=at)
