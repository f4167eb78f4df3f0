"""Chat bodies: roles, content in both its forms, and fields that only chat has."""

import json

import pytest

from proxy.parse import parse_chat
from proxy.request import ChatPrompt
from shared.errors import InvalidRequest
from shared.limits import MESSAGES_MAX

HI = {"role": "user", "content": "Hi"}


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
        ({"role": "tool", "content": "x"}, "messages.1.role"),
        ({"role": "tool", "content": "x", "tool_call_id": "call_1"}, "messages.1.tool_call_id"),
        ({"role": "function", "content": "x", "name": "f"}, "messages.1.role"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "messages.1.tool_calls"),
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


@pytest.mark.parametrize(
    "message", [{"role": "tool", "content": "x"}, {**HI, "tool_calls": [{}]}], ids=["role", "calls"]
)
def test_tools_in_messages_are_called_unsupported(message):
    with pytest.raises(InvalidRequest, match="isn't supported"):
        parse([message])


def test_both_names_of_the_limit_mean_the_same():
    assert parse(max_tokens=5) == parse(max_completion_tokens=5)
    assert parse(max_tokens=5) == parse(max_tokens=5, max_completion_tokens=5)


def test_two_different_limits_are_refused():
    assert refused_field(max_tokens=5, max_completion_tokens=6) == "max_completion_tokens"


@pytest.mark.parametrize("value", [0, 1.0, True, "5", 1 << 40])
def test_the_newer_name_of_the_limit_is_checked_as_strictly(value):
    assert refused_field(max_completion_tokens=value) == "max_completion_tokens"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "banana"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", "text"),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "a"}),
        ("prediction", {"type": "content"}),
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
        ("logprobs", False),
        ("top_logprobs", 0),
        ("parallel_tool_calls", True),
    ],
)
def test_an_option_that_asks_for_nothing_is_accepted(field, value):
    assert parse(**{field: value}) == parse()
