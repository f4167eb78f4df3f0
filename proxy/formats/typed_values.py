"""Arguments that a model wrote as bare text: which JSON values they are, by the tool's schema."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.formats.json_text import sound_json
from proxy.request import Tool

# As templates show these to a model that are filled in by Python.
_PYTHONIC: Final = {"True": "true", "False": "false", "None": "null"}
_SCHEMA_DEPTH_MAX: Final = 8


class Types:
    """What the schemas of some tools say of their arguments' types."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._properties = {tool.name: tool.parameters.get("properties") for tool in tools}

    def value(self, tool: str, key: str, text: str) -> str:
        """Return the JSON of an argument that was written without quotes.

        It is a string if that is all that the schema allows. Else it is read as JSON, if that is of a type
        that is allowed, and is a string otherwise. Where the schema says nothing, any JSON is.
        """
        properties = self._properties.get(tool)
        types = types_of(properties.get(key)) if isinstance(properties, Mapping) else frozenset()
        if types != {"string"}:
            bare = text.strip()
            bare = _PYTHONIC.get(bare, bare) if types else bare
            found = _type(bare)
            # Quotes are part of a string: it is written without.
            allowed = types - {"string"} if types else {*_NAMES.values(), "integer"}
            if found in allowed or (found == "integer" and "number" in allowed):
                return bare
        return json.dumps(text, ensure_ascii=False)

    def arguments(self, tool: str, texts: Mapping[str, str]) -> str:
        """Return a call's arguments as a JSON object."""
        pairs = (
            f"{json.dumps(key, ensure_ascii=False)}: {self.value(tool, key, text)}"
            for key, text in texts.items()
        )
        return "{" + ", ".join(pairs) + "}"


_NAMES: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def types_of(schema: Any, depth: int = 0) -> frozenset[str]:
    """Return the types that a JSON schema allows; nothing if it doesn't say."""
    if not isinstance(schema, Mapping) or depth > _SCHEMA_DEPTH_MAX:
        return frozenset()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else {each for each in _list(named) if isinstance(each, str)}
    if not types:
        values = _list(schema.get("enum")) + ([schema["const"]] if "const" in schema else [])
        types = {_name(value) for value in values}
    for kind in ("anyOf", "oneOf"):
        for each in _list(schema.get(kind)):
            types |= types_of(each, depth + 1)
    return frozenset(types | {"null"} if schema.get("nullable") is True else types)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _name(value: object) -> str:
    return "integer" if type(value) is int else _NAMES.get(type(value), "string")


def _type(text: str) -> str:
    """Return the type of a text as JSON; "" if it is none."""
    try:
        value = sound_json(text)
    except ValueError:
        return ""
    return _name(value)
