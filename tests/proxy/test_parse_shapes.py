"""The form that an answer is to have: every way to ask for one, on both endpoints."""

import json

import pytest

from proxy.dialects.openai_chat import parse_chat
from proxy.dialects.openai_completions import parse_completion
from proxy.request import Shape
from shared.errors import InvalidRequest
from shared.limits import CHOICE_CHARS_MAX, SCHEMA_CHARS_MAX, SHAPE_CHOICES_MAX

BASES = {
    "chat": (parse_chat, {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    "completions": (parse_completion, {"model": "m", "prompt": "Hi"}),
}
SCHEMA = {"type": "object", "properties": {"b": {"const": "é"}, "a": {}}}
SOURCE = '{"type":"object","properties":{"b":{"const":"é"},"a":{}}}'


@pytest.fixture(params=list(BASES))
def parse(request):
    function, base = BASES[request.param]
    return lambda **fields: function(json.dumps({**base, **fields}).encode(), lambda: 7)


def asked(**schema):
    return {"type": "json_schema", "json_schema": {"name": "n", **schema}}


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Shape("json_object", "", "response_format")),
        *[
            (
                {"response_format": asked(schema=SCHEMA, **more)},
                Shape("json_schema", SOURCE, "response_format.json_schema.schema"),
            )
            for more in ({}, {"strict": True}, {"strict": False}, {"strict": None, "description": "What."})
        ],
        (
            {"response_format": asked()},
            Shape("json_schema", "{}", "response_format.json_schema.schema"),
        ),
        ({"guided_json": SCHEMA}, Shape("json_schema", SOURCE, "guided_json")),
        ({"guided_json": json.dumps(SCHEMA)}, Shape("json_schema", SOURCE, "guided_json")),
        ({"guided_regex": "[a-z]+"}, Shape("regex", "[a-z]+", "guided_regex")),
        ({"guided_choice": ["b", "é", "b"]}, Shape("choice", '["b","é"]', "guided_choice")),
        ({"guided_grammar": 'start: "a"'}, Shape("lark", 'start: "a"', "guided_grammar")),
        ({"guided_json": {}, "guided_decoding_backend": "any"}, Shape("json_schema", "{}", "guided_json")),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json": SCHEMA}}, Shape("json_schema", SOURCE, "structured_outputs.json")),
        (
            {"structured_outputs": {"json_object": True}},
            Shape("json_object", "", "structured_outputs.json_object"),
        ),
        ({"structured_outputs": {"regex": "a"}}, Shape("regex", "a", "structured_outputs.regex")),
        ({"structured_outputs": {"choice": ["a"]}}, Shape("choice", '["a"]', "structured_outputs.choice")),
        ({"structured_outputs": {"grammar": "g"}}, Shape("lark", "g", "structured_outputs.grammar")),
        (
            {"response_format": {"type": "text"}, "guided_regex": "a"},
            Shape("regex", "a", "guided_regex"),
        ),
    ],
    ids=str,
)
def test_a_form_is_read_from_whichever_field_asks_for_it(parse, fields, shape):
    assert parse(**fields).shape == shape


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "banana"}}, "response_format.type"),
        ({"response_format": {"type": ["text"]}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_object", "json_schema": {"name": "n"}}},
            "response_format.json_schema",
        ),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        ({"response_format": asked(schema="{}")}, "response_format.json_schema.schema"),
        ({"response_format": asked(schema=[])}, "response_format.json_schema.schema"),
        ({"response_format": asked(strict="yes")}, "response_format.json_schema.strict"),
        ({"response_format": asked(schema_={})}, "response_format.json_schema.schema_"),
        (
            {"response_format": asked(schema={"const": "x" * SCHEMA_CHARS_MAX})},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": "[" * 10_000}, "guided_json"),
        ({"guided_json": {"const": "x" * SCHEMA_CHARS_MAX}}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "x" * (SCHEMA_CHARS_MAX + 1)}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 5]}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_choice": ["x" * (CHOICE_CHARS_MAX + 1)]}, "guided_choice"),
        ({"guided_choice": ["a"] * (SHAPE_CHOICES_MAX + 1)}, "guided_choice"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_": {}}}, "structured_outputs.json_"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_no_form_or_a_second_one_is_refused_by_its_path(parse, fields, param):
    with pytest.raises(InvalidRequest) as refusal:
        parse(**fields)
    assert refusal.value.param == param
    assert refusal.value.message.startswith(f"'{param}' ")


def test_the_refusal_of_an_unknown_type_names_those_that_are_known(parse):
    with pytest.raises(InvalidRequest) as refusal:
        parse(response_format={"type": "banana"})
    assert refusal.value.message == ("'response_format.type' must be 'text', 'json_object' or 'json_schema'.")
