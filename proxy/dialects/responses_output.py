"""One answer as the output of a Response: pieces in, events out, and finished items kept as JSON.

An event is its type and the rest of its members, as JSON without braces: whoever sends it gives it a number.
A whole body is made of the items that the same events would have told of.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from proxy.answer import Call, EndReason, Piece, Text, Thought
from proxy.dialects.responses_items import sealed
from proxy.dialects.responses_shell import LOCAL_SHELL, SHELL_CALL, shell_action
from proxy.dialects.responses_tools import Called
from proxy.event_blocks import NO_LOGPROBS

Event = tuple[str, str]
Status = Literal["in_progress", "completed", "incomplete"]

encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(slots=True)
class _Growing:
    """What messages and thoughts have in common: one part, of text that comes bit by bit."""

    id: str
    index: int
    texts: list[str] = field(default_factory=list)

    @property
    def at(self) -> str:
        return f'"item_id":"{self.id}","output_index":{self.index},"content_index":0'

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(slots=True)
class _Message(_Growing):
    """`entries` are its log probabilities, as JSON, each a list's elements."""

    kind: type[Piece] = Text
    entries: list[str] = field(default_factory=list)

    def item(self, status: Status) -> str:
        content = "" if status == "in_progress" else self.part()
        return (
            f'{{"id":"{self.id}","type":"message","role":"assistant",'
            f'"status":"{status}","content":[{content}]}}'
        )

    def part(self, *, empty: bool = False) -> str:
        text, logprobs = ("", "") if empty else (self.text, ",".join(self.entries))
        return f'{{"type":"output_text","annotations":[],"logprobs":[{logprobs}],"text":{encode(text)}}}'

    def delta(self, text: str, logprobs: str) -> Event:
        self.texts.append(text)
        if logprobs:
            self.entries.append(logprobs)
        return "response.output_text.delta", f'{self.at},"delta":{encode(text)},"logprobs":[{logprobs}]'

    def done(self) -> Event:
        logprobs = ",".join(self.entries)
        return "response.output_text.done", f'{self.at},"text":{encode(self.text)},"logprobs":[{logprobs}]'


@dataclass(slots=True)
class _Reasoning(_Growing):
    """A thought; `seals` says that it is to be there a second time, as what clients take for encrypted."""

    kind: type[Piece] = Thought
    seals: bool = False

    def item(self, status: Status) -> str:
        content = "" if status == "in_progress" else self.part()
        encrypted = encode(sealed(self.text)) if self.seals and content else "null"
        return (
            f'{{"id":"{self.id}","type":"reasoning","summary":[],"content":[{content}],'
            f'"encrypted_content":{encrypted},"status":"{status}"}}'
        )

    def part(self, *, empty: bool = False) -> str:
        return f'{{"type":"reasoning_text","text":{encode("" if empty else self.text)}}}'

    def delta(self, text: str, logprobs: str) -> Event:  # noqa: ARG002 (_Message's signature)
        self.texts.append(text)
        return "response.reasoning_text.delta", f'{self.at},"delta":{encode(text)}'

    def done(self) -> Event:
        return "response.reasoning_text.done", f'{self.at},"text":{encode(self.text)}'


