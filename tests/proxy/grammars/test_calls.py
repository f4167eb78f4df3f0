"""Calls of tools: when they must be made and when they may, and what arguments they have."""

from dataclasses import replace

import pytest

from proxy.request import Thinking, Tool, ToolUse
from shared.errors import InvalidRequest
from shared.limits import GRAMMAR_CHARS_MAX
from tests.proxy.grammars.small_answers import Writer, shape

ARGUMENTS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
F = Tool("f", "", ARGUMENTS)
G = Tool("g", "", {"type": "object", "properties": {"b": {"type": "null"}}})
STRICT = replace(F, strict=True)
UNHOLDABLE = Tool("u", "", {"type": "object", "uniqueItems": True})

# How each format writes a call, and what stands between two of them: None for one that makes only one.
CALL = {
    "hermes": '<tool_call>\n{{"name": "{0}", "arguments": {1}}}\n</tool_call>',
    "llama": '{{"name": "{0}", "parameters": {1}}}',
    "mistral": "[TOOL_CALLS]{0}[ARGS]{1}",
    "gpt-oss": "<|channel|>commentary to=functions.{0} <|constrain|>json<|message|>{1}",
}
BETWEEN = {"hermes": "\n", "llama": "; ", "mistral": "", "gpt-oss": None}
TEXT = {"gpt-oss": "<|channel|>final<|message|>"}


@pytest.fixture(params=CALL, scope="module")
def name(request):
    return request.param


@pytest.fixture(scope="module")
def writer(name):
    return Writer(name)


def refusal(writer, **asked):
    with pytest.raises(InvalidRequest) as refused:
        writer.grammar(**asked)
    return refused.value.param, refused.value.message


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_call_that_must_be_made_is_made_by_its_schema(writer, name, choice):
    use = ToolUse((G, F), choice, "f" if choice == "named" else "")
    grammar = writer.grammar(tools=use)
    call = CALL[name].format
    assert writer.accepts(grammar, call("f", '{"a": 1}'))
    assert writer.accepts(grammar, call("g", '{"b":null}')) == (choice == "required")
    for text in (
        "",
        "text",
        TEXT.get(name, "") + "text",
        call("f", "{}"),
        call("f", '{"a": "x"}'),
        call("h", "{}"),
    ):
        assert not writer.accepts(grammar, text), text


def test_calls_follow_each_other_if_they_may(writer, name):
    one, other = CALL[name].format("f", '{"a": 1}'), CALL[name].format("g", "{}")
    two = one + (BETWEEN[name] or "") + other
    parallel = writer.grammar(tools=ToolUse((F, G), "required"))
    assert writer.accepts(parallel, two) == (BETWEEN[name] is not None)
    single = writer.grammar(tools=ToolUse((F, G), "required", parallel=False))
    assert writer.accepts(single, one)
    assert not writer.accepts(single, two)


def test_words_that_begin_a_call_lead_into_a_whole_one_of_a_strict_tool(writer, name):
    grammar = writer.grammar(tools=ToolUse((STRICT, G)))
    call = CALL[name].format
    text = TEXT.get(name, "") + "some text, é {"
    for good in (text, call("f", '{"a": 1}'), call("g", '{"b": "x", "c": []}')):
        assert writer.accepts(grammar, good), good
    for bad in (call("f", '{"a": "x"}'), call("f", "{}"), call("h", "{}"), call("f", '{"a": 1')):
        assert not writer.accepts(grammar, bad), bad


def test_behind_a_text_a_call_is_whole_where_it_begins_with_a_token_of_its_own():
    for name in ("hermes", "mistral"):
        writer = Writer(name)
        grammar = writer.grammar(tools=ToolUse((STRICT,)))
        assert writer.accepts(grammar, "text " + CALL[name].format("f", '{"a": 1}'))
        assert not writer.accepts(grammar, "text " + CALL[name].format("f", '{"a": 1, "b": 2}'))


@pytest.mark.parametrize(
    "use",
    [ToolUse((F, G)), ToolUse((STRICT,), "none"), ToolUse((F,), "none"), ToolUse()],
    ids=["loose", "strict but none", "none", "no tools"],
)
def test_calls_that_nothing_is_promised_of_have_no_grammar(writer, use):
    assert writer.grammar(tools=use) == ""


def test_a_shape_holds_for_the_text_beside_calls(writer, name):
    shaped = {"shape": shape("choice", '["yes"]'), "tools": ToolUse((F,))}
    grammar = writer.grammar(**shaped)
    assert writer.accepts(grammar, TEXT.get(name, "") + "yes")
    assert writer.accepts(grammar, CALL[name].format("f", '{"other": 1}'))
    assert not writer.accepts(grammar, TEXT.get(name, "") + "text")
    must = writer.grammar(shape=shape("lark", 'start: "yes"'), tools=ToolUse((F,), "required"))
    assert not writer.accepts(must, TEXT.get(name, "") + "yes")
    assert writer.accepts(must, CALL[name].format("f", '{"a": 1}'))


