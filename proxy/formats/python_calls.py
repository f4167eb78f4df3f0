"""Calls as LFM2 writes them: [name(key=value, …), …], with values as Python writes literals.

Nothing is evaluated: strings, numbers, lists and dictionaries are read by hand, as deep as JSON may be.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from proxy.answer import Call
from proxy.formats.json_calls import read_listed
from proxy.formats.json_text import NUMBER, call_of, read_name
from proxy.formats.window import NotACallError, Steps, Window
from proxy.request import Tool
from shared.limits import BODY_DEPTH_MAX, NAME_CHARS_MAX

LFM_BEGINS: Final = "<|tool_call_start|>"
LFM_ENDS: Final = "<|tool_call_end|>"

_KEYWORD: Final = re.compile(r"[A-Za-z0-9_]*")
_BARE: Final = re.compile(r"[-+.0-9A-Za-z]*")
_BARE_CHARS_MAX: Final = 1024
_PLAIN: Final = {quote: re.compile(f"[^{quote}\\\\]*") for quote in "\"'"}
# JSON's words too: models mix them up.
_WORDS: Final = {word: word.lower() for word in ("True", "False", "true", "false", "null")} | {"None": "null"}
_CLOSERS: Final = {"{": "}", "[": "]", "(": ")"}
_ESCAPES: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\s\S]))")
_ESCAPED: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "0": "\0",
    "\n": "",
    "\\": "\\",
    "'": "'",
    '"': '"',
}


def lfm_calls(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:  # noqa: ARG001 (ReadCalls)
    """Read a list of calls up to the mark behind it; or of JSON objects, which prompts may ask for."""
    yield from window.space()
    yield from window.need("[")
    yield from window.space()
    named = (yield from window.peek()) != "{"
    calls = yield from (_calls(window) if named else read_listed(window))
    yield from window.space()
    yield from window.need(LFM_ENDS)
    return calls


def _calls(window: Window) -> Steps[list[Call]]:
    calls: list[Call] = []
    while True:
        yield from window.space()
        name = yield from read_name(window)
        yield from window.need("(")
        calls.append(call_of(name, (yield from _arguments(window))))
        yield from window.space()
        if (yield from window.need(",", "]")) == "]":
            return calls


def _arguments(window: Window) -> Steps[str]:
    """Read arguments, which all have a name, up to the bracket behind them; return them as JSON."""
    values: dict[str, str] = {}
    while True:
        yield from window.space()
        if (yield from window.word((")",))):
            break
        key = yield from window.run(_KEYWORD, NAME_CHARS_MAX)
        yield from window.space()
        yield from window.need("=")
        if not key or key in values:
            raise NotACallError
        values[key] = yield from _value(window, 1)
        yield from window.space()
        if (yield from window.need(",", ")")) == ")":
            break
    return _object(f'"{key}": {value}' for key, value in values.items())


def _object(pairs: Iterable[str]) -> str:
    return "{" + ", ".join(pairs) + "}"


def _value(window: Window, depth: int) -> Steps[str]:
    """Read a literal; return it as JSON."""
    yield from window.space()
    char = yield from window.peek()
    if char in _PLAIN:
        return json.dumps((yield from _string(window)), ensure_ascii=False)
    if char in _CLOSERS:
        return (yield from _several(window, depth))
    text = yield from window.run(_BARE, _BARE_CHARS_MAX)
    if text in _WORDS:
        return _WORDS[text]
    if not NUMBER.fullmatch(text):
        raise NotACallError
    return text


def _several(window: Window, depth: int) -> Steps[str]:
    """Read a dictionary, a list, or a tuple, which is a list; the last comma may have nothing behind it."""
    if depth == BODY_DEPTH_MAX:
        raise NotACallError
    opened = yield from window.need(*_CLOSERS)
    closer = _CLOSERS[opened]
    parts: list[str] = []
    while True:
        yield from window.space()
        if (yield from window.word((closer,))):
            break
        key = (yield from _key(window)) if opened == "{" else ""
        parts.append(key + (yield from _value(window, depth + 1)))
        yield from window.space()
        if (yield from window.need(",", closer)) == closer:
            break
    return _object(parts) if opened == "{" else "[" + ", ".join(parts) + "]"


def _key(window: Window) -> Steps[str]:
    key = json.dumps((yield from _string(window)), ensure_ascii=False)
    yield from window.space()
    yield from window.need(":")
    return f"{key}: "


def _string(window: Window) -> Steps[str]:
    """Read a string in quotes of either kind; lines may break in it, since models let them."""
    quote = yield from window.need(*_PLAIN)
    parts: list[str] = []
    while True:
        parts.append((yield from window.run(_PLAIN[quote])))
        if (yield from window.need(quote, "\\")) == quote:
            return _unescaped("".join(parts))
        char = yield from window.peek()
        if not char:
            raise NotACallError
        window.at += 1
        parts.append("\\" + char)


def _unescaped(text: str) -> str:
    """Return what a string's text means. Halves of a pair, as JSON writes one character, are put together."""
    if "\\" not in text:
        return text
    try:
        said = _ESCAPES.sub(_meant, text)
        return said.encode("utf-16", "surrogatepass").decode("utf-16")
    except ValueError as problem:
        raise NotACallError from problem


def _meant(found: re.Match[str]) -> str:
    """Return what one escape means. Python leaves those that it doesn't know as they are."""
    number = found[1] or found[2] or found[3]
    return chr(int(number, 16)) if number else _ESCAPED.get(found[4], found[0])
