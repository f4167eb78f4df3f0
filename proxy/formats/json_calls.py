"""Calls whose arguments are JSON, in each family's marks: what follows the mark with which they begin."""

import re
from collections.abc import Sequence
from typing import Final

from proxy.answer import Call
from proxy.formats.json_text import call_of, names_of, read_arguments, read_envelope, read_name
from proxy.formats.window import NotACallError, Steps, Window
from proxy.request import Tool
from shared.limits import NAME_CHARS_MAX

_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]*")
_DIGITS: Final = re.compile(r"[0-9]*")
_PREFIX: Final = "functions."


def _deepseek(words: str) -> str:
    """Return a mark of DeepSeek's: it has a wide bar for a bar, and a low block for a space."""
    return "<\uff5c" + words.replace(" ", "\u2581") + "\uff5c>"


DEEPSEEK_BEGINS: Final = _deepseek("tool calls begin")
DEEPSEEK_ENDS: Final = _deepseek("tool calls end")
DEEPSEEK_CALL: Final = _deepseek("tool call begin")
DEEPSEEK_CALL_ENDS: Final = _deepseek("tool call end")
DEEPSEEK_SEPARATOR: Final = _deepseek("tool sep")
DEEPSEEK_MARKS: Final = (
    DEEPSEEK_BEGINS,
    DEEPSEEK_ENDS,
    DEEPSEEK_CALL,
    DEEPSEEK_CALL_ENDS,
    DEEPSEEK_SEPARATOR,
)
KIMI_BEGINS: Final = "<|tool_calls_section_begin|>"
KIMI_ENDS: Final = "<|tool_calls_section_end|>"
KIMI_CALL: Final = "<|tool_call_begin|>"
KIMI_ARGUMENTS: Final = "<|tool_call_argument_begin|>"
KIMI_CALL_ENDS: Final = "<|tool_call_end|>"
KIMI_MARKS: Final = (KIMI_BEGINS, KIMI_ENDS, KIMI_CALL, KIMI_ARGUMENTS, KIMI_CALL_ENDS)


def hermes_call(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:  # noqa: ARG001 (ReadCalls)
    """Read <tool_call>{"name": …, "arguments": {…}}</tool_call>."""
    yield from window.space()
    yield from window.need("{")
    call = yield from read_envelope(window)
    yield from window.space()
    yield from window.need("</tool_call>")
    return [call]


def bare_call(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:
    """Read {"name": …, "parameters": {…}} with nothing around it; other JSON, or of no tool, is text."""
    return [(yield from read_envelope(window, names_of(tools)))]


def spaced_bare_call(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:
    """Read another one, behind a semicolon; or one behind <|python_tag|>, which else begins a program."""
    yield from window.space()
    yield from window.need("{")
    return (yield from bare_call(window, tools))


def mistral_calls(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:  # noqa: ARG001 (ReadCalls)
    """Read [TOOL_CALLS] with a list of calls, which is how it was; or with name[ARGS]{…}.

    Between name and arguments, [CALL_ID] and an id may stand.
    """
    yield from window.space()
    if (yield from window.word(("[",))):
        return (yield from read_listed(window))
    name = yield from read_name(window)
    yield from window.space()
    return [call_of(name, (yield from _mistral_arguments(window)))]


def more_mistral_calls(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:  # noqa: ARG001 (ReadCalls)
    """Read another call right behind one: name[ARGS]{…} again, without the mark that begins the first."""
    yield from window.space()
    name = yield from read_name(window)
    return [call_of(name, (yield from _mistral_arguments(window)))]


def _mistral_arguments(window: Window) -> Steps[str]:
    if (yield from window.need("[ARGS]", "[CALL_ID]")) == "[CALL_ID]":
        yield from window.run(_CALL_ID, NAME_CHARS_MAX)
        yield from window.need("[ARGS]")
    yield from window.space()
    return (yield from read_arguments(window))


def read_listed(window: Window) -> Steps[list[Call]]:
    """Read a list of calls that are JSON objects, of which the bracket is read already."""
    calls: list[Call] = []
    while True:
        yield from window.space()
        yield from window.need("{")
        calls.append((yield from read_envelope(window)))
        yield from window.space()
        if (yield from window.need(",", "]")) == "]":
            return calls


def deepseek_calls(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:  # noqa: ARG001 (ReadCalls)
    """Read calls in marks of their own, all of them in another pair.

    V3 and R1 write a call as its type, a separator, its name and arguments in a fence; V3.1 its name, a
    separator and the arguments.
    """
    calls: list[Call] = []
    while True:
        yield from window.space()
        mark = yield from window.need(DEEPSEEK_CALL, DEEPSEEK_ENDS)
        if mark == DEEPSEEK_ENDS:
            return _some(calls)
        yield from window.space()
        first = yield from read_name(window)
        yield from window.space()
        yield from window.need(DEEPSEEK_SEPARATOR)
        yield from window.space()
        calls.append((yield from _deepseek_call(window, first)))
        yield from window.space()
        yield from window.need(DEEPSEEK_CALL_ENDS)


def _deepseek_call(window: Window, first: str) -> Steps[Call]:
    """Read what stands behind the separator: arguments of the function named before it, or name and fence."""
    if (yield from window.peek()) == "{":
        return call_of(first, (yield from read_arguments(window)))
    name = yield from read_name(window)
    yield from window.space()
    yield from window.need("```json")
    yield from window.space()
    arguments = yield from read_arguments(window)
    yield from window.space()
    yield from window.need("```")
    return call_of(name, arguments)


def kimi_calls(window: Window, tools: Sequence[Tool]) -> Steps[list[Call]]:  # noqa: ARG001 (ReadCalls)
    """Read calls in marks of their own, all in another pair; one's name is functions.name:number."""
    calls: list[Call] = []
    while True:
        yield from window.space()
        mark = yield from window.need(KIMI_CALL, KIMI_ENDS)
        if mark == KIMI_ENDS:
            return _some(calls)
        yield from window.space()
        written = yield from read_name(window)
        yield from window.space()
        yield from window.need(KIMI_ARGUMENTS)
        yield from window.space()
        name, _, number = written.removeprefix(_PREFIX).rpartition(":")
        if not number or not _DIGITS.fullmatch(number):
            raise NotACallError
        calls.append(call_of(name, (yield from read_arguments(window))))
        yield from window.space()
        yield from window.need(KIMI_CALL_ENDS)


def _some(calls: list[Call]) -> list[Call]:
    if not calls:
        raise NotACallError
    return calls
