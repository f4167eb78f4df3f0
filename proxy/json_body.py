"""A request's body to a JSON object, in bounded time and memory, whatever bytes come in.

The bounds are checked on the bytes before anything is built from them: Python's own decoder would recurse
once a level, and ten million empty strings in 16 MiB would cost seconds and gigabytes.
"""

import itertools
import json
import math
import re
from typing import Any, Final

from shared.errors import InvalidRequest
from shared.limits import BODY_DEPTH_MAX, BODY_PARTS_MAX, PARAM_CHARS_MAX

# Possessive throughout, and the closing quote is optional: linear in the body even when a string never ends.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
# Python's decoder lets these through; few bodies have them, and only those are looked through once more.
_SUSPECT: Final = re.compile(r"NaN|Infinity|\\u[dD][89a-fA-F]")
_LEVELS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def read_object(body: bytes) -> dict[str, Any]:
    """Return the body's object. InvalidRequest says what is wrong with it.

    Refused beyond plain syntax errors: text that isn't UTF-8, NaN and Infinity, a key given twice in one
    object (which of the two would count?), deep nesting, and half of a surrogate pair in a string.
    """
    text = _text(body)
    _refuse_bulk(body)
    content = _decode(text)
    if not isinstance(content, dict):
        raise InvalidRequest("The body must be a JSON object.")
    if _SUSPECT.search(text):
        _refuse_no_values(content, "")
    return content


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise InvalidRequest(f"The body isn't valid UTF-8 at byte {problem.start}.") from problem


def _refuse_bulk(body: bytes) -> None:
    """Refuse too many parts or levels. An escaped quote may hide one of a string's two, never both."""
    quotes = body.count(b'"') - body.count(b'\\"')
    if quotes > 2 * BODY_PARTS_MAX:
        raise InvalidRequest(f"The body has more than {BODY_PARTS_MAX} strings.")
    brackets = _STRINGS.sub(b"", body).translate(None, _NOT_BRACKETS)
    if len(brackets) > 2 * BODY_PARTS_MAX:
        raise InvalidRequest(f"The body has more than {BODY_PARTS_MAX} objects and lists.")
    levels = itertools.accumulate(map(_LEVELS.__getitem__, brackets))
    if max(levels, default=0) > BODY_DEPTH_MAX:
        raise InvalidRequest(f"The body is nested more than {BODY_DEPTH_MAX} levels deep.")


def _decode(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno}, column {problem.colno}"
        raise InvalidRequest(f"The body isn't valid JSON: {problem.msg} at {where}.") from problem
    except ValueError as problem:
        raise InvalidRequest("The body has an integer of thousands of digits.") from problem


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            twice = key[:PARAM_CHARS_MAX]
            raise InvalidRequest(f"'{twice}' is given twice in one object.", param=twice)
        content[key] = value
    return content


def _refuse_no_values(value: Any, path: str) -> None:
    """Refuse NaN and Infinity, and a lone surrogate: it has no UTF-8 form, so no tokenizer takes it.

    Recursion is at most BODY_DEPTH_MAX deep: that was checked before.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_no_values(key, path)
            _refuse_no_values(inner, f"{path}.{key}"[:PARAM_CHARS_MAX] if path else key[:PARAM_CHARS_MAX])
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_no_values(inner, f"{path}.{index}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"'{path}' must be a finite number.", param=path)
    elif isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidRequest(f"'{path}' has half of a surrogate pair, which is no text.", param=path)
