"""Calls as Gemma writes them: call:name{key:value,…}, with keys bare and strings between marks."""

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from proxy.answer import Call
from proxy.formats.json_text import call_of
from proxy.formats.marked import ReadCalls
from proxy.formats.window import NotACallError, Steps, Window
from proxy.request import Tool
from shared.limits import BODY_DEPTH_MAX, NAME_CHARS_MAX

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*")
_KEY: Final = re.compile(r"[^:{}\[\],<>\n]*")
_SCALAR: Final = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR_CHARS_MAX: Final = 1024


def gemma_call(quote: str, ends: str) -> ReadCalls:
    """Return who reads a call whose strings stand between two `quote`, up to the mark `ends`."""
    return partial(_call, quote, ends)


def _call(quote: str, ends: str, window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:  # noqa: ARG001 (ReadCalls)
    yield from window.space()
    yield from window.need("call:")
    name = yield from window.run(_NAME, NAME_CHARS_MAX)
    if (yield from window.peek()) != "{":
        raise NotACallError
    arguments = yield from _value(window, quote, 0)
    yield from window.space()
    yield from window.need(ends)
    return [call_of(name, arguments)]


def _value(window: Window, quote: str, depth: int) -> Steps[str]:
    """Read a value; return it as JSON."""
    yield from window.space()
    if (yield from window.word((quote,))):
        return json.dumps((yield from window.until(quote)), ensure_ascii=False)
    opened = yield from window.word(("{", "["))
    if not opened:
        return (yield from window.run(_SCALAR, _SCALAR_CHARS_MAX))
    if depth == BODY_DEPTH_MAX:
        raise NotACallError
    closes = "}" if opened == "{" else "]"
    parts: list[str] = []
    yield from window.space()
    mark = yield from window.word((closes,))
    while mark != closes:
        key = (yield from _key(window, quote)) if opened == "{" else ""
        parts.append(key + (yield from _value(window, quote, depth + 1)))
        yield from window.space()
        mark = yield from window.need(",", closes)
    return opened + ", ".join(parts) + closes


def _key(window: Window, quote: str) -> Steps[str]:
    """Read a key, which may be quoted like a string, and the colon behind it; return both as JSON."""
    yield from window.space()
    if (yield from window.word((quote,))):
        key = yield from window.until(quote)
    else:
        key = (yield from window.run(_KEY, NAME_CHARS_MAX)).strip()
    if not key:
        raise NotACallError
    yield from window.need(":")
    return json.dumps(key, ensure_ascii=False) + ": "
