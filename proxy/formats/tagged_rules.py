"""Calls with arguments in tags as terms of a Lark rule, each argument held to its part of the schema."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from proxy.formats.lark import lark_text
from proxy.formats.typed_values import types_of
from proxy.request import Tool

# What the schema of a tool's arguments may say of them as a whole.
_UNDERSTOOD: Final = frozenset(
    {
        "$defs",
        "$id",
        "$schema",
        "additionalProperties",
        "definitions",
        "description",
        "properties",
        "required",
        "title",
        "type",
        "x-guidance",
    }
)
_SHARED: Final = ("$defs", "definitions", "x-guidance")
# A string without quotes can be held to nothing but a list of values.
_UNHELD: Final = ("pattern", "format", "minLength", "maxLength", "allOf", "not")
_KEY: Final = re.compile(r"[A-Za-z0-9_.$-]+")
_ANY_KEY: Final = "/[A-Za-z0-9_.$-]{1,64}/"


@dataclass(frozen=True, slots=True)
class Tags:
    """How a family writes such a call: {name} is the function's. A value stands behind its key.

    `closes` ends a value, and `then` follows it.
    """

    before: str
    before_key: str
    before_value: str
    closes: str
    then: str
    after: str


def tagged_rule(tags: Tags, words: Mapping[str, int], tool: Tool) -> str:
    """Return the terms that match one call. ValueError says what of the schema it can't be held to.

    Arguments come in the order of the schema. One without `properties` allows any.
    """
    schema = tool.parameters
    unknown = sorted(schema.keys() - _UNDERSTOOD)
    if unknown:
        raise ValueError(f"has '{unknown[0]}', which this model's calls can't be held to")
    begins = lark_text(tags.before.replace("{name}", tool.name), words)
    return f"{begins} {_arguments(tags, words, schema)} {lark_text(tags.after, words)}"


def _arguments(tags: Tags, words: Mapping[str, int], schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    opens, opened = lark_text(tags.before_key, words), lark_text(tags.before_value, words)
    if not isinstance(properties, Mapping):
        return f"({opens} {_ANY_KEY} {opened} {_text(tags, words)})*"
    required = frozenset(schema.get("required") or ())
    if not required <= properties.keys():
        raise ValueError("requires what isn't among its 'properties'")
    shared = {key: schema[key] for key in _SHARED if key in schema}
    terms: list[str] = []
    for key, each in properties.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"has the property '{key}', whose name this model's calls can't have")
        argument = f"{lark_text(tags.before_key + key + tags.before_value, words)} "
        argument += _value(tags, words, each, shared)
        terms.append(argument if key in required else f"({argument})?")
    return " ".join(terms)


def _value(tags: Tags, words: Mapping[str, int], schema: Any, shared: Mapping[str, Any]) -> str:
    """Return the terms of a value and its end."""
    end = lark_text(_break(tags) + tags.closes + tags.then, words)
    if "string" not in types_of(schema):
        inner = {**schema, **shared} if isinstance(schema, Mapping) else schema
        return f"%json {json.dumps(inner, ensure_ascii=False)} {end}"
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        if any(tags.closes in text for text in texts):
            raise ValueError("lists a value that this model's calls can't have")
        return f"({' | '.join(lark_text(text, {}) for text in texts)}) {end}"
    unheld = [key for key in _UNHELD if key in schema]
    if unheld:
        raise ValueError(f"has '{unheld[0]}', which this model's calls can't be held to")
    return _text(tags, words)


def _break(tags: Tags) -> str:
    """Return the line break before a closing tag, where one stands behind the opening one as well."""
    return "\n" if tags.before_value.endswith("\n") else ""


def _text(tags: Tags, words: Mapping[str, int]) -> str:
    """Return the terms of any text up to where it is closed, and of that.

    The closing tag is in the expression itself, so that the first one ends it.
    """
    body, then = f"[^<]*(<{_not_on(tags.closes[1:])})*", lark_text(tags.then, words)
    if tags.closes in words:
        return f"/{body}/ {lark_text(tags.closes, words)} {then}"
    return f"/{body}{re.escape(tags.closes).replace('/', chr(92) + '/')}/ {then}"


def _not_on(tag: str) -> str:
    """Return an expression for what follows an angle bracket up to the next one, but for the tag."""
    inner = ""
    for character in reversed(tag):
        written = "\\/" if character == "/" else re.escape(character)
        inner = f"(|[^<{written}][^<]*" + (f"|{written}{inner})" if inner else ")")
    return inner
