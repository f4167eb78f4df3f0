"""What answers are made of, whatever the model's format and the client's dialect are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

EndReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Text:
    """What the client's user reads."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """What the model says to itself before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call of one of the client's tools; `arguments` are a JSON object, as the model wrote it."""

    name: str
    arguments: str


Piece = Text | Thought | Call


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished answer; neighbours of one kind are one piece. `stop` is the stop string that ended it."""

    pieces: tuple[Piece, ...]
    reason: EndReason
    stop: str | None = None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Text))

    @property
    def thought(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Thought))

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Call))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request: each prompt counts once, every answer's tokens count.

    `cached_tokens` are those of the prompts' tokens that were there already; `thought_tokens` are those of
    the answers' tokens that were thoughts.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    thought_tokens: int = 0


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield pieces with neighbouring texts put together, and neighbouring thoughts."""
    for kind, alike in groupby(pieces, type):
        if kind is Call:
            yield from alike
        else:
            yield kind("".join(piece.text for piece in alike if not isinstance(piece, Call)))


def chars_of(piece: Piece) -> int:
    return len(piece.name) + len(piece.arguments) if isinstance(piece, Call) else len(piece.text)