class Output:
    """Feed it the pieces of one answer, then its end. `items` are the finished ones, each as JSON.

    `mark` makes the items' ids unlike any other response's. Log probabilities that come while no text is
    open wait for the next one. `names` say what the client calls the tools; `seals` is for thoughts.
    """

    def __init__(self, mark: str, names: Mapping[str, Called], *, seals: bool) -> None:
        self._mark = mark
        self._names = names
        self._seals = seals
        self._open: _Message | _Reasoning | None = None
        self._waiting: list[str] = []
        self._answered = False
        self.items: list[str] = []

    def take(self, pieces: tuple[Piece, ...], logprobs: str = NO_LOGPROBS) -> Iterator[Event]:
        """Yield what pieces look like; `logprobs` is a JSON list, or null."""
        if logprobs not in (NO_LOGPROBS, "[]"):
            self._waiting.append(logprobs[1:-1])
        for piece in pieces:
            if isinstance(piece, Call):
                yield from self._close("completed")
                yield from self._call(piece)
            else:
                yield from self._grow(piece)
        if self._waiting and isinstance(self._open, _Message):
            yield self._open.delta("", self._due())

    def end(self, reason: EndReason) -> Iterator[Event]:
        """Yield what ends the answer. One that ended by itself and says nothing has an empty message."""
        yield from self._close("completed" if reason == "stop" else "incomplete")
        if reason == "stop" and not self._answered:
            yield from self._grow(Text(""))
            yield from self._close("completed")

    def _due(self) -> str:
        due, self._waiting = ",".join(self._waiting), []
        return due

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._mark}{len(self.items):04x}"

    def _grow(self, piece: Text | Thought) -> Iterator[Event]:
        if self._open is None or not isinstance(piece, self._open.kind):
            yield from self._close("completed")
            yield from self._begin(piece)
        assert self._open is not None, "it was just begun"
        if piece.text:
            yield self._open.delta(piece.text, self._due() if isinstance(piece, Text) else "")

    def _begin(self, piece: Text | Thought) -> Iterator[Event]:
        index = len(self.items)
        if isinstance(piece, Text):
            self._open = _Message(self._id("msg"), index)
            self._answered = True
        else:
            self._open = _Reasoning(self._id("rs"), index, seals=self._seals)
        yield _added(index, self._open.item("in_progress"))
        yield "response.content_part.added", f'{self._open.at},"part":{self._open.part(empty=True)}'

    def _close(self, status: Status) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        yield item.done()
        yield "response.content_part.done", f'{item.at},"part":{item.part()}'
        yield self._finished(item.index, item.item(status))

    def _finished(self, index: int, item: str) -> Event:
        self.items.append(item)
        return "response.output_item.done", f'"output_index":{index},"item":{item}'

    def _call(self, call: Call) -> Iterator[Event]:
        self._answered = True
        called = self._names.get(call.name) or Called(call.name)
        action = shell_action(call.arguments) if called.kind == LOCAL_SHELL else None
        if action is not None:
            yield from self._shell_call(action)
            return
        custom = called.kind == "custom"
        index, id_ = len(self.items), self._id("ctc" if custom else "fc")
        kind, field_ = ("custom_tool_call", "input") if custom else ("function_call", "arguments")
        said = _input_of(call.arguments) if custom else call.arguments
        item: dict[str, Any] = {
            "id": id_,
            "type": kind,
            "call_id": self._id("call"),
            "name": called.name,
            **({"namespace": called.namespace} if called.namespace else {}),
        }
        begun = {"status": "in_progress", field_: ""}
        yield _added(index, encode({**item, **begun}))
        at = f'"item_id":"{id_}","output_index":{index}'
        event = f"response.{'custom_tool_call_input' if custom else 'function_call_arguments'}"
        yield f"{event}.delta", f'{at},"delta":{encode(said)}'
        # OpenAI documents the name there for functions only.
        name = "" if custom else f'"name":{encode(called.name)},'
        yield f"{event}.done", f'{at},{name}"{field_}":{encode(said)}'
        yield self._finished(index, encode({**item, "status": "completed", field_: said}))

    def _shell_call(self, action: dict[str, Any]) -> Iterator[Event]:
        """Yield a command for the client's shell. No events are there for it to grow by: it comes whole."""
        index = len(self.items)
        item = {"id": self._id("lsh"), "type": SHELL_CALL, "call_id": self._id("call"), "action": action}
        yield _added(index, encode({**item, "status": "in_progress"}))
        yield self._finished(index, encode({**item, "status": "completed"}))


def _added(index: int, item: str) -> Event:
    return "response.output_item.added", f'"output_index":{index},"item":{item}'


def _input_of(arguments: str) -> str:
    """Return the text that a custom tool is called with; whatever else a model wrote is that text."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return arguments
    text = given.get("input") if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments
