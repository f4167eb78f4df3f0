"""Shapes of answers: what they let a model write, and what is refused with which sentence."""

import json

import pytest

from proxy.request import TextPrompt
from shared.errors import InvalidRequest
from shared.limits import PATTERN_CHARS_MAX, SCHEMA_CHARS_MAX, SHAPE_CHOICES_MAX
from tests.proxy.grammars.small_answers import Writer, shape

WRITER = Writer()
REMOTE = "http:" + "//a.test/b"
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "tag": {"enum": ["a", "b"]}},
    "required": ["x"],
    "additionalProperties": False,
}


def schema(content):
    return shape("json_schema", content if isinstance(content, str) else json.dumps(content))


def refusal(asked, writer=WRITER):
    with pytest.raises(InvalidRequest) as refused:
        writer.grammar(shape=asked)
    assert refused.value.param == asked.param
    assert refused.value.message.startswith(f"'{asked.param}' ")
    assert len(refused.value.message) < 500
    return refused.value.message.removeprefix(f"'{asked.param}' ")


def test_an_answer_without_a_shape_has_no_grammar():
    assert WRITER.grammar() == ""


@pytest.mark.parametrize(
    ("asked", "good", "bad"),
    [
        (
            schema(POINT),
            ('{"x":1}', '{"x": -20, "tag": "b"}', '{\n  "x": 1,\n\t"tag": "a"\n}', '\n\n{"x":1}', ' {"x":1}'),
            (
                '{"x":"1"}',
                '{"tag":"a"}',
                '{"x":1,"y":2}',
                '{"x":1}\n',
                '{"x":1,\n\n"tag":"a"}',
                '{"x":  1}',
                "",
            ),
        ),
        (shape("json_object"), ("{}", '{"a": [1, null, {"b": "é"}]}'), ("[]", "1", '{"a": tru}')),
        (shape("regex", r"[ab]+/\d{2}"), ("a/12", "abba/00"), ("/12", "a/1", " a/12", "a/12 ", "xa/12")),
        (shape("regex", "^yes$"), ("yes",), ("yes!", "a yes")),
        (shape("regex", 'a"\n#b'), ('a"\n#b',), ('a"',)),
        (
            shape("choice", '["yes", "no", "no way", "a\\"\\nb/"]'),
            ("yes", "no", "no way", 'a"\nb/'),
            ("n", "maybe"),
        ),
        (shape("choice", '[""]'), ("",), ("a",)),
        (
            shape("lark", 'start: sum\nsum: N ("+" N)*  // a # comment: with a colon\nN: /[0-9]+/'),
            ("1", "1+22+3"),
            ("1+", "+", " 1"),
        ),
        (shape("lark", '%import common.INT\n%ignore /[ ]+/\nstart: INT "<&>" INT'), ("1 <&> 2",), ("1 & 2",)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_shape_lets_through_what_fits_it_and_nothing_else(asked, good, bad):
    grammar = WRITER.grammar(shape=asked)
    for text in good:
        assert WRITER.accepts(grammar, text), text
    for text in bad:
        assert not WRITER.accepts(grammar, text), text


def test_a_shape_holds_for_a_plain_prompt_as_well():
    writer = Writer("think")
    grammar = writer.grammar(shape=shape("choice", '["a"]'), prompts=(TextPrompt("x"),))
    assert writer.accepts(grammar, "a")
    assert not writer.accepts(grammar, "<think>b</think>a")


UNSUPPORTED = {
    "not": {},
    "if": {},
    "then": {},
    "else": {},
    "contains": {},
    "minContains": 1,
    "maxContains": 1,
    "uniqueItems": True,
    "propertyNames": {},
    "dependentRequired": {},
    "dependentSchemas": {},
    "unevaluatedItems": False,
    "unevaluatedProperties": False,
    "$dynamicRef": "#",
}


@pytest.mark.parametrize("keyword", UNSUPPORTED)
@pytest.mark.parametrize("deep", [False, True])
def test_an_unsupported_keyword_is_named(keyword, deep):
    part = {"type": "object", keyword: UNSUPPORTED[keyword]}
    content = {"properties": {"a": {"items": {"anyOf": [{"type": "null"}, part]}}}} if deep else part
    assert refusal(schema(content)) == f"has the keyword '{keyword}', which isn't supported."


def test_two_unsupported_keywords_are_both_named():
    said = refusal(schema({"uniqueItems": True, "not": {}}))
    assert said == "has the keywords 'not', 'uniqueItems', which aren't supported."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "isn't valid JSON"),
        ("[" * 5000, "isn't valid JSON"),
        ('{"const": 1e999}', "a number that JSON hasn't"),
        ('{"const": "\\uD800"}', "surrogate"),
        ("[]", "must be a JSON object"),
        ("true", "must be a JSON object"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "'x-guidance', which isn't supported"),
        ({"type": "banana"}, "Invalid type: banana"),
        ({"type": "string", "minLength": -1}, "'minLength'"),
        ({"type": "string", "maxLength": 1 << 80}, "'maxLength'"),
        ({"enum": "a"}, "enum must be an array"),
        ({"type": "string", "format": "banana"}, "the 'format' 'banana', which isn't supported"),
        ({"type": "string", "pattern": "a(?=b)"}, "('pattern') that isn't supported: look-around"),
        ({"type": "string", "pattern": "("}, "('pattern') that isn't supported: unclosed group"),
        ({"type": "string", "pattern": "(a)\\1"}, "('pattern') that isn't supported: backreferences"),
        ({"$ref": "#/$defs/a"}, "a '$ref' or '$schema' to '/$defs/a', which isn't in it; nothing is fetched"),
        ({"$ref": REMOTE}, f"to '{REMOTE}', which isn't in it; nothing is fetched"),
        ({"$ref": "b.json"}, "to 'b.json', which isn't in it; nothing is fetched"),
        ({"$schema": REMOTE, "type": "null"}, f"to '{REMOTE}', which isn't in it"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "a 'oneOf' whose options may both hold"),
        ({"minProperties": 2, "properties": {"a": {}}}, "'minProperties' or 'maxProperties'"),
        ({"patternProperties": {"^a": {}, "^ab": {"type": "null"}}}, "'patternProperties' /^a/ and /^ab/"),
        ({"type": "integer", "multipleOf": 1e15}, "a 'multipleOf' with too many digits"),
        ({"type": "integer", "minimum": -(10**30), "maximum": 10**30}, "a 'minimum' or 'maximum'"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "can't be satisfied by anything: minimum"),
        ({"enum": []}, "can't be satisfied by anything"),
        ({"type": "string", "pattern": "^abc$", "maxLength": 2}, "can't be satisfied by anything"),
        ({"$ref": "#"}, "can't be satisfied by anything"),
        ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {}]}}, "$ref": "#/$defs/a"}, "can't be satisfied"),
        (
            {"type": "string", "pattern": "(a|b)*a(a|b){300}", "maxLength": 2000, "minLength": 1000},
            "is too complex",
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "-",
)
def test_a_schema_that_cannot_be_held_to_is_refused_in_words(content, words):
    assert words in refusal(schema(content))


