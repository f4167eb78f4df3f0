"""Bodies of /v1/messages, field by field: what is taken, what it comes to, what is refused and where."""

import json

import pytest

from proxy.dialects.messages_parse import parse_count, parse_messages
from proxy.request import NO_TOOLS, Shape, Thinking, ToolUse
from shared.errors import InvalidRequest
from tests.proxy.messages_world import agents_body, body, tool


def parsed(**fields):
    return parse_messages(json.dumps(body(**fields)).encode(), lambda: 7)


# --- what is refused, and where -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1 << 40}, "max_tokens"),
        ({"model": ""}, "model"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences.0"),
        ({"stop_sequences": ["x"] * 33}, "stop_sequences"),
        ({"stop_sequences": ["x" * 257]}, "stop_sequences.0"),
        ({"stream": 1}, "stream"),
        ({"stop": ["x"]}, "stop"),
        ({"messges": []}, "messges"),
        ({"tools": {}}, "tools"),
        ({"tools": [5]}, "tools.0"),
        ({"tools": [tool("f"), {"name": "g"}]}, "tools.1.input_schema"),
        ({"tools": [{**tool("f"), "input_schema": "{}"}]}, "tools.0.input_schema"),
        ({"tools": [{**tool("f"), "name": "a b"}]}, "tools.0.name"),
        ({"tools": [tool("f"), tool("f")]}, "tools.1"),
        ({"tools": [{**tool("f"), "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [{"type": "web_search_20250305", "name": "w", "max_uses": 5}]}, "tools.0.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}, "tools": [tool("f")]}, "tool_choice.name"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [tool("f")]}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"task_budget": {"type": "tokens"}}}, "output_config.task_budget"),
        (
            {"context_management": {"edits": [{"type": "compact_20260112"}]}},
            "context_management.edits.0.type",
        ),
        ({"context_management": {"edits": 5}}, "context_management.edits"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
    ],
)
def test_what_is_wrong_with_a_field_is_refused_by_its_name(fields, param):
    with pytest.raises(InvalidRequest) as caught:
        parsed(**fields)
    assert caught.value.param == param


def test_a_tool_of_the_vendors_is_refused_by_its_own_name():
    with pytest.raises(InvalidRequest, match="web_search_20250305"):
        parsed(tools=[{"type": "web_search_20250305", "name": "web_search"}])


# --- the other fields ---------------------------------------------------------------------------------------


def test_a_plain_request_asks_for_nothing_that_was_not_said():
    plain = parsed()
    assert (plain.endpoint, plain.model, plain.choices, plain.max_tokens) == ("messages", "small", 1, 20)
    assert (plain.stops, plain.stream, plain.service_tier, plain.shape) == ((), False, None, None)
    assert (plain.tools, plain.thinking) == (NO_TOOLS, Thinking())
    sampling = plain.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (1.0, 1.0, 0, 7)
    assert not sampling.wants_logprobs


def test_sampling_and_stops_are_taken_as_they_are():
    asked = parsed(temperature=0, top_p=0.5, top_k=5, stop_sequences=["b", "a", "b"], stream=True)
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k) == (0.0, 0.5, 5)
    assert (asked.stops, asked.stream) == (("b", "a"), True)


@pytest.mark.parametrize(
    ("given", "tier"), [("auto", None), ("standard_only", None), (None, None), ("flex", "flex")]
)
def test_a_tier_that_is_no_particular_wish_is_none(given, tier):
    assert parsed(service_tier=given).service_tier == tier


def test_tools_are_shown_with_their_schemas_in_the_clients_order():
    first, second = tool("f", b={"type": "integer"}, a={"type": "string"}), {**tool("g"), "strict": True}
    asked = parsed(tools=[first, {**second, "type": "custom", "cache_control": {"type": "ephemeral"}}])
    assert [each.name for each in asked.tools.tools] == ["f", "g"]
    assert [each.strict for each in asked.tools.tools] == [False, True]
    assert list(asked.tools.tools[0].parameters["properties"]) == ["path", "b", "a"]
    assert asked.prompts[0].tools == asked.tools.tools


