"""A reader for gpt-oss's messages: each with a header that says which channel and whom it is for."""

import re
from collections.abc import Sequence
from typing import Final

from proxy.answer import Call, Text
from proxy.formats.json_text import call_of, read_arguments
from proxy.formats.marked import SteppedReader
from proxy.formats.window import NotACallError, Steps
from proxy.request import Tool

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
CONSTRAIN: Final = "<|constrain|>"
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>")
HARMONY_MARKS: Final = (START, CHANNEL, MESSAGE, CONSTRAIN, *_ENDS)
_TO: Final = "to=functions."
_RECIPIENT: Final = re.compile(re.escape(_TO) + r"([A-Za-z0-9_.-]+)")
_ANALYSIS: Final = re.compile(re.escape(CHANNEL) + r"\s*analysis\b")
_PLAIN: Final = re.compile(r"[^<]*")
_FLOWING: Final = re.compile(r"[^< \t\r\n]*")
_HEADER_CHARS_MAX: Final = 512
_BETWEEN_TEXTS: Final = "\n\n"


class HarmonyReader(SteppedReader):
    """Reads one answer's messages.

    The analysis channel's are thoughts. Those for a function are calls, if their content is a JSON object,
    and text as written otherwise. All others are text, and so is what has no header; an empty line parts two.
    """

    def __init__(self, thinks: bool, tools: Sequence[Tool]) -> None:
        super().__init__()
        self.is_thinking = thinks
        self._headers = (START, CHANNEL, MESSAGE, _TO) if tools else (START, CHANNEL, MESSAGE)
        self._calls = bool(tools)
        self._said_before = False  # something, in a message before the present one
        self._said = False

    def _read(self) -> Steps[None]:
        if self.is_thinking:
            yield from self._body()
        window = self._window
        while True:
            self.is_thinking = False
            self._said_before = self._said
            window.mark()
            yield from window.space()
            # Only the first header may begin with whom it is for: the prompt has its start.
            begins = yield from window.word(self._headers)
            self._headers = (START, CHANNEL, MESSAGE)
            if begins:
                yield from self._message(complete=begins == MESSAGE)
            elif not (yield from window.word(HARMONY_MARKS)):
                if not (yield from window.peek()):
                    return
                yield from self._body()

    def _message(self, *, complete: bool) -> Steps[None]:
        """Read a message from its header's first mark on. A header cut off is dropped, but for a call's."""
        window = self._window
        try:
            yield from self._header(complete=complete)
        except NotACallError:
            cut_off = window.ended and window.at == len(window.text)
            header = window.taken()
            if not cut_off or (self._calls and _TO in header):
                self._say_text(header)
                yield from self._body()
            return
        header = window.written()
        recipient = _RECIPIENT.search(header) if self._calls else None
        if recipient is not None:
            yield from self._call(recipient.group(1))
            return
        window.mark()
        self.is_thinking = _ANALYSIS.search(header) is not None
        yield from self._body()

    def _header(self, *, complete: bool) -> Steps[None]:
        """Read up to where the content begins."""
        chars = 0
        while not complete:
            chars += len((yield from self._window.run(_PLAIN, _HEADER_CHARS_MAX - chars)))
            complete = (yield from self._window.need(CHANNEL, CONSTRAIN, MESSAGE)) == MESSAGE

    def _call(self, name: str) -> Steps[None]:
        try:
            call = yield from self._only_arguments(name)
        except NotACallError:
            self._say_text(self._window.taken())
            yield from self._body()
        else:
            self._pieces.append(call)

    def _only_arguments(self, name: str) -> Steps[Call]:
        """Read a call's content: its arguments and nothing else."""
        window = self._window
        yield from window.space()
        call = call_of(name, (yield from read_arguments(window)))
        yield from window.space()
        if (yield from self._message_ends()):
            return call
        raise NotACallError

    def _message_ends(self) -> Steps[bool]:
        """Whether a mark comes next, or nothing at all. The mark isn't read."""
        window = self._window
        mark = yield from window.word(HARMONY_MARKS)
        window.at -= len(mark)
        return bool(mark) or not (yield from window.peek())

    def _body(self) -> Steps[None]:
        """Read a message's content, a thought or text. White space around a thought is no part of it."""
        window = self._window
        if self.is_thinking:
            yield from window.space()
            window.mark()
        while True:
            if self.is_thinking:
                yield from window.space()
            if (yield from self._message_ends()):
                break
            window.at += 1
            window.rush(_FLOWING if self.is_thinking else _PLAIN)
            self._say_text(window.taken())
        if not self.is_thinking:
            self._say_text(window.taken())

    def _say_text(self, text: str) -> None:
        if not text or self.is_thinking:
            self._say(text)
            return
        if self._said_before:
            self._pieces.append(Text(_BETWEEN_TEXTS))
        self._said_before = False
        self._said = True
        self._say(text)