@pytest.mark.parametrize("added", [True, False])
def test_a_call_stands_behind_a_thought(added):
    writer = Writer("hermes", added=added)
    call = CALL["hermes"].format("f", '{"a": 1}')
    must = writer.grammar(tools=ToolUse((F,), "required"), thinks=True)
    assert writer.accepts(must, f"maybe a <tool> call</think>\n\n{call}")
    assert not writer.accepts(must, "no call</think>text")
    may = writer.grammar(tools=ToolUse((STRICT,)))
    assert writer.accepts(may, f"<think>hm</think>{call}")
    assert writer.accepts(may, "<think>hm</think>text")


def test_a_budget_holds_before_calls():
    writer = Writer("hermes")
    call = CALL["hermes"].format("f", '{"a": 1}')
    for use in (ToolUse((F,), "required"), ToolUse((STRICT,))):
        grammar = writer.grammar(tools=use, thinking=Thinking(budget_tokens=2))
        assert writer.accepts(grammar, f"<think>ab</think>{call}")
        assert writer.accepted(grammar, "<think>abc")[0] == "<think>ab"
    free = writer.grammar(tools=ToolUse((F,)), thinking=Thinking(budget_tokens=2))
    assert writer.accepts(free, f"<think>ab</think>text {call} {call}")


FIELDS = {"chat": "function.parameters", "responses": "parameters", "messages": "input_schema"}


@pytest.mark.parametrize("endpoint", FIELDS)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_strict_tool_that_cannot_be_held_to_is_named_with_its_keyword(endpoint, choice):
    bad = replace(UNHOLDABLE, strict=True)
    param, message = refusal(Writer("hermes"), endpoint=endpoint, tools=ToolUse((F, bad), choice))
    assert param == f"tools.1.{FIELDS[endpoint]}"
    assert message == f"'{param}' has the keyword 'uniqueItems', which isn't supported."


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "array"},
        {"$ref": "#"},
        {"x-guidance": {}},
        {"const": float("inf")},
        {"const": "\ud800"},
        {"required": 5},
        {"required": [{}]},
        {"properties": []},
    ],
    ids=range(8),
)
@pytest.mark.parametrize("name", ["hermes", "qwen-xml"])
def test_arguments_that_no_object_can_be_are_refused(name, parameters):
    tool = Tool("f", "", parameters, strict=True)
    assert refusal(Writer(name), tools=ToolUse((tool,)))[0] == "tools.0.function.parameters"


def test_what_tags_cannot_hold_is_said_of_the_tool():
    tool = Tool("f", "", {"properties": {"a": {"type": "string", "pattern": "x"}}}, strict=True)
    param, message = refusal(Writer("qwen-xml"), tools=ToolUse((F, tool)))
    assert param == "tools.1.function.parameters"
    assert "'pattern'" in message


def test_a_loose_tool_that_cannot_be_held_to_takes_any_object():
    writer = Writer("hermes")
    grammar = writer.grammar(tools=ToolUse((UNHOLDABLE,), "required"))
    assert writer.accepts(grammar, CALL["hermes"].format("u", '{"z": [1, 1]}'))
    assert not writer.accepts(grammar, CALL["hermes"].format("u", "[]"))


def test_a_tool_without_parameters_takes_an_object():
    writer = Writer("hermes")
    grammar = writer.grammar(tools=ToolUse((Tool("f", strict=True),), "required"))
    assert writer.accepts(grammar, CALL["hermes"].format("f", "{}"))


def test_a_format_whose_calls_are_in_tags_holds_each_argument_to_its_schema():
    writer = Writer("qwen-xml")
    call = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>".format
    for use in (ToolUse((F,), "required"), ToolUse((STRICT,))):
        grammar = writer.grammar(tools=use)
        assert writer.accepts(grammar, call(1))
        assert not writer.accepts(grammar, call("x"))


def test_a_format_whose_calls_follow_no_rule_begins_one_at_least():
    writer = Writer("function-gemma")
    for use in (ToolUse((F,), "named", "f"), ToolUse((F, G), "required")):
        grammar = writer.grammar(tools=use)
        assert writer.accepts(grammar, "<start_function_call>call:f{a:1}<end_function_call>")
        assert writer.accepted(grammar, "text")[0] == ""


@pytest.mark.parametrize(
    ("name", "use", "param"),
    [
        ("function-gemma", ToolUse((STRICT,)), "tools.0.function.parameters"),
        ("function-gemma", ToolUse((F, STRICT), "required"), "tools.1.function.parameters"),
        ("function-gemma", ToolUse((F, G), "named", "f"), "tool_choice"),
        ("plain", ToolUse((F,), "required"), "tool_choice"),
        ("hermes", ToolUse((F,), "named", "h"), "tool_choice"),
    ],
)
def test_what_a_format_cannot_promise_is_refused(name, use, param):
    found, message = refusal(Writer(name), tools=use)
    assert found == param
    assert message.startswith(f"'{param}' ")


def test_tools_that_make_too_long_a_grammar_are_refused():
    long = replace(STRICT, parameters={"description": "x" * (GRAMMAR_CHARS_MAX // 2), **ARGUMENTS})
    assert refusal(Writer("hermes"), tools=ToolUse((long,)))[0] == "tools"
