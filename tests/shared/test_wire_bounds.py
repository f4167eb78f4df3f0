"""Values that no message may carry, field by field: the reader refuses the frame."""

from dataclasses import fields

import msgpack
import pytest

from shared import limits
from shared.codec import encode
from shared.messages import Hello, Parked, Step, Submit
from shared.model_facts import ModelFacts
from shared.sampling import Sampling
from tests.shared.wire_samples import change, refused, sample_of

VOCABULARY = limits.VOCABULARY_MAX
CONTEXT = limits.CONTEXT_TOKENS_MAX
SUBMIT = sample_of(Submit)
STEP = sample_of(Step)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sequence", ""),
        ("sequence", "x" * (limits.NAME_CHARS_MAX + 1)),
        ("attempt", 0),
        ("attempt", limits.ATTEMPTS_MAX + 1),
        ("prompt_ids", []),
        ("prompt_ids", [-1]),
        ("prompt_ids", [VOCABULARY]),
        ("emitted_ids", [VOCABULARY]),
        ("stop_ids", [2**63]),
        ("max_tokens", 1),
        ("max_tokens", CONTEXT + 1),
        ("rank", -1),
        ("rank", limits.LANES_MAX),
        ("quantum_ms", 0.0),
        ("quantum_ms", limits.QUANTUM_MS_MAX + 1),
    ],
)
def test_a_submit_out_of_bounds_is_refused(name, value):
    assert name in refused(change(SUBMIT, **{name: value}))


@pytest.mark.parametrize(
    "row",
    [
        ["", 1, 0, 5],
        ["a", 0, 0, 5],
        ["a", limits.ATTEMPTS_MAX + 1, 0, 5],
        ["a", 1, -1, 5],
        ["a", 1, CONTEXT, 5],
        ["a", 1, 0, -1],
        ["a", 1, 0, VOCABULARY],
        ["a", 1, 0, 2**64 - 1],
    ],
)
def test_a_steps_row_out_of_bounds_is_refused(row):
    """A token that no vocabulary has would otherwise be kept, and end the proxy at the next resume."""
    refused(change(STEP, rows=[row]))


@pytest.mark.parametrize(
    "share",
    [
        ["", 1, 5, 1.0],
        ["a", 0, 5, 1.0],
        ["a", 1, -1, 1.0],
        ["a", 1, CONTEXT + 1, 1.0],
        ["a", 1, 5, -0.5],
    ],
)
def test_a_share_of_prefill_out_of_bounds_is_refused(share):
    refused(change(STEP, prefills=[share]))


@pytest.mark.parametrize("name", ["step_ms", "row_ms"])
def test_a_step_that_took_less_than_no_time_is_refused(name):
    assert "negative" in refused(change(STEP, **{name: -1.0}))


@pytest.mark.parametrize("name", ["prefill_ms_per_token", "decode_ms_per_step", "budget_bytes"])
def test_a_hello_with_less_than_nothing_is_refused(name):
    hello = sample_of(Hello)
    assert "negative" in refused(change(hello, **{name: -1}))


@pytest.mark.parametrize(
    ("name", "value"), [("index", -1), ("index", CONTEXT), ("attempt", 0), ("sequence", "")]
)
def test_a_parked_out_of_bounds_is_refused(name, value):
    parked = sample_of(Parked)
    assert name in refused(change(parked, **{name: value}))


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 2.1), ("top_p", 0.0), ("seed", 2**63), ("choice", 2**32)]
)
def test_sampling_out_of_bounds_is_refused(name, value):
    names = [field.name for field in fields(Sampling)]
    place = [field.name for field in fields(Submit)].index("sampling")
    sampling = msgpack.unpackb(encode(SUBMIT))[2 + place]
    sampling[names.index(name)] = value
    assert name in refused(change(SUBMIT, sampling=sampling))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context_tokens", 0),
        ("kv_pad_tokens", 0),
        ("kv_bits", -1),
        ("kv_bits", 9),
        ("weights_bytes", -1),
        ("window_tokens", -1),
        ("window_tokens", CONTEXT + 1),
        ("window_bytes_per_token", -1),
    ],
)
def test_facts_out_of_bounds_are_refused(name, value):
    hello = sample_of(Hello)
    names = [field.name for field in fields(ModelFacts)]
    facts = msgpack.unpackb(encode(hello))[4]
    facts[names.index(name)] = value
    refused(change(hello, facts=facts))
