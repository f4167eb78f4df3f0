"""A reader for families that put marks around thoughts and before calls."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from proxy.answer import Call, Piece, Text, Thought, joined
from proxy.formats.window import SPACE, NotACallError, Steps, Window
from proxy.request import Tool

# Reads what follows a mark that begins calls. NotACallError if that isn't any.
ReadCalls = Callable[[Window, Sequence[Tool]], Steps[list[Call]]]
# Where a mark is one: anywhere, where no text has come before it, or right behind a call.
Where = Literal["anywhere", "first", "behind a call"]
_After = Literal["nothing", "thought", "call", "text"]


@dataclass(frozen=True, slots=True)
class Begin:
    """A word with which calls begin, and who reads them from there on."""

    word: str
    read: ReadCalls
    where: Where = "anywhere"


@dataclass(frozen=True, slots=True)
class Marks:
    """A family's marks. `thought` are the two around thoughts; empty for none.

    `more` reads a call that stands behind another one without a mark before it.

    With `lines` a thought's marks count at the beginning of a line only: they may be written in plain
    characters, too, and so inside a text that is about them.
    """

    begins: tuple[Begin, ...] = ()
    thought: tuple[str, str] = ("", "")
    lines: bool = True
    more: ReadCalls | None = None


class SteppedReader:
    """What readers have in common that read by steps: `_read` is the whole way through an answer."""

    def __init__(self) -> None:
        self.is_thinking = False
        self._window = Window()
        self._pieces: list[Piece] = []
        self._steps: Steps[None] | None = self._read()

    @property
    def held_chars(self) -> int:
        return self._window.held_chars

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        self._window.add(text)
        return self._advance()

    def finish(self) -> list[Piece]:
        self._window.ended = True
        return self._advance()

    def _advance(self) -> list[Piece]:
        if self._steps is not None:
            for _ in self._steps:
                break
            if self._window.ended:
                self._steps = None
        pieces, self._pieces = list(joined(self._pieces)), []
        return pieces

    def _read(self) -> Steps[None]:
        raise NotImplementedError

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(Thought(text) if self.is_thinking else Text(text))


class MarkedReader(SteppedReader):
    """Reads one answer by a family's marks. White space beside thoughts and calls belongs to neither."""

    def __init__(self, marks: Marks, thinks: bool, tools: Sequence[Tool]) -> None:
        super().__init__()
        self.is_thinking = thinks
        self._more = marks.more  # behind calls only: without tools there are none
        self._begins = {begin.word: begin for begin in marks.begins} if tools else {}
        self._opens, self._closes = marks.thought
        self._lines = marks.lines
        self._tools = tools
        self._words = tuple(word for word in (*self._begins, *marks.thought) if word)
        self._no_mark = _but(self._words)
        self._no_close = _but((self._closes,))
        self._after: _After = "nothing"

    def _read(self) -> Steps[None]:
        if self.is_thinking:
            yield from self._thought()
        window = self._window
        while True:
            window.mark()
            blank = yield from window.space()
            word = yield from window.word(self._words)
            if word and self._counts(word, blank):
                yield from self._marked(word)
                continue
            if not word:
                ended = not (yield from window.peek())
                if ended:
                    self._say_text(window.taken(), len(blank))
                    return
                if self._more is not None and self._after == "call":
                    yield from self._calls(self._more)
                    continue
                window.at += 1
            window.rush(self._no_mark)
            self._say_text(window.taken(), len(blank))

    def _say_text(self, text: str, blank_chars: int) -> None:
        """Say a text that begins with so much white space, which isn't said beside a thought or a call."""
        said = text if self._after in ("nothing", "text") else text[blank_chars:]
        if said:
            self._after = "text"
            self._say(said)

    def _counts(self, word: str, blank: str) -> bool:
        """Whether a mark is one where it stands, behind so much white space."""
        begin = self._begins.get(word)
        if begin is None:
            return not self._lines or self._after != "text" or "\n" in blank
        match begin.where:
            case "anywhere":
                return True
            case "first":
                return self._after in ("nothing", "thought")
            case "behind a call":
                return self._after == "call"

    def _marked(self, word: str) -> Steps[None]:
        """Read what a mark begins. The close of a thought that never began is dropped."""
        begin = self._begins.get(word)
        if begin is not None:
            yield from self._calls(begin.read)
        elif word == self._opens:
            self.is_thinking = True
            yield from self._thought()
        else:
            self._after = "thought"

    def _calls(self, read: ReadCalls) -> Steps[None]:
        try:
            calls = yield from read(self._window, self._tools)
        except NotACallError:
            text = self._window.taken()
            self._say_text(text, len(text) - len(text.lstrip(SPACE)))
            self._after = "text"  # even where nothing of it is said: no other call is looked for here
        else:
            self._pieces += calls
            self._after = "call"

    def _thought(self) -> Steps[None]:
        """Read a thought up to its end. Its opening may be there once more, if the prompt had it."""
        window = self._window
        yield from window.space()
        yield from window.word((self._opens,))
        yield from window.space()
        while True:
            window.mark()
            yield from window.space()
            if (yield from window.word((self._closes,))):
                break
            if not (yield from window.peek()):
                self._say(window.taken())
                return
            window.at += 1
            window.rush(self._no_close)
            self._say(window.taken())
        self.is_thinking = False
        self._after = "thought"


def _but(words: Sequence[str]) -> re.Pattern[str]:
    """Return the class of all characters but white space and those that begin one of these words."""
    firsts = re.escape("".join({word[0] for word in words if word}))
    return re.compile(f"[^ \\t\\r\\n{firsts}]*")
