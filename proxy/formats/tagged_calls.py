"""Calls whose arguments stand in tags, one by one: what follows the mark with which such a call begins."""

import re
from collections.abc import Sequence
from typing import Final

from proxy.answer import Call
from proxy.formats.json_text import call_of, read_name
from proxy.formats.typed_values import Types
from proxy.formats.window import NotACallError, Steps, Window
from proxy.request import Tool
from shared.limits import NAME_CHARS_MAX

_KEY: Final = re.compile(r'[^<>"\n]*')
CALL_ENDS: Final = "</tool_call>"
MINIMAX_BEGINS: Final = "<minimax:tool_call>"
MINIMAX_ENDS: Final = "</minimax:tool_call>"


def xml_call(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:
    """Read <tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>."""
    yield from window.space()
    yield from window.need("<function=")
    call = yield from _function(window, tools)
    yield from window.space()
    yield from window.need(CALL_ENDS)
    return [call]


def bare_xml_call(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:
    """Read such a call without its outer tags, of which the first is sometimes forgotten."""
    return [(yield from _function(window, tools))]


def _function(window: Window, tools: Sequence[Tool]) -> Steps[Call]:
    name = yield from read_name(window)
    yield from window.need(">")
    texts = yield from _parameters(window, "<parameter=", ">", "</function>")
    return call_of(name, Types(tools).arguments(name, texts))


def minimax_calls(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:
    """Read <minimax:tool_call><invoke name="…"><parameter name="key">value</parameter>…</invoke>…."""
    calls: list[Call] = []
    types = Types(tools)
    while True:
        yield from window.space()
        mark = yield from window.need('<invoke name="', MINIMAX_ENDS)
        if mark == MINIMAX_ENDS:
            break
        name = yield from read_name(window)
        yield from window.need('">')
        texts = yield from _parameters(window, '<parameter name="', '">', "</invoke>")
        calls.append(call_of(name, types.arguments(name, texts)))
    if not calls:
        raise NotACallError
    return calls


def _parameters(window: Window, opens: str, opened: str, ends: str) -> Steps[dict[str, str]]:
    """Read parameters up to the end of the function, and over it."""
    texts: dict[str, str] = {}
    yield from window.space()
    mark = yield from window.need(opens, ends)
    while mark == opens:
        key = yield from _key(window, texts)
        yield from window.need(opened)
        texts[key], mark = yield from _value(window, opens, ends)
    return texts


def _value(window: Window, opens: str, ends: str) -> Steps[tuple[str, str]]:
    """Read a value and the mark behind it. A closing tag with anything else behind it belongs to the value.

    The line breaks next to the tags are no part of it.
    """
    parts: list[str] = []
    while True:
        parts.append((yield from window.until("</parameter>")))
        blank = yield from window.space()
        mark = yield from window.word((opens, ends))
        if mark:
            return "".join(parts).removeprefix("\n").removesuffix("\n"), mark
        parts.append("</parameter>" + blank)


def _key(window: Window, texts: dict[str, str]) -> Steps[str]:
    key = yield from window.run(_KEY, NAME_CHARS_MAX)
    if not key or key in texts:
        raise NotACallError
    return key


def glm_call(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:
    """Read <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>."""
    yield from window.space()
    name = yield from read_name(window)
    texts: dict[str, str] = {}
    yield from window.space()
    while (yield from window.need("<arg_key>", CALL_ENDS)) == "<arg_key>":
        key = yield from _key(window, texts)
        yield from window.need("</arg_key>")
        yield from window.space()
        yield from window.need("<arg_value>")
        texts[key] = yield from window.until("</arg_value>")
        yield from window.space()
    return [call_of(name, Types(tools).arguments(name, texts))]