def test_examples_of_a_tools_input_are_part_of_how_it_is_described():
    given = {**tool("f"), "description": "Opens.", "input_examples": [{"path": "/a"}]}
    (shown,) = parsed(tools=[given]).tools.tools
    assert shown.description == 'Opens.\n\nExamples of its input:\n{"path":"/a"}'


@pytest.mark.parametrize(
    ("given", "choice", "name", "parallel"),
    [
        (None, "auto", "", True),
        ({"type": "auto"}, "auto", "", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", "", False),
        ({"type": "any"}, "required", "", True),
        ({"type": "tool", "name": "g", "disable_parallel_tool_use": True}, "named", "g", False),
        ({"type": "none"}, "none", "", True),
    ],
)
def test_each_choice_of_tools(given, choice, name, parallel):
    asked = parsed(tools=[tool("f"), tool("g")], tool_choice=given)
    assert asked.tools == ToolUse(asked.tools.tools, choice, name, parallel=parallel)
    assert len(asked.prompts[0].tools) == (0 if choice == "none" else 2)


@pytest.mark.parametrize(
    ("thinking", "effort", "wanted"),
    [
        (None, None, Thinking()),
        ({"type": "enabled", "budget_tokens": 1024}, None, Thinking(True, None, 1024)),
        ({"type": "adaptive"}, "max", Thinking(True, "max")),
        ({"type": "disabled"}, None, Thinking(False)),
        ({"type": "between_tools"}, "low", Thinking(effort="low")),
        (None, "high", Thinking(effort="high")),
    ],
)
def test_each_way_to_think(thinking, effort, wanted):
    asked = parsed(thinking=thinking, output_config={"effort": effort})
    assert asked.thinking == asked.prompts[0].thinking == wanted


@pytest.mark.parametrize(
    "place",
    [
        lambda form: {"output_config": {"format": form}},
        lambda form: {"output_format": form},
    ],
    ids=["output_config", "output_format"],
)
def test_an_answers_form_is_a_schema_in_the_clients_order(place):
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    asked = parsed(**place({"type": "json_schema", "schema": schema}))
    source = '{"type":"object","properties":{"b":{},"a":{}}}'
    assert asked.shape == Shape("json_schema", source, "output_config.format.schema")


def test_both_names_of_an_answers_form_at_once_are_refused():
    form = {"type": "json_schema", "schema": {}}
    with pytest.raises(InvalidRequest) as caught:
        parsed(output_config={"format": form}, output_format=form)
    assert caught.value.param == "output_format"


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "u"}},
        {"cache_control": {"type": "ephemeral"}},
        {"diagnostics": {"previous_message_id": None}},
        {"speed": "fast"},
        {"inference_geo": "eu"},
        {"mcp_servers": []},
        {"container": None},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"context_management": {}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_touches_no_token_changes_nothing(fields):
    assert parsed(**fields) == parsed()


# --- an agent's request, and counting -----------------------------------------------------------------------


def test_a_coding_agents_request_is_taken_whole():
    asked = parse_messages(json.dumps(agents_body()).encode(), lambda: 7)
    (chat,) = asked.prompts
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "tool", "user"]
    assert chat.messages[0]["content"] == "You help with code.\n\nBe brief.\n"
    assert (len(chat.tools), asked.thinking) == (40, Thinking(True, "medium", 31999))
    assert (asked.stream, asked.max_tokens, asked.takes_what_is_left) == (True, 32000, True)


def test_a_count_has_the_prompt_of_the_request_and_needs_no_number_of_tokens():
    fields = agents_body()
    asked = parse_messages(json.dumps(fields).encode(), lambda: 7)
    for given in (fields, {name: value for name, value in fields.items() if name != "max_tokens"}):
        counted = parse_count(json.dumps(given).encode(), lambda: 7)
        assert (counted.prompts, counted.max_tokens) == (asked.prompts, None)
