"""The fields that both endpoints take: what is read, what is refused, and what the refusal says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.openai_chat import parse_chat
from proxy.dialects.openai_completions import parse_completion
from proxy.dialects.openai_fields import HARMLESS
from proxy.request import Parsed
from shared.errors import InvalidRequest
from shared.limits import (
    CHOICES_MAX,
    CONTEXT_TOKENS_MAX,
    SEED_MAX,
    SEED_MIN,
    STOP_CHARS_MAX,
    STOPS_MAX,
    VOCABULARY_MAX,
)
from shared.sampling import Sampling

BASES = {
    "chat": (parse_chat, {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    "completions": (parse_completion, {"model": "m", "prompt": "Hi"}),
}


@pytest.fixture(params=list(BASES))
def parse(request):
    """Parse the smallest body of an endpoint with the given fields on top."""
    function, base = BASES[request.param]
    return lambda **fields: function(json.dumps({**base, **fields}).encode(), lambda: 7)


def test_what_is_left_out_has_the_documented_defaults(parse):
    parsed = parse()
    assert parsed.model == "m"
    assert parsed.sampling == Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=7)
    assert (parsed.choices, parsed.max_tokens, parsed.stops) == (1, None, ())
    assert (parsed.stream, parsed.include_usage, parsed.continuous_usage) == (False, False, False)
    assert not parsed.ignores_eos


def test_null_means_left_out(parse):
    fields = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "stream"]
    penalties = ["repetition_penalty", "presence_penalty", "frequency_penalty"]
    others = ["stream_options", "logit_bias", "logprobs", "best_of", "user", "ignore_eos", "min_tokens"]
    nulls = dict.fromkeys([*fields, *penalties, *others])
    assert parse(**nulls) == parse()


def test_what_is_given_is_read(parse):
    parsed = parse(
        temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=-1, max_tokens=5, n=2, stop=["a", "b"]
    )
    assert parsed.sampling == Sampling(temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, seed=-1)
    assert (parsed.choices, parsed.max_tokens, parsed.stops) == (2, 5, ("a", "b"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.01),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", [1]),
        ("top_k", -2),
        ("top_k", VOCABULARY_MAX + 1),
        ("top_k", 1.0),
        ("top_k", False),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("seed", 2**70),
        ("seed", -(2**70)),
        ("seed", SEED_MAX + 1),
        ("seed", SEED_MIN - 1),
        ("seed", 1.5),
        ("seed", "1"),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 1.0),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_tokens", CONTEXT_TOKENS_MAX + 1),
        ("n", 0),
        ("n", CHOICES_MAX + 1),
        ("n", 1.0),
        ("stop", 5),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["a", ""]),
        ("stop", ["a", 5]),
        ("stop", [None]),
        ("stop", {"a": 1}),
        ("stop", False),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", "x" * (STOP_CHARS_MAX + 1)),
        ("stream", "true"),
        ("stream", 1),
        ("ignore_eos", 1),
        ("ignore_eos", "true"),
        ("min_tokens", -1),
        ("min_tokens", True),
        ("min_tokens", CONTEXT_TOKENS_MAX + 1),
        ("model", ""),
        ("model", 5),
        ("model", None),
    ],
)
def test_a_value_of_the_wrong_type_or_size_is_refused_by_field(parse, field, value):
    with pytest.raises(InvalidRequest) as refusal:
        parse(**{field: value})
    assert refusal.value.param == field
    assert refusal.value.message.startswith(f"'{field}' ")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "max_tokens", "seed"])
def test_numbers_that_are_none_are_refused_by_field(text, field):
    body = f'{{"model":"m","prompt":"a","{field}":{text}}}'.encode()
    with pytest.raises(InvalidRequest) as refusal:
        parse_completion(body, lambda: 7)
    assert refusal.value.param == field


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("temperature", 3, "'temperature' must be at most 2.0."),
        ("temperature", "1", "'temperature' must be a number."),
        ("top_p", 0, "'top_p' must be more than 0.0."),
        ("max_tokens", 0, "'max_tokens' must be at least 1."),
        ("max_tokens", 1.5, "'max_tokens' must be an integer."),
        ("stream", 0, "'stream' must be true or false."),
        ("model", None, "'model' is required."),
        ("model", "", "'model' must not be empty."),
        ("stream_options", [], "'stream_options' must be an object."),
        ("tempratur", 1, "'tempratur' is no field known here; did you mean 'temperature'?"),
        ("frobnicate", None, "'frobnicate' is no field known here."),
        ("best_of", 2, "'best_of' must be the same as 'n': no answers are thrown away here."),
    ],
)
def test_the_refusal_is_one_plain_sentence(parse, field, value, said):
    with pytest.raises(InvalidRequest) as refusal:
        parse(**{field: value})
    assert refusal.value.message == said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 2),
        ("top_p", 1),
        ("top_k", 100_000),
        ("seed", SEED_MAX),
        ("seed", SEED_MIN),
        ("max_tokens", CONTEXT_TOKENS_MAX),
        ("n", CHOICES_MAX),
        ("stop", "x" * STOP_CHARS_MAX),
        ("stop", ["x" * (each + 1) for each in range(STOPS_MAX)]),
        ("stop", []),
    ],
)
def test_the_bounds_themselves_are_allowed(parse, field, value):
    parse(**{field: value})


def test_top_k_minus_one_means_no_limit(parse):
    assert parse(top_k=-1).sampling.top_k == 0


def test_one_stop_string_is_a_list_of_one_and_repeats_count_once(parse):
    assert parse(stop="END").stops == ("END",)
    assert parse(stop=["b", "a", "b"]).stops == ("b", "a")


@pytest.mark.parametrize(
    ("options", "wished"),
    [
        ({}, False),
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ({"include_usage": True, "include_obfuscation": False}, True),
    ],
)
def test_usage_is_wished_only_when_said_so(parse, options, wished):
    assert parse(stream=True, stream_options=options).include_usage is wished


@pytest.mark.parametrize("usage", [True, False, None])
@pytest.mark.parametrize("continuous", [True, False, None])
def test_a_usage_in_each_chunk_is_wished_only_where_one_is(parse, usage, continuous):
    options = {"include_usage": usage, "continuous_usage_stats": continuous}
    assert parse(stream=True, stream_options=options).continuous_usage is bool(usage and continuous)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": 9}, "is only supported with 'ignore_eos', and without 'stop'."),
        (
            {"max_tokens": 9, "ignore_eos": True, "stop": "a"},
            "is only supported with 'ignore_eos', and without 'stop'.",
        ),
        ({"max_tokens": 4, "ignore_eos": True}, "needs a 'max_tokens' that is no less."),
        ({"ignore_eos": True}, "needs a 'max_tokens' that is no less."),
    ],
    ids=str,
)
def test_a_least_number_of_tokens_is_refused_where_it_might_not_be_met(parse, fields, said):
    with pytest.raises(InvalidRequest) as refusal:
        parse(min_tokens=5, **fields)
    assert (refusal.value.param, refusal.value.message) == ("min_tokens", f"'min_tokens' {said}")


def test_a_least_number_of_tokens_that_is_met_anyway_changes_nothing(parse):
    whole = parse(max_tokens=5, ignore_eos=True)
    assert whole.ignores_eos
    assert parse(max_tokens=5, ignore_eos=True, min_tokens=5, stop=[]) == whole


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {}}, "stream_options"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"obfuscation": True}}, "stream_options.obfuscation"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": 1}},
            "stream_options.continuous_usage_stats",
        ),
        ({"stream": True, "stream_options": "include_usage"}, "stream_options"),
    ],
)
def test_stream_options_are_checked_like_any_field(parse, fields, param):
    with pytest.raises(InvalidRequest) as refusal:
        parse(**fields)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("best_of", True),
        ("thinking", {}),
        ("x" * 100_000, 1),
        ("", 1),
    ],
)
def test_what_would_change_the_answer_and_is_not_honoured_is_refused(parse, field, value):
    with pytest.raises(InvalidRequest) as refusal:
        parse(**{field: value})
    assert refusal.value.param == field[:128]
    assert len(refusal.value.message) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 0),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0),
        ("repetition_penalty", 1.0),
        ("logit_bias", {}),
        ("best_of", 1),
        ("ignore_eos", False),
        ("min_tokens", 0),
        *[(field, "anything") for field in sorted(HARMLESS)],
    ],
)
def test_what_asks_for_nothing_is_accepted(parse, field, value):
    assert parse(**{field: value}) == parse()


def test_the_best_of_all_answers_are_all_of_them(parse):
    assert parse(best_of=3, n=3) == parse(n=3)
    with pytest.raises(InvalidRequest):
        parse(best_of=1, n=3)


@pytest.mark.parametrize("key", ["", "k", "x" * 1024, "ключ\n漢字"])
def test_a_cache_key_is_taken_as_it_is(parse, key):
    assert parse(prompt_cache_key=key).prompt_cache_key == key


@pytest.mark.parametrize(
    ("key", "predicate"),
    [
        ("x" * 1025, "must have at most 1024 characters."),
        (7, "must be a string."),
        (["k"], "must be a string."),
        ({}, "must be a string."),
    ],
)
def test_a_cache_key_that_is_no_text_or_too_long_is_refused_by_its_name(parse, key, predicate):
    with pytest.raises(InvalidRequest) as refusal:
        parse(prompt_cache_key=key)
    assert (refusal.value.param, refusal.value.message) == (
        "prompt_cache_key",
        f"'prompt_cache_key' {predicate}",
    )


SAMPLING = ["n", "seed", "stop", "top_k", "temperature", "max_tokens", "max_completion_tokens", "logit_bias"]
NEWER = ["repetition_penalty", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "5", "05"]
CHATS = ["tools", "tool_choice", "tool_calls", "function", "functions", "function_call", "name", "arguments"]
ENDS = ["ignore_eos", "min_tokens", "include_usage", "continuous_usage_stats"]
FORMS = ["response_format", "json_schema", "schema", "guided_json", "structured_outputs", "json", "choice"]
THOUGHTS = ["reasoning", "reasoning_effort", "effort", "enable_thinking", "chat_template_kwargs", "echo"]
SHAPE = ["model", "prompt", "messages", "role", "content", "type", "text", "stream", "stream_options", "x"]
FIELDS = st.sampled_from([*SAMPLING, *NEWER, *CHATS, *FORMS, *THOUGHTS, *ENDS, *SHAPE])
LEAVES = st.sampled_from(
    [None, True, False, 0, 1, -1, 1.5, 2**70, 10**400, 1e308, "", "user", "text", "tool", "function", "none"]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(FIELDS, VALUES, max_size=5), st.sampled_from(list(BASES)))
def test_whatever_the_fields_hold_the_answer_is_a_request_or_a_refusal_with_a_field(fields, endpoint):
    function, base = BASES[endpoint]
    try:
        parsed = function(json.dumps({**base, **fields}).encode(), lambda: 7)
    except InvalidRequest as refusal:
        assert refusal.param  # noqa: PT017 (either outcome is right)
        assert refusal.message.startswith(f"'{refusal.param}' ")  # noqa: PT017 (likewise)
        assert not {"Input", "Value", "validat", "instance"} & set(refusal.message.split())  # noqa: PT017 (likewise)
    else:
        assert isinstance(parsed, Parsed)
