"""Chat bodies: roles, content in both its forms, and fields that only chat has."""

import json
from dataclasses import replace

import pytest

from proxy.dialects.openai_chat import parse_chat
from proxy.request import ChatPrompt
from shared.errors import InvalidRequest
from shared.limits import CALLS_PER_MESSAGE_MAX, MESSAGES_MAX

HI = {"role": "user", "content": "Hi"}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at":[1,"é"]}'},
}


def parse(messages=(HI,), **fields):
    return parse_chat(json.dumps({"model": "m", "messages": messages, **fields}).encode(), lambda: 7)


def refused_field(messages=(HI,), **fields):
    with pytest.raises(InvalidRequest) as refusal:
        parse(messages, **fields)
    return refusal.value.param


def test_messages_reach_the_template_as_role_and_content():
    parsed = parse([{"role": "system", "content": "Be brief."}, HI, {"role": "assistant", "content": ""}])
    expected = [("system", "Be brief."), ("user", "Hi"), ("assistant", "")]
    assert parsed.endpoint == "chat"
    assert parsed.prompts == (ChatPrompt(tuple({"role": role, "content": text} for role, text in expected)),)


def test_a_developer_is_the_system_to_a_template():
    assert parse([{"role": "developer", "content": "x"}]) == parse([{"role": "system", "content": "x"}])


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert parse([{"role": "user", "content": parts}]) == parse([{"role": "user", "content": "Hello"}])


def test_a_name_is_accepted_and_ignored():
    assert parse([{**HI, "name": "Ada"}]) == parse()


def test_an_answer_can_be_sent_back_as_it_came():
    """Clients append the message object of an answer with all its null fields."""
    answer = {"role": "assistant", "content": "Yes", "refusal": None, "tool_calls": None, "annotations": []}
    assert parse([HI, answer]) == parse([HI, {"role": "assistant", "content": "Yes"}])


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Hi", "messages.1"),
        (None, "messages.1"),
        ({"content": "x"}, "messages.1.role"),
        ({"role": "robot", "content": "x"}, "messages.1.role"),
        ({"role": ["user"], "content": "x"}, "messages.1.role"),
        ({"role": "tool", "content": "x"}, "messages.1.tool_call_id"),
        ({"role": "tool", "tool_call_id": "c"}, "messages.1.content"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "messages.1.tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages.1.tool_call_id"),
        (
            {"role": "tool", "content": [{"type": "image_url"}], "tool_call_id": "c"},
            "messages.1.content.0.type",
        ),
        ({"role": "function", "content": "x"}, "messages.1.name"),
        ({"role": "user", "content": "x", "tool_call_id": "c"}, "messages.1.tool_call_id"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages.1.tool_calls"),
        ({"role": "system", "content": "x", "reasoning": "y"}, "messages.1.reasoning"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "messages.1.content.0.type"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages.1.tool_calls.0.function"),
        ({"role": "assistant", "tool_calls": [{**CALL, "id": None}]}, "messages.1.tool_calls.0.id"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "messages.1.tool_calls.0.type"),
        ({"role": "assistant", "tool_calls": [{**CALL, "x": 1}]}, "messages.1.tool_calls.0.x"),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": 5}}]},
            "messages.1.tool_calls.0.function.arguments",
        ),
        ({"role": "assistant", "tool_calls": [CALL] * (CALLS_PER_MESSAGE_MAX + 1)}, "messages.1.tool_calls"),
        (
            {"role": "assistant", "tool_calls": [CALL], "function_call": {"name": "f"}},
            "messages.1.function_call",
        ),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages.1.content"),
        ({"role": "assistant", "content": None}, "messages.1.content"),
        ({"role": "user"}, "messages.1.content"),
        ({"role": "user", "content": 5}, "messages.1.content"),
        ({"role": "user", "content": []}, "messages.1.content"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "messages.1.content"),
        ({"role": "user", "content": ["x"]}, "messages.1.content.0"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.1.content.0.text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages.1.content.0.text"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages.1.content.0.type"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}, "messages.1.content.0.y"),
        ({"role": "user", "content": "x", "name": 5}, "messages.1.name"),
        ({"role": "user", "content": "x", "colour": "red"}, "messages.1.colour"),
    ],
)
def test_a_bad_message_is_refused_by_its_path(message, param):
    assert refused_field([HI, message]) == param


def test_pictures_are_refused_by_the_path_of_their_type():
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert refused_field([{"role": "user", "content": parts}]) == "messages.0.content.1.type"


@pytest.mark.parametrize("messages", [[], None, "Hi", {}, [HI] * (MESSAGES_MAX + 1)])
def test_messages_must_be_a_list_of_some(messages):
    assert refused_field(messages) == "messages"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "banana", None, ["text"]])
def test_what_is_no_text_is_refused_with_the_reason(kind):
    with pytest.raises(InvalidRequest) as refusal:
        parse([{"role": "user", "content": [{"type": kind, "image_url": {"url": "data:"}}]}])
    assert refusal.value.param == "messages.0.content.0.type"
    assert refusal.value.message == (
        "'messages.0.content.0.type' must be 'text': this model reads text only."
    )


def test_both_names_of_the_limit_mean_the_same_and_the_clients_own_is_kept_for_errors():
    older, newer = parse(max_tokens=5), parse(max_completion_tokens=5)
    assert newer == replace(older, max_tokens_field="max_completion_tokens")
    assert older.max_tokens == 5
    assert parse(max_tokens=5, max_completion_tokens=5) == newer
    assert parse(max_completion_tokens=None, max_tokens=5) == older


