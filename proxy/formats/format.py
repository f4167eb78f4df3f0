"""What is known of a family's way to write: its marks, and who reads them out of a text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from proxy.answer import Piece, Text
from proxy.formats.lark import lark_text
from proxy.request import Tool


class Reader(Protocol):
    """Reads one answer's text, in whatever pieces it comes, and returns what is certain so far.

    What it returns over all depends on the whole text alone, not on where it was cut. Marks are in no piece;
    what begins like a call and isn't one, or is never ended, is Text as it was written.
    """

    @property
    def held_chars(self) -> int:
        """How many of the characters that came have not been decided about yet."""
        ...

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next belongs to a thought, as far as is known."""
        ...

    def feed(self, text: str) -> list[Piece]: ...
    def finish(self) -> list[Piece]: ...


MakeReader = Callable[[bool, Sequence[Tool]], Reader]


@dataclass(frozen=True, slots=True)
class Format:
    """A family's way to write, with one tokenizer's words.

    `marks` are special tokens that the reader has to see in the text, by their words; all others are not
    shown to it. `reader` makes a Reader; it is told whether the prompt has ended inside a thought, and the
    tools that may be called: without any, no calls are read. `thought` are the words around thoughts, empty
    where the family has none; the closing ones lead up to where a text or a call may begin. `text_begins` is
    what stands before a text. `call_begins` is the text with which calls begin, empty where it has none.

    For grammars: `call_rule` returns the right-hand side of a Lark rule, in llguidance's dialect, for one
    call with arguments as the tool's schema says; None where arguments can't be held to a schema. All calls
    of an answer stand between the texts `calls_around`, with `call_between` from one to the next, which is
    None where an answer makes one call at most. `lark` writes any text with marks in it as such a rule's
    terms. `words` are the tokenizer's added words, with their ids.
    """

    name: str
    reader: MakeReader
    marks: frozenset[str] = frozenset()
    thought: tuple[str, str] = ("", "")
    call_begins: str = ""
    text_begins: str = ""
    call_rule: Callable[[Tool], str] | None = None
    calls_around: tuple[str, str] = ("", "")
    call_between: str | None = None
    words: Mapping[str, int] = field(default_factory=dict)

    @property
    def thinks(self) -> bool:
        return bool(self.thought[0])

    @property
    def calls_tools(self) -> bool:
        return bool(self.call_begins)

    def lark(self, text: str) -> str:
        """Return the terms of a Lark rule that match exactly this text, its marks being single tokens."""
        return lark_text(text, self.words)


class PlainReader:
    """All is text."""

    held_chars = 0
    is_thinking = False

    def feed(self, text: str) -> list[Piece]:
        return [Text(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


PLAIN: Final = Format("plain", lambda _thinks, _tools: PlainReader())
