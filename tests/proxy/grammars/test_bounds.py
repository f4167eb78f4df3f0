"""Bounds of schemas and of clients' grammars: the last that passes, and the first that doesn't."""

import json

import pytest

from proxy.grammars.endless import is_endless
from proxy.grammars.lark_bounds import lark_out_of_bounds
from proxy.grammars.schema_bounds import out_of_bounds, target
from shared.limits import (
    BODY_DEPTH_MAX,
    LARK_CHARS_MAX,
    LARK_RULES_MAX,
    PATTERN_CHARS_MAX,
    PATTERN_PROPERTIES_MAX,
    PATTERNS_MEETING_MAX,
    SCHEMA_LEVELS_MAX,
    SCHEMA_PARTS_MAX,
    SCHEMA_PROPERTIES_MAX,
)

REMOTE = "http:" + "//a.test/b"


def nested(levels):
    """Return a schema of so many levels, the innermost value's included."""
    inner = {}
    for _ in range(levels - 1):
        inner = {"items": inner}
    return inner


def chain(count):
    ends = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**ends, f"a{count}": {"type": "null"}}}


def patterns(count):
    return [{"pattern": f"p{n}"} for n in range(count)]


@pytest.mark.parametrize(
    ("make", "most", "words"),
    [
        (nested, BODY_DEPTH_MAX, "nested"),
        (lambda count: {"enum": [0] * (count - 2)}, SCHEMA_PARTS_MAX, "parts"),
        (lambda count: {"pattern": "a" * count}, PATTERN_CHARS_MAX, "characters"),
        (lambda count: {"patternProperties": {"a" * count: {}}}, PATTERN_CHARS_MAX, "characters"),
        (
            lambda count: {"patternProperties": {f"^{n}$": {} for n in range(count)}},
            PATTERN_PROPERTIES_MAX - 1,
            "patternProperties",
        ),
        (lambda count: {"allOf": patterns(count)}, PATTERNS_MEETING_MAX, "'pattern' and 'format'"),
        (
            lambda count: {"$ref": "#/$defs/a", "pattern": "x", "$defs": {"a": {"anyOf": patterns(count)}}},
            PATTERNS_MEETING_MAX - 1,
            "'pattern' and 'format'",
        ),
        (
            lambda count: {"properties": {f"p{n}": {} for n in range(count)}},
            SCHEMA_PROPERTIES_MAX,
            "properties",
        ),
        (lambda count: {"multipleOf": count}, 10_000, "multipleOf"),
        (lambda count: {"multipleOf": count / 100_000}, 9_999, "multipleOf"),
    ],
    ids=["depth", "parts", "pattern", "key", "keys", "all", "joined", "properties", "integer", "fraction"],
)
def test_a_bound_of_schemas_is_where_it_is_said_to_be(make, most, words):
    assert out_of_bounds(make(most)) is None
    beyond = most + 2 if "multipleOf" in words else most + 1
    assert words in out_of_bounds(make(beyond))


def test_two_joins_in_one_schema_meet_as_well():
    most = PATTERNS_MEETING_MAX
    for count, fits in ((most, True), (most + 1, False)):
        schema = {"$ref": "#/$defs/a", "anyOf": patterns(count), "$defs": {"a": {"type": "string"}}}
        assert (out_of_bounds(schema) is None) is fits


def test_many_patterns_that_meet_in_no_string_are_no_matter():
    assert out_of_bounds({"properties": {f"p{n}": part for n, part in enumerate(patterns(50))}}) is None
    assert out_of_bounds({"allOf": [{"pattern": "same"} for _ in range(50)]}) is None