def test_a_schema_that_is_too_long_is_refused_before_it_is_read():
    assert "more than" in refusal(schema("[" * (SCHEMA_CHARS_MAX + 1)))


def test_a_loop_of_references_with_keywords_beside_them_is_refused():
    loop = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a", "type": "object"}]}
    assert "leads back to itself" in refusal(schema({"$ref": "#/$defs/a", "$defs": {"a": loop}}))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (shape("regex", ""), "must have 1 to"),
        (shape("regex", "a" * (PATTERN_CHARS_MAX + 1)), "must have 1 to"),
        (shape("regex", "("), "that isn't supported: unclosed group"),
        (shape("regex", "a(?!b)"), "that isn't supported: look-around"),
        (shape("regex", "a^b"), "look-around ('^')"),
        (shape("regex", r"\bword"), "look-around"),
        (shape("regex", r"(a)\1"), "backreferences"),
        (shape("regex", "\ud800"), "surrogate"),
        (shape("regex", r"[^\x00-\u{10FFFF}]"), "can't be satisfied"),
        (shape("choice", "{}"), "must be a list of strings"),
        (shape("choice", "[1]"), "must be a list of strings"),
        (shape("choice", "[]"), "must have 1 to"),
        (shape("choice", json.dumps(["a"] * (SHAPE_CHOICES_MAX + 1))), "must have 1 to"),
        (shape("choice", "nothing"), "isn't valid JSON"),
        (shape("lark", ""), "must not be empty"),
        (shape("lark", "start: other"), 'unknown name: "other"'),
        (shape("lark", "start: /a(?=b)/"), "look-around"),
        (shape("lark", "start: start"), "can't be satisfied"),
        (shape("lark", "nonsense"), "Expected token"),
        (shape("lark", 'start: "a" <b>'), "names a token"),
    ],
    ids=lambda value: value.source[:24] if hasattr(value, "source") else "-",
)
def test_another_shape_that_cannot_be_held_to_is_refused_in_words(asked, words):
    assert words in refusal(asked)
