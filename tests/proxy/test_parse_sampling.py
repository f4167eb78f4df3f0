"""Penalties, logit biases and log probabilities in bodies: what is read, and what is refused by its field."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.openai_chat import parse_chat
from proxy.dialects.openai_completions import parse_completion
from shared.errors import InvalidRequest
from shared.limits import LOGIT_BIASES_MAX, TOP_LOGPROBS_MAX, VOCABULARY_MAX
from shared.sampling import LogitBias

BASES = {
    "chat": (parse_chat, {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    "completions": (parse_completion, {"model": "m", "prompt": "Hi"}),
}
PENALTIES = ["repetition_penalty", "presence_penalty", "frequency_penalty"]


def parsed(endpoint, **fields):
    function, base = BASES[endpoint]
    return function(json.dumps({**base, **fields}).encode(), lambda: 7)


def refused(endpoint, **fields):
    with pytest.raises(InvalidRequest) as refusal:
        parsed(endpoint, **fields)
    assert refusal.value.message.startswith(f"'{refusal.value.param}' ")
    return refusal.value


@pytest.fixture(params=list(BASES))
def endpoint(request):
    return request.param


# --- penalties ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repetition_penalty", 2),
        ("repetition_penalty", 0.01),
        ("presence_penalty", 2),
        ("presence_penalty", -2.0),
        ("frequency_penalty", -2),
        ("frequency_penalty", 0.5),
    ],
)
def test_a_penalty_is_read_up_to_its_bounds(endpoint, field, value):
    sampling = parsed(endpoint, **{field: value}).sampling
    assert (getattr(sampling, field), type(getattr(sampling, field))) == (value, float)
    assert {name: getattr(sampling, name) for name in PENALTIES if name != field} == {
        name: 1.0 if name == "repetition_penalty" else 0.0 for name in PENALTIES if name != field
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", 1e-50),
        ("repetition_penalty", 2.01),
        *[(field, value) for field in PENALTIES[1:] for value in (-2.01, 2.01)],
        *[(field, value) for field in PENALTIES for value in ("1", True, False, [1], 10**400, 1e300)],
    ],
)
def test_a_penalty_beyond_them_is_refused(endpoint, field, value):
    assert refused(endpoint, **{field: value}).param == field


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400"])
@pytest.mark.parametrize("field", PENALTIES)
def test_numbers_that_are_none_are_no_penalties(text, field):
    with pytest.raises(InvalidRequest) as refusal:
        parse_completion(f'{{"model":"m","prompt":"a","{field}":{text}}}'.encode(), lambda: 7)
    assert refusal.value.param == field


# --- biases -------------------------------------------------------------------------------------------------


def test_biases_are_read_and_their_order_is_nothing(endpoint):
    biases = parsed(endpoint, logit_bias={"50": -100, "7": 0.5, "1000": 100}).sampling.logit_bias
    assert biases == (LogitBias(7, 0.5), LogitBias(50, -100.0), LogitBias(1000, 100.0))
    assert {type(each.bias) for each in biases} == {float}
    assert parsed(endpoint, logit_bias={"1000": 100, "7": 0.5, "50": -100}).sampling.logit_bias == biases


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_biases_are_none(endpoint, nothing):
    assert parsed(endpoint, logit_bias=nothing) == parsed(endpoint)


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], "logit_bias"),
        ([[5, 1]], "logit_bias"),
        (5, "logit_bias"),
        (False, "logit_bias"),
        ("5", "logit_bias"),
        ({"": 1}, "logit_bias"),
        ({"a": 1}, "logit_bias"),
        ({"-1": 1}, "logit_bias"),
        ({"+1": 1}, "logit_bias"),
        ({" 1": 1}, "logit_bias"),
        ({"1\n": 1}, "logit_bias"),
        ({"1_0": 1}, "logit_bias"),
        ({"1.0": 1}, "logit_bias"),
        ({"\u0665": 1}, "logit_bias"),
        ({str(VOCABULARY_MAX): 1}, "logit_bias"),
        ({"9" * 5000: 1}, "logit_bias"),
        ({"5": 1, "05": 2}, "logit_bias"),
        ({"5": 100.5}, "logit_bias.5"),
        ({"5": -101}, "logit_bias.5"),
        ({"5": 10**400}, "logit_bias.5"),
        ({"5": True}, "logit_bias.5"),
        ({"5": "1"}, "logit_bias.5"),
        ({"5": None}, "logit_bias.5"),
        ({"7": 1, "5": [1]}, "logit_bias.5"),
    ],
)
def test_what_is_no_object_of_ids_and_numbers_is_refused(endpoint, value, param):
    assert refused(endpoint, logit_bias=value).param == param


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e400"])
def test_numbers_that_are_none_are_no_biases(text):
    with pytest.raises(InvalidRequest) as refusal:
        parse_completion(f'{{"model":"m","prompt":"a","logit_bias":{{"5":{text}}}}}'.encode(), lambda: 7)
    assert refusal.value.param == "logit_bias.5"


def test_biases_are_bounded_in_number(endpoint):
    most = {str(token): 1 for token in range(LOGIT_BIASES_MAX)}
    assert len(parsed(endpoint, logit_bias=most).sampling.logit_bias) == LOGIT_BIASES_MAX
    refusal = refused(endpoint, logit_bias={**most, str(LOGIT_BIASES_MAX): 1})
    assert str(LOGIT_BIASES_MAX) in refusal.message


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, VOCABULARY_MAX - 1), st.floats(-100, 100), max_size=20))
def test_every_bias_within_the_bounds_arrives(biases):
    sampling = parsed("chat", logit_bias={str(token): bias for token, bias in biases.items()}).sampling
    assert {each.token: each.bias for each in sampling.logit_bias} == biases
    assert len(sampling.logit_bias) == len(biases)


# --- log probabilities --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "tops"),
    [
        ({}, -1),
        ({"logprobs": False}, -1),
        ({"logprobs": None, "top_logprobs": None}, -1),
        ({"logprobs": False, "top_logprobs": 0}, -1),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": TOP_LOGPROBS_MAX}, TOP_LOGPROBS_MAX),
    ],
)
def test_a_chat_says_whether_and_beside_it_how_many(fields, tops):
    assert parsed("chat", **fields).sampling.top_logprobs == tops


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": None, "top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": TOP_LOGPROBS_MAX + 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 2.0}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": "true"}, "logprobs"),
    ],
)
def test_a_chat_that_asks_otherwise_is_refused(fields, param):
    assert refused("chat", **fields).param == param


@pytest.mark.parametrize(
    ("logprobs", "tops"), [(None, -1), (False, -1), (0, 0), (5, 5), (TOP_LOGPROBS_MAX, TOP_LOGPROBS_MAX)]
)
def test_a_completion_says_how_many_and_nothing_for_none(logprobs, tops):
    assert parsed("completions", logprobs=logprobs).sampling.top_logprobs == tops


@pytest.mark.parametrize("value", [-1, TOP_LOGPROBS_MAX + 1, 2.0, "2", True, "false", [2], 2**70])
def test_a_completion_that_asks_otherwise_is_refused(value):
    assert refused("completions", logprobs=value).param == "logprobs"