def test_references_lead_no_deeper_than_the_compiler_recurses_safely():
    assert out_of_bounds(chain(SCHEMA_LEVELS_MAX // 4)) is None
    assert "'$ref's that lead" in out_of_bounds(chain(SCHEMA_LEVELS_MAX))


def test_a_property_may_have_a_keyword_for_its_name():
    names = ["$ref", "pattern", "format", "multipleOf", "allOf", "x-guidance", "patternProperties", "enum"]
    odd = {"properties": {name: {"type": "string"} for name in names}}
    assert out_of_bounds(odd) is None
    assert not is_endless(odd)


@pytest.mark.parametrize(
    "odd", [None, [], "a", 1, {"$ref": 5}, {"$ref": []}, {"multipleOf": "a"}, {"allOf": 1}]
)
def test_a_schema_that_is_none_is_no_error(odd):
    said = out_of_bounds(odd)
    assert said == (None if isinstance(odd, dict) else "must be a JSON object")


def test_a_reference_leads_into_objects_and_lists():
    schema = {"a/b": [{"~c d": 1}], "e": {}}
    assert target(schema, "#") is schema
    assert target(schema, "#/a~1b/0/~0c%20d") == 1
    for nowhere in ("#/x/y", "#/a~1b/1", "#/a~1b/-1", "#/e/x", REMOTE + "#/e", "#/a~1b/9999999999"):
        assert target(schema, nowhere) is None


TREE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/t"}}}


@pytest.mark.parametrize(
    ("schema", "endless"),
    [
        ({"$ref": "#"}, True),
        ({"$ref": "#/$defs/t", "$defs": {"t": TREE}}, False),
        ({"$ref": "#/$defs/t", "$defs": {"t": {**TREE, "required": ["next"]}}}, True),
        ({"type": "array", "items": {"$ref": "#"}}, False),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, True),
        ({"type": "array", "prefixItems": [{}], "items": {"$ref": "#"}, "minItems": 1}, False),
        ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, True),
        ({"type": ["array", "null"], "items": {"$ref": "#"}, "minItems": 1}, False),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, False),
        (
            {
                "anyOf": [
                    {"$ref": "#"},
                    {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
                ]
            },
            True,
        ),
        ({"allOf": [{"$ref": "#"}, {"type": "null"}]}, True),
        ({"enum": [1], "$ref": "#"}, False),
        ({"$ref": "#/$defs/nowhere"}, False),
        (chain(20), False),
        (chain(200), False),
    ],
    ids=range(15),
)
def test_a_schema_is_endless_if_every_value_holds_another(schema, endless):
    assert is_endless(schema) is endless


def test_a_hundred_ways_to_the_same_end_are_gone_once():
    ways = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(100)}
    assert not is_endless({"$ref": "#/$defs/a0", "$defs": {**ways, "a100": {}}})


def rules(count):
    return "start: a0\n" + "".join(f'a{n}: "{n}"\n' for n in range(count - 1))


@pytest.mark.parametrize(
    ("make", "most", "words"),
    [
        (lambda count: "//" + "a" * (count - 2), LARK_CHARS_MAX, "characters"),
        (lambda count: f"start: /{'a' * count}/", PATTERN_CHARS_MAX, "regular expression"),
        (rules, LARK_RULES_MAX, "rules"),
        (lambda count: f'start: "a"{{2,{count}}}', 1000, "repeats"),
        (lambda count: f'start: "a"~{count}', 1000, "repeats"),
    ],
    ids=["characters", "pattern", "rules", "repetition", "tilde"],
)
def test_a_bound_of_grammars_is_where_it_is_said_to_be(make, most, words):
    assert lark_out_of_bounds(make(most)) is None
    assert words in lark_out_of_bounds(make(most + 1))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('start: T\nT: "a" & "b"', "'&'"),
        ('start: T\nT: ~"a"', "'~'"),
        ("start: <[*]>", "'<>'"),
        ("start: <|im_end|>", "'<>'"),
        ("start: @answer", "'@'"),
        ("start: x\nx[lazy]: /a/", "'[]'"),
        ('start: x\nx[max_tokens=3, stop="b"]: /a/', "'[]'"),
        ('start: %json {"$ref": "#"}', "'%json'"),
        ('start: %lark { start: "a" }', "'%lark'"),
        ('%llguidance {"no_forcing": true}\nstart: "a"', "'%llguidance'"),
        ('start: %regex {"substring_chars": "a"}', "'%regex'"),
    ],
)
def test_what_only_the_compiler_knows_of_is_refused_in_a_grammar(source, words):
    assert words in lark_out_of_bounds(source)


@pytest.mark.parametrize(
    "quoted", ['"& ~ <x> @ %json {}"', r"/& ~<x>@%json\/" + "/", "// & ~ <x> @ %json", "# & <x>"]
)
def test_signs_in_strings_patterns_and_comments_mean_nothing(quoted):
    assert lark_out_of_bounds(f'start: "a" {quoted}\n') is None


def test_an_optional_part_is_no_option_of_a_rule():
    assert lark_out_of_bounds('start: ["a" b] ["lazy"]\nb: "c"') is None


def test_bounds_are_told_of_any_json():
    assert out_of_bounds(json.loads('{"a": [[[{}]], {"$ref": "#/a/0"}]}')) is None
