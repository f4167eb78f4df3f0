"""Bodies of /v1/responses: what is taken, what it becomes, and which field is named when it isn't."""

import json

import pytest

from proxy.dialects.responses_items import sealed
from proxy.dialects.responses_request import ASKED, parse_response, without_unsaid
from proxy.request import Shape
from shared.errors import InvalidRequest

USER = {"role": "user", "content": "Hi"}
TOWN = {"type": "object", "properties": {"town": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "parameters": TOWN}
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"town":"Bern"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "snow"}
PATCH_GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}


def parsed(content="Hi", **fields):
    body = {"model": "small", "input": content, **fields}
    return parse_response(json.dumps(body).encode(), lambda: 7)


def messages(*items, **fields):
    (prompt,) = parsed(list(items), **fields).prompts
    return list(prompt.messages)


def refused(content="Hi", **fields):
    with pytest.raises(InvalidRequest) as refusal:
        parsed(content, **fields)
    return refusal.value


def asked(content="Hi", **fields):
    return parsed(content, **fields).extras[ASKED]


def test_a_string_is_a_users_message():
    request = parsed("Hi", max_output_tokens=9, temperature=0.5, seed=3, stream=True)
    assert request.prompts[0].messages == (USER,)
    assert (request.endpoint, request.max_tokens, request.stream) == ("responses", 9, True)
    assert (request.sampling.temperature, request.sampling.seed, request.choices) == (0.5, 3, 1)
    assert request.max_tokens_field == "max_output_tokens"


def test_instructions_and_leading_messages_of_their_kind_are_one_message():
    given = [
        {"role": "developer", "content": "B"},
        {"type": "message", "role": "system", "content": "C"},
        USER,
    ]
    assert messages(*given, instructions="A") == [{"role": "system", "content": "A\n\nB\n\nC"}, USER]


def test_parts_of_all_kinds_of_text_are_put_together():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    said = [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]
    no = [{"type": "refusal", "refusal": "no"}]
    given = [{"role": "user", "content": parts}, {"role": "assistant", "content": said}]
    expected = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]
    assert messages(*given) == expected
    assert messages(USER, {"role": "assistant", "content": no})[1]["content"] == "no"


def test_what_an_assistant_thought_said_and_called_is_one_message():
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "T"}],
    }
    said = {"role": "assistant", "content": "S"}
    found = messages(USER, thought, said, CALL, {**CALL, "call_id": "call_2"}, OUTPUT)
    call = {"type": "function", "function": {"name": "weather", "arguments": {"town": "Bern"}}}
    assert found == [
        USER,
        {
            "role": "assistant",
            "content": "S",
            "reasoning_content": "T",
            "tool_calls": [{"id": "call_1", **call}, {"id": "call_2", **call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "snow"},
    ]


def test_a_thought_behind_a_call_begins_a_new_message():
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "T"}]}
    found = messages(USER, CALL, OUTPUT, thought, CALL)
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant"]
    assert found[-1]["reasoning_content"] == "T"


@pytest.mark.parametrize("encrypted", ["gAAAAsomebody's", "forebay:%%", "forebay:/w==", None])
def test_a_thought_that_another_server_encrypted_is_left_out(encrypted):
    thought = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "s"}],
        "encrypted_content": encrypted,
    }
    assert messages(USER, thought) == [USER]


def test_a_thought_of_ours_is_read_again():
    thought = {"type": "reasoning", "summary": [], "encrypted_content": sealed("héßt")}
    assert messages(USER, thought)[1]["reasoning_content"] == "héßt"


def test_thoughts_in_a_row_are_one():
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "T"}]}
    assert messages(USER, thought, thought)[1]["reasoning_content"] == "TT"


def test_instructions_in_the_midst_stay_where_they_are():
    late = {"role": "system", "content": "B"}
    given = [{"role": "system", "content": "A"}, USER, late, late]
    assert messages(*given) == given


def test_two_answers_in_a_row_stay_two():
    given = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert messages(*given) == given


def test_an_output_may_be_in_parts():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages(USER, CALL, {**OUTPUT, "output": parts})[-1]["content"] == "ab"


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]},
            "input.1.content.0.type",
        ),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input.1.content.0.type"),
        ({"role": "critic", "content": "a"}, "input.1.role"),
        ({"role": "user"}, "input.1.content"),
        ({"role": "user", "content": []}, "input.1.content"),
        ({"role": "user", "content": "a", "name": "x"}, "input.1.name"),
        ({"type": "web_search_call", "id": "ws_1"}, "input.1.type"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "input.1.call_id"),
        ({"type": "function_call_output", "call_id": "call_9", "output": "x"}, "input.1.call_id"),
        ({"type": ["message"]}, "input.1.type"),
        ("Hi", "input.1"),
    ],
)
def test_a_wrong_item_is_named_by_its_place(item, param):
    assert refused([USER, item]).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"truncation": "middle"}, "truncation"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"include": ["everything"]}, "include.0"),
        ({"include": "everything"}, "include"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"text": {"format": {"type": "banana"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name"),
        ({"text": {"verbosity": "banana"}}, "text.verbosity"),
        ({"reasoning": {"effort": "some"}}, "reasoning.effort"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(key): "" for key in range(17)}}, "metadata"),
        ({"previous_response_id": "r" * 129}, "previous_response_id"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools.0.type"),
        ({"tools": [WEATHER, {"type": "mcp", "server_label": "x"}]}, "tools.1.type"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools.1"),
        ({"tools": ["weather"]}, "tools.0"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [WEATHER, {"type": "mcp"}]}]},
            "tools.0.tools.1.type",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "include": ["message.output_text.logprobs"]}, "include"),
    ],
)
def test_a_wrong_field_is_named(fields, param):
    assert refused(**fields).param == param


