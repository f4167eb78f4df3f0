"""What is known of a family's way to write: its marks, and who reads them out of a text."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from proxy.answer import Piece, Text


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


@dataclass(frozen=True, slots=True)
class Format:
    """A family's way to write.

    `marks` are special tokens that the reader has to see in the text, by their words; all others are not
    shown to it. `reader` makes a Reader; it is told whether the prompt has ended inside a thought. `thought`
    are the words around thoughts, empty where the family has none; `call_begins` is the text with which
    calls begin, empty where it has none.
    """

    name: str
    reader: Callable[[bool], Reader]
    marks: frozenset[str] = frozenset()
    thought: tuple[str, str] = ("", "")
    call_begins: str = ""


class PlainReader:
    """All is text."""

    held_chars = 0
    is_thinking = False

    def feed(self, text: str) -> list[Piece]:
        return [Text(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


PLAIN: Final = Format("plain", lambda _thinking: PlainReader())