# --- what a template is given -------------------------------------------------------------------------------


def given(*messages):
    (prompt,) = parse([HI, *messages]).prompts
    assert prompt.messages[0] == HI
    return list(prompt.messages[1:])


def test_an_answer_with_calls_has_an_object_for_arguments_and_a_text():
    (answer,) = given({"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}]})
    function = {"name": "look", "arguments": {"at": [1, "é"]}}
    assert answer == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    assert given({"role": "assistant", "tool_calls": [CALL]}) == [answer]
    assert given({"role": "assistant", "content": "So:", "tool_calls": [CALL]}) == [
        {**answer, "content": "So:"}
    ]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        ({"a": 1}, {"a": 1}),
        *[
            (text, {"arguments": text})
            for text in (
                '{"at":',
                "[1]",
                "null",
                "at=5",
                '{"a":NaN}',
                '{"a":1,"a":2}',
                '{"a":"\\ud800"}',
                '{"a":' + "9" * 5000 + "}",
                "[" * 100_000,
                '{"a":' * 70 + "1" + "}" * 70,
            )
        ],
    ],
    ids=lambda value: str(value)[:12],
)
def test_arguments_that_are_no_object_stay_what_the_model_wrote(arguments, shown):
    call = {"id": "c", "function": {"name": "look", "arguments": arguments}}
    (answer,) = given({"role": "assistant", "tool_calls": [call]})
    assert answer["tool_calls"][0]["function"] == {"name": "look", "arguments": shown}


def test_a_calls_result_says_which_function_it_is_of():
    calls = [CALL, {"id": "call_2", "function": {"name": "find", "arguments": "{}"}}]
    results = [
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "b"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": ""},
        {"role": "tool", "tool_call_id": "lost", "content": "c"},
        {"role": "tool", "tool_call_id": "lost", "content": "d", "name": "own"},
    ]
    shown = given({"role": "assistant", "tool_calls": calls}, *results)[1:]
    assert [(each["tool_call_id"], each["name"], each["content"]) for each in shown] == [
        ("call_2", "find", "b"),
        ("call_1", "look", ""),
        ("lost", "", "c"),
        ("lost", "own", "d"),
    ]
    assert {each["role"] for each in shown} == {"tool"}


def test_the_older_form_of_a_call_and_its_result_becomes_the_newer_one():
    called = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    answer, result = given(called, {"role": "function", "name": "look", "content": "sea"})
    (call,) = answer["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": {}}
    assert result == {"role": "tool", "content": "sea", "tool_call_id": call["id"], "name": "look"}


def test_thoughts_come_back_by_either_name_and_refusals_as_text():
    thought = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}
    assert given(thought) == [thought]
    assert given({"role": "assistant", "content": "Yes", "reasoning": "Hm"}) == [thought]
    assert given({**thought, "reasoning": "Hm"}) == [thought]
    refused = {"role": "assistant", "content": "No."}
    parts = [{"type": "text", "text": "N"}, {"type": "refusal", "refusal": "o."}]
    assert given({"role": "assistant", "content": parts}) == [refused]
    assert given({"role": "assistant", "content": None, "refusal": "No."}) == [refused]


def test_an_answer_may_be_gone_on_with():
    begun = {"role": "assistant", "content": "Once"}
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    assert parse([HI, begun], **fields).prompts[0].continues
    assert parse([HI, begun], continue_final_message=True).continues
    assert not parse([HI, begun], add_generation_prompt=True).continues


@pytest.mark.parametrize(
    ("last", "fields", "param"),
    [
        (HI, {"continue_final_message": True}, "continue_final_message"),
        (
            {"role": "assistant", "tool_calls": [CALL]},
            {"continue_final_message": True},
            "continue_final_message",
        ),
        (HI, {"add_generation_prompt": False}, "add_generation_prompt"),
        (HI, {"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
        (HI, {"continue_final_message": 1}, "continue_final_message"),
    ],
)
def test_an_answer_either_begins_or_goes_on(last, fields, param):
    assert refused_field([last], **fields) == param


# --- other fields -------------------------------------------------------------------------------------------


def test_two_different_limits_are_refused():
    assert refused_field(max_tokens=5, max_completion_tokens=6) == "max_completion_tokens"


@pytest.mark.parametrize("value", [0, 1.0, True, "5", 1 << 40])
def test_the_newer_name_of_the_limit_is_checked_as_strictly(value):
    assert refused_field(max_completion_tokens=value) == "max_completion_tokens"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_choice", "required"),
        ("response_format", "text"),
        ("include_reasoning", False),
        ("moderation", {"model": "m"}),
        ("verbosity", "banana"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "a"}),
        ("web_search_options", {}),
        ("echo", False),
        ("suffix", "x"),
        ("prompt", "x"),
    ],
)
def test_an_option_that_is_not_honoured_is_refused(field, value):
    assert refused_field(**{field: value}) == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", []),
        ("tools", None),
        ("tool_choice", "none"),
        ("tool_choice", "auto"),
        ("functions", []),
        ("response_format", {"type": "text"}),
        ("modalities", ["text"]),
        ("reasoning_effort", None),
        ("reasoning", {}),
        ("chat_template_kwargs", {}),
        ("verbosity", "medium"),
        ("verbosity", "low"),
        ("include_reasoning", True),
        ("prediction", {"type": "content", "content": "x"}),
        ("function_call", "none"),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("parallel_tool_calls", True),
    ],
)
def test_an_option_that_asks_for_nothing_is_accepted(field, value):
    assert parse(**{field: value}) == parse()
