"""Answers of a given form: by schema, expression, grammar or choice, and what can't be one."""

import json

from tests.conformance.grammars import allows
from tests.conformance.reading import chat_of, completion_of, refused
from tests.conformance.row import CHAT, OURS, REPORTED, VLLM, Section
from tests.conformance.samples import CALL, SCHEMA, THOUGHTFUL, chat_tools
from tests.conformance.world import CHAT as PATH

SECTION = Section(PATH)
row = SECTION.row


def by_schema(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **fields}}


@row(CHAT + "response_format: text")
async def plain_text_is_no_constraint(here):
    chat_of(await here.chat(response_format={"type": "text"}))
    assert here.sampling.grammar == ""


@row(CHAT + "response_format: json_object")
async def any_json_object_is_possible_and_nothing_else(here):
    here.say('{"a": [1, "x"]}')
    assert json.loads(
        chat_of(await here.chat(response_format={"type": "json_object"})).choices[0].message.content
    )
    assert allows(here, '{"a": [1, "漢"]}')
    assert not allows(here, "words", whole=False)
    assert not allows(here, "[1]", whole=False)


@row(CHAT + "response_format: json_schema")
async def answers_by_a_schema_are_possible_and_nothing_else(here):
    here.say('{"answer": 5}')
    for fields in ({"strict": True}, {}, {"description": "x"}):
        chat_of(await here.chat(response_format=by_schema(SCHEMA, **fields)))
        assert allows(here, '{"answer": 5}')
        assert not allows(here, '{"answer": "x"}')
        assert not allows(here, '{"answer": 5, "b": 1}')


@row(CHAT + "response_format: json_schema with $defs and references")
async def references_inside_a_schema_are_followed(here):
    here.say('{"next": null}')
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}
    schema = {"$defs": {"n": {**node, "required": ["next"]}}, "$ref": "#/$defs/n"}
    chat_of(await here.chat(response_format=by_schema(schema)))
    assert allows(here, '{"next": {"next": null}}')
    assert not allows(here, '{"next": 5}')


@row(REPORTED + "a format of an unknown type was a 200 without any constraint")
async def a_format_that_isnt_one_is_refused(here):
    for format_ in ({"type": "banana"}, {"type": "json_schema"}, {}, "json_object", by_schema(5)):
        answered = await here.chat(response_format=format_)
        refused(answered, 400)
        assert answered.error["param"].startswith("response_format")


@row(REPORTED + "a schema with a dangling reference was a 200 without any constraint")
async def a_schema_with_a_dangling_reference_is_refused(here):
    answered = await here.chat(response_format=by_schema({"$ref": "#/$defs/nothing"}))
    refused(answered, 400)
    assert answered.error["param"].startswith("response_format")


@row(OURS + "what a schema can't be held to is refused, and named")
async def an_unsupported_keyword_is_refused_by_its_name(here):
    for keyword, value in (
        ("not", {"type": "string"}),
        ("uniqueItems", True),
        ("dependentSchemas", {"a": {}}),
    ):
        said = refused(await here.chat(response_format=by_schema({"type": "array", keyword: value})), 400)
        assert keyword in said, said


@row(REPORTED + "a schema was applied to the thinking")
async def the_form_is_the_texts_and_not_the_thoughts(here):
    here.say(THOUGHTFUL + '{"answer": 5}')
    message = chat_of(await here.chat(response_format=by_schema(SCHEMA))).choices[0].message
    assert json.loads(message.content) == {"answer": 5}
    assert allows(here, THOUGHTFUL + '{"answer": 5}')
    assert not allows(here, THOUGHTFUL + "five")


@row(CHAT + "response_format beside tools")
async def an_answer_by_a_schema_or_a_call_are_both_possible(here):
    here.say(CALL)
    chat_of(await here.chat(response_format=by_schema(SCHEMA), tools=chat_tools()))
    assert allows(here, '{"answer": 5}')
    assert allows(here, CALL)
    assert not allows(here, "words", whole=False)


@row(VLLM + "structured outputs: regex, choice, grammar, json")
async def expressions_choices_and_grammars_are_taken(here):
    cases = [
        ("regex", "[0-9]{3}", "123", "12a"),
        ("choice", ["red", "green"], "green", "blue"),
        ("grammar", 'start: "a" "b"+', "abbb", "ac"),
        ("json", SCHEMA, '{"answer": 5}', '{"answer": "x"}'),
    ]
    for kind, source, good, bad in cases:
        here.say(good)
        chat_of(await here.chat(structured_outputs={kind: source}))
        assert allows(here, good), kind
        assert not allows(here, bad), kind
        chat_of(await here.chat(**{f"guided_{kind}": source}))
        assert allows(here, good), kind


@row(VLLM + "structured outputs of completions")
async def completions_can_have_a_form_too(here):
    here.say("123")
    assert (
        completion_of(await here.complete(structured_outputs={"regex": "[0-9]{3}"})).choices[0].text == "123"
    )
    assert allows(here, "123")
    completion_of(await here.complete(response_format={"type": "json_object"}))
    assert not allows(here, "words", whole=False)


@row(OURS + "what can't be compiled is a 400, and not the worker's death")
async def expressions_and_grammars_that_are_none_are_refused(here):
    for kind, source in (("regex", "(["), ("grammar", "start: ("), ("choice", []), ("grammar", "a: b")):
        refused(await here.chat(structured_outputs={kind: source}), 400)
    assert here.submits == []


@row(OURS + "one form an answer")
async def two_forms_at_once_are_refused(here):
    fields = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    refused(await here.chat(**fields), 400)


@row(REPORTED + "an expression or a schema that explodes hung the server")
async def expressions_and_schemas_that_explode_are_refused_or_compiled_in_time(here):
    deep = {"type": "string"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep, "b": deep}}
    for fields in (
        {"structured_outputs": {"regex": "((a{1,1000}){1,1000}){1,1000}"}},
        {"structured_outputs": {"regex": "(a|a)*" * 200 + "b"}},
        {"response_format": by_schema({"type": "string", "pattern": "(x+x+)+y", "maxLength": 10_000})},
    ):
        assert (await here.chat(**fields)).status in (200, 400)
    chat_of(await here.chat())
