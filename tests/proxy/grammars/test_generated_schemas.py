"""Two hundred schemas of any kind: each is refused in words, or what its grammar allows fits it."""

import json

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import InvalidRequest
from tests.proxy.grammars.small_answers import Writer, shape

WRITER = Writer()
# The draft of a schema that names none.
DRAFT = jsonschema.Draft202012Validator
REASONS = ("isn't supported", "can't be satisfied", "is too complex", "'minProperties' or 'maxProperties'")


SMALL = st.integers(0, 6)
NUMBERS = st.integers(-200, 200).map(lambda quarters: quarters / 4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | NUMBERS | st.text(max_size=4),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(st.text(max_size=2), values, max_size=2),
    max_leaves=3,
)


def leaf(kind, **keywords):
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=keywords)


# Some of what may come out can't be held to, and some is satisfied by nothing.
LEAVES = (
    leaf(["string", "null"], minLength=SMALL, maxLength=SMALL)
    | leaf("string", pattern=st.sampled_from(["^[a-c]+$", "b", "^x?(y|z){2}$", "a(?=b)"]), maxLength=SMALL)
    | leaf("string", format=st.sampled_from(["date", "ipv4", "uuid", "date-time", "regex"]))
    | leaf("integer", minimum=NUMBERS, exclusiveMaximum=NUMBERS, multipleOf=st.sampled_from([1, 3, 20]))
    | leaf("number", exclusiveMinimum=NUMBERS, maximum=NUMBERS)
    | leaf("boolean")
    | st.fixed_dictionaries({"const": VALUES})
    | st.fixed_dictionaries({"enum": st.lists(VALUES, max_size=3)})
)
NAMES = st.sampled_from(["a", "b", "c", "é", "", "$ref", 'q"'])


def larger(schemas):
    """Return schemas of lists, of objects and of choices among schemas."""
    some = st.lists(schemas, min_size=1, max_size=3)
    lists = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": schemas,
            "prefixItems": some,
            "minItems": st.integers(0, 3),
            "maxItems": st.integers(0, 4),
            "uniqueItems": st.just(value=True),
        },
    )
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, schemas, max_size=4)},
        optional={
            "required": st.lists(NAMES, max_size=3, unique=True),
            "additionalProperties": schemas | st.booleans(),
            "patternProperties": st.dictionaries(st.sampled_from(["^p", "^q[0-9]$"]), schemas, max_size=2),
        },
    )
    joins = st.one_of(st.fixed_dictionaries({key: some}) for key in ("anyOf", "oneOf", "allOf"))
    return lists | objects | joins


SCHEMAS = st.recursive(LEAVES, larger, max_leaves=6)


def held(schema):
    """Return the grammar of a schema, or how it is refused."""
    try:
        return WRITER.grammar(shape=shape("json_schema", json.dumps(schema)))
    except InvalidRequest as refused:
        return refused


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(schema=SCHEMAS, seed=st.integers(0, 1 << 30))
def test_what_a_generated_schemas_grammar_allows_fits_the_schema(schema, seed):
    grammar = held(schema)
    if isinstance(grammar, InvalidRequest):
        assert grammar.message.startswith("'response_format' ")
        assert any(words in grammar.message for words in REASONS), grammar.message
        return
    text = WRITER.walk(grammar, seed, most=200)
    if text is not None:
        DRAFT(schema).validate(json.loads(text))


SOLID = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["a", 1, None, {"x": []}]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,3}$"}, "maxItems": 3},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "kind", "next"],
    "additionalProperties": False,
}


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 1 << 30))
def test_walks_through_a_schema_of_many_kinds_end_in_what_fits_it(seed):
    text = WRITER.walk(held(SOLID), seed, most=2000)
    assert text is not None
    DRAFT(SOLID).validate(json.loads(text))
