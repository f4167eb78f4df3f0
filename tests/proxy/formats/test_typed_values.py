"""Arguments written as bare text become what the schema says they are."""

import json
from typing import Any

import pytest

from proxy.formats.typed_values import Types, types_of
from proxy.request import Tool

VALUES: list[tuple[Any, str, Any]] = [
    ({"type": "string"}, "5", "5"),
    ({"type": "string"}, " null\n", " null\n"),
    ({"type": "string"}, '"a"', '"a"'),
    ({"type": ["string", "null"]}, '"a"', '"a"'),
    ({}, '"a"', "a"),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"enum": [1, 2]}, "1", 1),
    ({"const": "true"}, "true", "true"),
    ({"type": "integer"}, " 5 ", 5),
    ({"type": "integer"}, "five", "five"),
    ({"type": "integer"}, "5.5", "5.5"),
    ({"type": "number"}, "5", 5),
    ({"type": "number"}, "5.5", 5.5),
    ({"type": "number"}, "1e999", "1e999"),
    ({"type": "number"}, "NaN", "NaN"),
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "false", False),
    ({"type": "boolean"}, "1", "1"),
    ({"type": "array"}, "[1, 2", "[1, 2"),
    ({"type": "array"}, '\n["a"]\n', ["a"]),
    ({"type": "object"}, '{"a": {}}', {"a": {}}),
    ({"type": "object"}, "[" * 5000, "[" * 5000),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "null"]}, "None", None),
    ({"type": ["string", "null"]}, "5", "5"),
    ({"type": "string", "nullable": True}, "null", None),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", 5),
    ({"oneOf": [{"type": "boolean"}, {"$ref": "#/x"}]}, "true", True),
    ({"$ref": "#/x"}, '{"a": 1}', {"a": 1}),
    ({"$ref": "#/x"}, "True", "True"),
    ({}, "5", 5),
    ({}, "five", "five"),
    (True, "[]", []),
    (None, "null", None),
    ({"type": 7, "enum": "x", "anyOf": 1}, "a", "a"),
]


@pytest.mark.parametrize(("schema", "text", "value"), VALUES)
def test_a_value_is_of_the_type_that_its_schema_allows(schema: Any, text: str, value: Any) -> None:
    types = Types([Tool("f", parameters={"properties": {"a": schema}})])
    assert json.loads(types.arguments("f", {"a": text})) == {"a": value}
    assert type(json.loads(types.value("f", "a", text))) is type(value)


def test_values_of_other_tools_and_keys_are_json_where_they_can_be() -> None:
    types = Types([Tool("f", parameters={"properties": {"a": {"type": "string"}}}), Tool("g")])
    texts = {"a": "5", 'b"': "x"}
    assert types.arguments("f", texts) == '{"a": "5", "b\\"": "x"}'
    assert types.arguments("g", texts) == '{"a": 5, "b\\"": "x"}'
    assert types.arguments("h", {}) == "{}"
    assert Types([Tool("f", parameters={"properties": 3})]).value("f", "a", "5") == "5"


def test_a_schema_without_end_has_no_types() -> None:
    schema: dict[str, Any] = {}
    schema["anyOf"] = [schema]
    assert types_of(schema) == frozenset()
