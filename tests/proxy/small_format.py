"""A way to write thoughts and calls that is small enough to see through: brackets of four kinds."""

import re

from proxy.answer import Call, Text, Thought
from proxy.formats.format import Format

_PIECES = re.compile(
    r"<(?P<thought>[^>]*)>|\[(?P<name>\w+)(?P<arguments>\{.*?\})\]|(?P<text>[^<\[]+|.)", re.DOTALL
)


class SmallReader:
    """Reads `<thought>` and `[name{arguments}]`; all else is text. What is open is held back."""

    def __init__(self, calls):
        self._calls = calls
        self._held = ""

    @property
    def held_chars(self):
        return len(self._held)

    @property
    def is_thinking(self):
        return self._held.startswith("<")

    def feed(self, text):
        self._held += text
        pieces = []
        while self._held and (self._held[0] not in "<[" or self._ended()):
            pieces.append(self._next())
        return pieces

    def finish(self):
        rest, self._held = self._held, ""
        return [Text(rest)] if rest else []

    def _ended(self):
        return {"<": ">", "[": "]"}[self._held[0]] in self._held

    def _next(self):
        found = _PIECES.match(self._held)
        self._held = self._held[found.end() :]
        if found["thought"] is not None:
            return Thought(found["thought"])
        if found["name"] in self._calls:
            return Call(found["name"], found["arguments"])
        return Text(found[0])


SMALL = Format("small", lambda _thinks, tools: SmallReader({tool.name for tool in tools}))
