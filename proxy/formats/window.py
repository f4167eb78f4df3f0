"""The text that a reader has before it, and steps to read in it, which wait for more where they must.

A step is a generator: it yields when what came doesn't suffice to go on, and is resumed when more has come or
nothing more will. What it decides depends on the text alone, however that comes in pieces, since it decides
only by characters that are there, or by the text's end.
"""

import re
from collections.abc import Generator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

SPACE: Final = " \t\r\n"
_SPACES: Final = re.compile(r"[ \t\r\n]*")


class NotACallError(Exception):
    """What began like a call isn't one."""


class Window:
    """Text that came and isn't read yet; and, since `mark`, the text that is read and not decided about.

    Reading takes what it can before it waits, so that what is carried from piece to piece stays shorter than
    the longest word looked for, and the work linear in the text.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self._marked = 0
        self._parts: list[str] = []
        self._parts_chars = 0

    @property
    def held_chars(self) -> int:
        return self._parts_chars + len(self.text) - self._marked

    def add(self, text: str) -> None:
        if self.at > self._marked:
            self._parts.append(self.text[self._marked : self.at])
            self._parts_chars += self.at - self._marked
        self.text = self.text[self.at :] + text
        self.at = self._marked = 0

    def mark(self) -> None:
        """Take all that is read so far as decided about."""
        self._parts.clear()
        self._parts_chars = 0
        self._marked = self.at

    def written(self) -> str:
        """Return what was read since the last mark, as it was written."""
        return "".join((*self._parts, self.text[self._marked : self.at]))

    def taken(self) -> str:
        """Return the same, and mark."""
        text = self.written()
        self.mark()
        return text

    def peek(self) -> Steps[str]:
        """Return the next character; "" at the end."""
        while self.at == len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at]

    def word(self, words: Sequence[str]) -> Steps[str]:
        """Read the one of these words that the text goes on with; return "" and read nothing if none does.

        No word may begin another one.
        """
        while True:
            for word in words:
                if self.text.startswith(word, self.at):
                    self.at += len(word)
                    return word
            left = len(self.text) - self.at
            if self.ended or not any(
                left < len(word) and self.text.startswith(word[:left], self.at) for word in words
            ):
                return ""
            yield

    def need(self, *words: str) -> Steps[str]:
        """Read one of these words, or raise NotACallError."""
        found = yield from self.word(words)
        if not found:
            raise NotACallError
        return found

    def run(self, pattern: re.Pattern[str], chars_max: int | None = None) -> Steps[str]:
        """Read and return the longest run of a class of characters; NotACallError if it is longer than that.

        `pattern` is the class with a star.
        """
        parts: list[str] = []
        chars = 0
        while True:
            room = len(self.text) if chars_max is None else chars_max + 1 - chars
            found = pattern.match(self.text, self.at, self.at + room)
            if found is not None and found.end() > self.at:
                parts.append(found.group())
                chars += found.end() - self.at
                self.at = found.end()
            if chars_max is not None and chars > chars_max:
                raise NotACallError
            if self.at < len(self.text) or self.ended:
                return "".join(parts)
            yield

    def rush(self, pattern: re.Pattern[str]) -> None:
        """Read as much of a class of characters as is there."""
        found = pattern.match(self.text, self.at)
        self.at = self.at if found is None else found.end()

    def space(self) -> Steps[str]:
        return (yield from self.run(_SPACES))

    def until(self, word: str) -> Steps[str]:
        """Read up to a word and over it; return what is before it. NotACallError if it never comes."""
        parts: list[str] = []
        while True:
            found = self.text.find(word, self.at)
            end = found if found >= 0 else max(self.at, len(self.text) - len(word) + 1)
            parts.append(self.text[self.at : end])
            self.at = end
            if found >= 0:
                self.at += len(word)
                return "".join(parts)
            if self.ended:
                self.at = len(self.text)
                raise NotACallError
            yield
