"""How a model is to think: the fields of several services, and variables of the chat template's."""

import json

import pytest

from proxy.dialects.openai_chat import parse_chat
from proxy.request import AS_EVER, Thinking
from shared.errors import InvalidRequest
from shared.limits import CONTEXT_TOKENS_MAX, TEMPLATE_OPTION_CHARS_MAX, TEMPLATE_OPTIONS_MAX


def parse(**fields):
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    return parse_chat(json.dumps(body).encode(), lambda: 7)


def kwargs(**options):
    return {"chat_template_kwargs": options}


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, AS_EVER),
        *[
            ({"reasoning_effort": effort}, Thinking(effort=effort))
            for effort in ("minimal", "low", "medium", "high", "xhigh", "max")
        ],
        ({"reasoning_effort": "none"}, Thinking(enabled=False)),
        ({"reasoning": {"effort": "high", "exclude": False}}, Thinking(effort="high")),
        ({"reasoning": {"enabled": True, "max_tokens": 50}}, Thinking(enabled=True, budget_tokens=50)),
        ({"enable_thinking": False}, Thinking(enabled=False)),
        ({"enable_thinking": True, "thinking_budget": 1}, Thinking(enabled=True, budget_tokens=1)),
        ({"reasoning_effort": "low", "reasoning": {"effort": "low"}}, Thinking(effort="low")),
        ({"reasoning_effort": "none", "enable_thinking": False}, Thinking(enabled=False)),
        (kwargs(enable_thinking=True), Thinking(enabled=True)),
        (kwargs(thinking=False), Thinking(enabled=False)),
        (kwargs(reasoning_effort="high"), Thinking(effort="high")),
        (kwargs(reasoning_effort="own word"), AS_EVER),
    ],
    ids=str,
)
def test_thinking_is_read_from_whichever_field_speaks_of_it(fields, thinking):
    parsed = parse(**fields)
    assert parsed.thinking == parsed.prompts[0].thinking == thinking


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"reasoning": {"max_tokens": 0}}, "reasoning.max_tokens"),
        ({"thinking_budget": 0}, "thinking_budget"),
        ({"thinking_budget": CONTEXT_TOKENS_MAX + 1}, "thinking_budget"),
        ({"thinking_budget": 1.0}, "thinking_budget"),
        ({"enable_thinking": "yes"}, "enable_thinking"),
        ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "enable_thinking"),
        ({"enable_thinking": True, **kwargs(enable_thinking=False)}, "chat_template_kwargs.enable_thinking"),
        ({"thinking_budget": 5, "reasoning": {"max_tokens": 6}}, "reasoning.max_tokens"),
        ({"thinking_budget": 5, "enable_thinking": False}, "thinking_budget"),
        ({"reasoning": {"max_tokens": 5}, "reasoning_effort": "none"}, "reasoning.max_tokens"),
    ],
    ids=str,
)
def test_wishes_that_are_none_or_differ_are_refused_by_their_field(fields, param):
    with pytest.raises(InvalidRequest) as refusal:
        parse(**fields)
    assert refusal.value.param == param
    assert refusal.value.message.startswith(f"'{param}' ")


def test_variables_of_the_template_reach_it_as_they_are():
    options = {
        "date_string": "1 May",
        "enable_thinking": True,
        "level": 1.5,
        "hidden": None,
        "names": ["a", 5],
    }
    assert parse(**kwargs(**options)).prompts[0].options == options


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ([], "chat_template_kwargs"),
        ({"": 1}, "chat_template_kwargs"),
        ({"a-b": 1}, "chat_template_kwargs"),
        ({"__class__": 1}, "chat_template_kwargs"),
        ({"x" * 65: 1}, "chat_template_kwargs"),
        ({"a\n": 1}, "chat_template_kwargs"),
        ({f"a{index}": 1 for index in range(TEMPLATE_OPTIONS_MAX + 1)}, "chat_template_kwargs"),
        ({"messages": "x"}, "chat_template_kwargs.messages"),
        ({"tools": "x"}, "chat_template_kwargs.tools"),
        ({"add_generation_prompt": False}, "chat_template_kwargs.add_generation_prompt"),
        ({"a": {"b": 1}}, "chat_template_kwargs.a"),
        ({"a": [[1]]}, "chat_template_kwargs.a"),
        ({"a": "x" * TEMPLATE_OPTION_CHARS_MAX}, "chat_template_kwargs.a"),
        ({"enable_thinking": "yes"}, "chat_template_kwargs.enable_thinking"),
        ({"thinking": None}, "chat_template_kwargs.thinking"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_variables_are_few_small_and_plain(options, param):
    with pytest.raises(InvalidRequest) as refusal:
        parse(chat_template_kwargs=options)
    assert refusal.value.param == param
