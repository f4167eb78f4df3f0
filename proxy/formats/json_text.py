"""JSON out of a text that comes in pieces: one value, as it was written, and calls that are JSON objects."""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from proxy.answer import Call
from proxy.formats.window import NotACallError, Steps, Window
from proxy.request import Tool
from shared.limits import BODY_DEPTH_MAX, NAME_CHARS_MAX

_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]*")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR: Final = re.compile(r"[-+.0-9A-Za-z]*")
NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ESCAPED: Final = re.compile(r'["\\/bfnrt]|u[0-9a-fA-F]{4}')
_SCALAR_CHARS_MAX: Final = 1024
_CLOSERS: Final = {"{": "}", "[": "]"}
_ENVELOPE: Final = frozenset({"name", "arguments", "parameters", "type", "id"})


def sound_json(text: str) -> Any:
    """Return a text's JSON value; ValueError for what isn't JSON, or has no form that others take.

    That is half of a surrogate pair, a number beyond a float, one of thousands of digits, or deep nesting.
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError as problem:
        raise ValueError("nested too deep") from problem
    return value


def call_of(name: str, arguments: str) -> Call:
    """Return a call. NotACallError unless the name is one and the arguments are a JSON object."""
    if not 0 < len(name) <= NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise NotACallError
    try:
        content = sound_json(arguments)
    except ValueError as problem:
        raise NotACallError from problem
    if not isinstance(content, dict):
        raise NotACallError
    return Call(name, arguments)


def read_name(window: Window) -> Steps[str]:
    """Read a function's name; NotACallError if there is none."""
    name = yield from window.run(_NAME, NAME_CHARS_MAX)
    if not name:
        raise NotACallError
    return name


def read_string(window: Window) -> Steps[str]:
    """Read a JSON string; return it with its quotes."""
    parts = [(yield from window.need('"'))]
    while True:
        parts.append((yield from window.run(_PLAIN)))
        mark = yield from window.need('"', "\\")
        if mark == '"':
            return "".join((*parts, mark))
        parts.append(mark + (yield from _escaped(window)))


def _escaped(window: Window) -> Steps[str]:
    kind = yield from window.peek()
    chars = 5 if kind == "u" else 1
    while len(window.text) - window.at < chars and not window.ended:
        yield
    found = _ESCAPED.match(window.text, window.at)
    if found is None:
        raise NotACallError
    window.at = found.end()
    return found.group()


def read_value(window: Window) -> Steps[str]:
    """Read one JSON value, strictly; return it as it was written."""
    parts: list[str] = []
    closers: list[str] = []  # of what is open, the innermost last
    while True:
        opened = yield from _begin(window, parts, closers)
        if opened:
            continue
        while closers:
            parts.append((yield from window.space()))
            mark = yield from window.need(",", closers[-1])
            parts.append(mark)
            if mark == ",":
                yield from _key(window, parts, closers)
                break
            closers.pop()
        else:
            return "".join(parts)


def _begin(window: Window, parts: list[str], closers: list[str]) -> Steps[bool]:
    """Read a scalar, an empty object or list, or the opening of one up to its first value: then True."""
    char = yield from window.peek()
    if char == '"':
        parts.append((yield from read_string(window)))
        return False
    if char not in _CLOSERS:
        parts.append((yield from _scalar(window)))
        return False
    if len(closers) == BODY_DEPTH_MAX:
        raise NotACallError
    window.at += 1
    parts.append(char + (yield from window.space()))
    closer = _CLOSERS[char]
    if (yield from window.word((closer,))):
        parts.append(closer)
        return False
    closers.append(closer)
    yield from _key(window, parts, closers)
    return True


def _key(window: Window, parts: list[str], closers: list[str]) -> Steps[None]:
    """Read up to where a value must begin: in an object, a key and its colon."""
    parts.append((yield from window.space()))
    if closers[-1] == "}":
        parts.append((yield from read_string(window)))
        parts.append((yield from window.space()))
        parts.append((yield from window.need(":")))
        parts.append((yield from window.space()))


def _scalar(window: Window) -> Steps[str]:
    text = yield from window.run(_SCALAR, _SCALAR_CHARS_MAX)
    if text not in {"true", "false", "null"} and not NUMBER.fullmatch(text):
        raise NotACallError
    return text


def read_arguments(window: Window) -> Steps[str]:
    """Read a JSON object; return it as it was written."""
    if (yield from window.peek()) != "{":
        raise NotACallError
    return (yield from read_value(window))


def read_envelope(window: Window, names: Collection[str] | None = None) -> Steps[Call]:
    """Read {"name": …, "arguments": {…}}, of which the opening brace is read already.

    Arguments may be called parameters, and be absent. Other keys than calls have are refused as soon as they
    come, and names that aren't among `names`, if those are given: an answer in JSON isn't held up.
    """
    fields: dict[str, str] = {}
    while True:
        yield from window.space()
        key = str(json.loads((yield from read_string(window))))
        key = "arguments" if key == "parameters" else key
        if key not in _ENVELOPE or key in fields:
            raise NotACallError
        yield from window.space()
        yield from window.need(":")
        yield from window.space()
        fields[key] = yield from _field(window, key, names)
        yield from window.space()
        if (yield from window.need(",", "}")) == "}":
            return call_of(fields.get("name", ""), fields.get("arguments", "{}"))


def _field(window: Window, key: str, names: Collection[str] | None) -> Steps[str]:
    if key == "arguments":
        return (yield from read_arguments(window))
    if key != "name":
        return (yield from read_value(window))
    name = str(json.loads((yield from read_string(window))))
    if names is not None and name not in names:
        raise NotACallError
    return name


def names_of(tools: Sequence[Tool]) -> frozenset[str]:
    return frozenset(tool.name for tool in tools)
