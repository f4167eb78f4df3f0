"""Completion bodies: the four forms of a prompt, and how many answers one request may ask for."""

import json

import pytest

from proxy.dialects.openai_completions import ECHO, parse_completion
from proxy.request import IdsPrompt, TextPrompt
from shared.errors import InvalidRequest
from shared.limits import PROMPTS_MAX, SEQUENCES_PER_REQUEST_MAX, VOCABULARY_MAX


def parse(**fields):
    return parse_completion(json.dumps({"model": "m", **fields}).encode(), lambda: 7)


def refused_field(**fields):
    with pytest.raises(InvalidRequest) as refusal:
        parse(**fields)
    return refusal.value.param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", (TextPrompt("a"),)),
        (["a"], (TextPrompt("a"),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([5, 6], (IdsPrompt((5, 6)),)),
        ([[5], [6, 7]], (IdsPrompt((5,)), IdsPrompt((6, 7)))),
        ([VOCABULARY_MAX - 1], (IdsPrompt((VOCABULARY_MAX - 1,)),)),
        (["a"] * PROMPTS_MAX, (TextPrompt("a"),) * PROMPTS_MAX),
    ],
)
def test_a_prompt_comes_in_four_forms(prompt, prompts):
    parsed = parse(prompt=prompt)
    assert parsed.endpoint == "completions"
    assert parsed.prompts == prompts


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        (None, "prompt"),
        (5, "prompt"),
        ({"text": "a"}, "prompt"),
        (["a", 5], "prompt"),
        ([5, "a"], "prompt"),
        ([5, True], "prompt"),
        ([True], "prompt"),
        ([5, 1.0], "prompt"),
        ([None], "prompt"),
        ([-1], "prompt"),
        ([VOCABULARY_MAX], "prompt"),
        ([2**70], "prompt"),
        ([""], "prompt.0"),
        (["a", ""], "prompt.1"),
        ([[]], "prompt.0"),
        ([[5], []], "prompt.1"),
        ([[5], ["a"]], "prompt.1"),
        ([[[5]]], "prompt.0"),
        ([[5, -1]], "prompt.0"),
        (["a"] * (PROMPTS_MAX + 1), "prompt"),
    ],
)
def test_a_prompt_of_no_form_is_refused(prompt, param):
    assert refused_field(prompt=prompt) == param


def test_a_prompt_is_required():
    assert refused_field() == "prompt"


def test_prompts_times_n_is_bounded():
    half = SEQUENCES_PER_REQUEST_MAX // 2
    assert len(parse(prompt=["a"] * half, n=2).prompts) == half
    assert refused_field(prompt=["a"] * (half + 1), n=2) == "n"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", []),
        ("reasoning_effort", "low"),
        ("top_logprobs", 5),
        ("messages", []),
        ("max_completion_tokens", 5),
    ],
)
def test_an_option_that_is_not_honoured_is_refused(field, value):
    assert refused_field(prompt="a", **{field: value}) == field


@pytest.mark.parametrize(("field", "value"), [("echo", False), ("suffix", ""), ("suffix", None)])
def test_an_option_that_asks_for_nothing_is_accepted(field, value):
    assert parse(prompt="a", **{field: value}) == parse(prompt="a")


def test_an_answer_that_fills_in_has_the_text_behind_it_in_each_prompt():
    assert parse(prompt=["a", "b"], suffix="c").prompts == (TextPrompt("a", "c"), TextPrompt("b", "c"))


def test_an_echo_is_wished_only_when_said_so():
    assert parse(prompt="a", echo=True).extras == {ECHO: True}
    assert parse(prompt="a", echo=False).extras == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [5, 6], "echo": True}, "echo"),
        ({"prompt": [[5], [6]], "suffix": "b"}, "suffix"),
        ({"prompt": "a", "echo": True, "logprobs": 0}, "echo"),
        ({"prompt": "a", "echo": 1}, "echo"),
        ({"prompt": "a", "suffix": 5}, "suffix"),
    ],
)
def test_an_echo_and_a_suffix_need_prompts_of_text(fields, param):
    assert refused_field(**fields) == param
