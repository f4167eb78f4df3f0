"""Tools in chat bodies: what is read of them, how they may be chosen, and what is refused by its path."""

import json

import pytest

from proxy.dialects.openai_chat import OLDER_CALLS, parse_chat
from proxy.request import NO_TOOLS, Tool, ToolUse
from shared.errors import InvalidRequest
from shared.limits import SCHEMA_CHARS_MAX, TOOL_NAME_CHARS_MAX, TOOLS_MAX

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
LOOK = {"name": "look", "description": "See.", "parameters": SCHEMA, "strict": True}
FIND = {"name": "find"}
TOOLS = [{"type": "function", "function": each} for each in (LOOK, FIND)]
READ = (Tool("look", "See.", SCHEMA, strict=True), Tool("find"))


def parse(**fields):
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse_chat(json.dumps(body).encode(), lambda: 7)


def refused(**fields):
    with pytest.raises(InvalidRequest) as refusal:
        parse(**fields)
    assert refusal.value.message.startswith(f"'{refusal.value.param}' ")
    return refusal.value.param


def function(**fields):
    return [{"type": "function", "function": fields}]


def test_tools_are_read_and_shown_to_the_model():
    parsed = parse(tools=TOOLS)
    assert parsed.tools == ToolUse(READ, "auto", "", parallel=True)
    assert parsed.prompts[0].tools == READ


def test_what_is_null_in_a_tool_is_left_out():
    nulls = dict.fromkeys(["description", "parameters", "strict"])
    assert parse(tools=function(name="find", **nulls)).tools.tools == (Tool("find"),)


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode, *names):
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": mode, "tools": [named(each) for each in names]},
    }


@pytest.mark.parametrize(
    ("choice", "use", "shown"),
    [
        ("none", ToolUse(READ, "none"), ()),
        ("auto", ToolUse(READ, "auto"), READ),
        (None, ToolUse(READ, "auto"), READ),
        ("required", ToolUse(READ, "required"), READ),
        (named("find"), ToolUse(READ, "named", "find"), READ),
        (allowed("auto", "find"), ToolUse(READ[1:], "auto"), READ[1:]),
        (allowed("required", "find", "look"), ToolUse(READ, "required"), READ),
    ],
)
def test_a_choice_says_how_tools_are_used(choice, use, shown):
    parsed = parse(tools=TOOLS, tool_choice=choice)
    assert parsed.tools == use
    assert parsed.prompts[0].tools == shown


def test_one_call_at_a_time_may_be_wished():
    assert parse(tools=TOOLS, parallel_tool_calls=False).tools == ToolUse(READ, parallel=False)


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_without_tools_there_is_nothing_to_choose(choice):
    assert parse(tool_choice=choice, tools=[], parallel_tool_calls=False).tools == NO_TOOLS
    assert parse(tool_choice=choice) == parse()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["look"]}, "tools.0"),
        ({"tools": [{"function": FIND}]}, "tools.0.type"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search", "function": FIND}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": function()}, "tools.0.function.name"),
        ({"tools": function(name="")}, "tools.0.function.name"),
        ({"tools": function(name="a b")}, "tools.0.function.name"),
        ({"tools": function(name="</tool_call>")}, "tools.0.function.name"),
        ({"tools": function(name="a\n")}, "tools.0.function.name"),
        ({"tools": function(name="é")}, "tools.0.function.name"),
        ({"tools": function(name="x" * (TOOL_NAME_CHARS_MAX + 1))}, "tools.0.function.name"),
        ({"tools": function(name="f", description=5)}, "tools.0.function.description"),
        ({"tools": function(name="f", parameters=[])}, "tools.0.function.parameters"),
        ({"tools": function(name="f", parameters="{}")}, "tools.0.function.parameters"),
        (
            {"tools": function(name="f", parameters={"description": "x" * SCHEMA_CHARS_MAX})},
            "tools.0.function.parameters",
        ),
        ({"tools": function(name="f", strict=1)}, "tools.0.function.strict"),
        ({"tools": function(name="f", arguments={})}, "tools.0.function.arguments"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools.2"),
        ({"tools": [TOOLS[1]] * (TOOLS_MAX + 1)}, "tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 5}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": ["function"]}}, "tool_choice.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "look"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": named(5)}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": named("lost")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "lost")}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed("none", "look")}, "tool_choice.allowed_tools.mode"),
        ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": [5]}},
            "tool_choice.allowed_tools",
        ),
        ({"tool_choice": named("look")}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"functions": [{}]}, "functions.0.name"),
        ({"functions": [FIND, FIND]}, "functions.1"),
        ({"functions": [FIND], "tools": TOOLS}, "functions"),
        ({"functions": [FIND], "function_call": "required"}, "function_call"),
        ({"functions": [FIND], "function_call": {"name": "lost"}}, "function_call"),
        ({"functions": [FIND], "function_call": {}}, "function_call.name"),
        ({"function_call": {"name": "find"}}, "function_call"),
        ({"tools": TOOLS, "function_call": "none"}, "function_call"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_with_tools_is_refused_by_its_path(fields, param):
    assert refused(**fields) == param


def test_functions_are_tools_of_which_one_is_called_and_answered_the_older_way():
    parsed = parse(functions=[LOOK, FIND], function_call={"name": "find"})
    assert parsed.tools == ToolUse(READ, "named", "find", parallel=False)
    assert parsed.prompts[0].tools == READ
    assert parsed.extras == {OLDER_CALLS: True}
    assert parse(functions=[FIND]).tools == ToolUse(READ[1:], "auto", parallel=False)
    assert parse(functions=[FIND], function_call="none").prompts[0].tools == ()
    assert parse(tools=TOOLS).extras == {}