def test_a_request_says_something():
    assert refused([]).param == "input"
    assert messages(instructions="Begin.") == [{"role": "system", "content": "Begin."}]


def test_functions_are_strict_unless_said_otherwise():
    tools = [
        WEATHER,
        {**WEATHER, "name": "loose", "strict": False},
        {**WEATHER, "name": "held", "strict": True},
    ]
    request = parsed(tools=tools, parallel_tool_calls=False)
    assert [tool.strict for tool in request.tools.tools] == [True, False, True]
    assert not request.tools.parallel
    assert request.prompts[0].tools == request.tools.tools
    shown = request.extras[ASKED].repeated["tools"]
    assert [tool["strict"] for tool in shown] == [True, False, True]
    freed = without_unsaid(request, request.extras[ASKED])
    assert [tool.strict for tool in freed.tools.tools] == [False, False, True]
    assert [tool["strict"] for tool in freed.extras[ASKED].repeated["tools"]] == [False, False, True]


def test_a_schema_that_nothing_can_be_held_to_is_strict_only_if_that_is_said():
    long = {"type": "string", "pattern": "a" * 2000}
    odd = {**WEATHER, "parameters": {"type": "object", "properties": {"a": long}}}
    assert [tool.strict for tool in parsed(tools=[odd]).tools.tools] == [False]
    assert [tool.strict for tool in parsed(tools=[{**odd, "strict": True}]).tools.tools] == [True]


def test_a_custom_tool_is_a_function_of_one_text():
    patch = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": PATCH_GRAMMAR}
    request = parsed(tools=[patch], tool_choice={"type": "custom", "name": "apply_patch"})
    (tool,) = request.tools.tools
    assert (request.tools.choice, request.tools.name) == ("named", "apply_patch")
    assert tool.parameters["required"] == ["input"]
    assert tool.description.startswith("Edits.")
    assert "start: /.+/" in tool.description
    assert request.extras[ASKED].repeated["tools"] == (patch,)


@pytest.mark.parametrize(("space", "name"), [("files", "files__read"), ("mcp__files__", "mcp__files__read")])
def test_functions_of_a_namespace_have_longer_names(space, name):
    tools = [
        {
            "type": "namespace",
            "name": space,
            "description": "",
            "tools": [{"type": "function", "name": "read"}],
        }
    ]
    request = parsed(tools=tools, tool_choice={"type": "function", "name": "read"})
    assert [tool.name for tool in request.tools.tools] == [name]
    assert request.tools.name == name
    assert (request.extras[ASKED].names[name].namespace, request.extras[ASKED].names[name].name) == (
        space,
        "read",
    )


def test_a_choice_may_say_which_namespace_it_means():
    spaces = [
        {"type": "namespace", "name": name, "tools": [{"type": "function", "name": "read"}]} for name in "ab"
    ]
    choice = {"type": "function", "name": "read", "namespace": "b"}
    assert parsed(tools=spaces, tool_choice=choice).tools.name == "b__read"


def test_what_agents_offer_besides_is_left_out_and_not_shown_as_there():
    tools = [WEATHER, {"type": "web_search", "external_web_access": True}, {"type": "image_generation"}]
    request = parsed(tools=tools)
    assert [tool.name for tool in request.tools.tools] == ["weather"]
    assert [tool["type"] for tool in request.extras[ASKED].repeated["tools"]] == ["function"]


def test_allowed_tools_are_the_only_ones():
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}
    request = parsed(tools=[WEATHER, {**WEATHER, "name": "other"}], tool_choice=choice)
    assert [tool.name for tool in request.tools.tools] == ["weather"]
    assert request.tools.choice == "required"
    assert request.extras[ASKED].repeated["tool_choice"] == choice


def test_no_tools_are_shown_where_none_may_be_called():
    assert parsed(tools=[WEATHER], tool_choice="none").prompts[0].tools == ()


def test_a_form_is_asked_for_in_text():
    schema = {"type": "object"}
    format_ = {"type": "json_schema", "name": "town", "schema": schema, "strict": True}
    request = parsed(text={"format": format_, "verbosity": "medium"})
    assert request.shape == Shape("json_schema", '{"type":"object"}', "text.format.schema")
    assert parsed(text={"format": {"type": "json_object"}}).shape == Shape("json_object", "", "text.format")
    assert parsed(text={"format": {"type": "text"}}).shape is None
    assert parsed(text={}).shape is None


def test_thinking_is_asked_for_by_effort():
    assert parsed(reasoning={"effort": "high", "summary": "auto"}).thinking.effort == "high"
    assert parsed(reasoning={"effort": "none"}).thinking.enabled is False
    assert parsed(reasoning=None).thinking.enabled is None


def test_log_probabilities_come_by_either_wish():
    assert parsed(include=["message.output_text.logprobs"]).sampling.top_logprobs == 0
    assert parsed(top_logprobs=3).sampling.top_logprobs == 3
    assert parsed(include=["reasoning.encrypted_content"]).sampling.top_logprobs == -1


def test_a_reference_or_a_previous_response_leaves_the_prompt_to_be_filled():
    assert not asked([{"type": "item_reference", "id": "msg_1"}]).is_whole
    assert not asked([OUTPUT], previous_response_id="resp_1").is_whole
    assert asked([USER]).is_whole
