"""The codec: what goes in comes out, and whatever else comes in is a FrameError."""

import tracemalloc
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import limits, messages
from shared.codec import decode, encode
from shared.errors import FrameError
from shared.messages import Message, RowLogprobs, Step, StepRow, Submit
from shared.sampling import LogitBias, Sampling
from tests.shared.wire_samples import SAMPLES, change, refused, sample_of

GOLDEN = Path(__file__).with_name("golden_wire.txt")
KINDS = get_args(Message)
EMITTED_MAX = 4

NUMBERS = st.integers(-(2**63), 2**64 - 1)
IDS = st.integers(0, limits.VOCABULARY_MAX - 1)
TIMES = st.floats(0, allow_nan=False, allow_infinity=False)
LOGPROBS = st.floats(max_value=0, allow_nan=False, allow_infinity=False)
PENALTIES = st.floats(-limits.PENALTY_MAX, limits.PENALTY_MAX)
BIASES = st.builds(LogitBias, IDS, st.floats(-limits.LOGIT_BIAS_MAX, limits.LOGIT_BIAS_MAX))
PLAIN = {
    int: NUMBERS,
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=40) | st.just("ü" * limits.TEXT_CHARS_MAX),
}
# Fields whose bounds are narrower than their type's.
BOUNDED = {
    "sequence": st.text(min_size=1, max_size=limits.NAME_CHARS_MAX),
    "attempt": st.integers(1, limits.ATTEMPTS_MAX),
    "index": st.integers(0, limits.CONTEXT_TOKENS_MAX - 1),
    "token": IDS,
    "prompt_ids": st.lists(IDS, min_size=1, max_size=20).map(tuple),
    "emitted_ids": st.lists(IDS, max_size=EMITTED_MAX).map(tuple),
    "stop_ids": st.lists(IDS, max_size=20).map(tuple),
    "max_tokens": st.integers(EMITTED_MAX + 1, limits.CONTEXT_TOKENS_MAX),
    "slots": st.integers(1, limits.SLOTS_MAX),
    "context_tokens": st.integers(1, limits.CONTEXT_TOKENS_MAX),
    "vocabulary": st.integers(1, limits.VOCABULARY_MAX),
    "temperature": st.floats(0, limits.TEMPERATURE_MAX),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(0, limits.VOCABULARY_MAX),
    "min_p": st.floats(0, 1),
    "seed": st.integers(limits.SEED_MIN, limits.SEED_MAX),
    "choice": st.integers(0, (1 << 32) - 1),
    "repetition_penalty": st.floats(limits.REPETITION_PENALTY_MIN, limits.REPETITION_PENALTY_MAX),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), PENALTIES),
    "logit_bias": st.lists(BIASES, max_size=5, unique_by=lambda each: each.token).map(tuple),
    "top_logprobs": st.integers(-1, limits.TOP_LOGPROBS_MAX),
    "kv_pad_tokens": st.integers(1, 1 << 20),
    "kv_bits": st.integers(0, 8),
    **{name: st.integers(0, 1 << 60) for name in ("weights_bytes", "budget_bytes")},
    **{name: st.integers(0, 1 << 60) for name in ("kv_bytes_per_token", "fixed_bytes_per_row")},
    "window_tokens": st.integers(0, limits.CONTEXT_TOKENS_MAX),
    "window_bytes_per_token": st.integers(0, 1 << 60),
    "rung": st.integers(0, limits.RUNG_MAX),
    "rank": st.integers(0, limits.LANES_MAX - 1),
    "quantum_ms": st.floats(0, limits.QUANTUM_MS_MAX, exclude_min=True),
    **dict.fromkeys(("tokens", "cached", "shares_from"), st.integers(0, limits.CONTEXT_TOKENS_MAX)),
    **dict.fromkeys(("added", "gone"), st.lists(st.integers(0, (1 << 62) - 1), max_size=20).map(tuple)),
    "grammar": st.text(max_size=40) | st.just("ü" * limits.GRAMMAR_CHARS_MAX),
    "salt": st.text(max_size=limits.SALT_CHARS_MAX),
    **dict.fromkeys(("step_ms", "row_ms", "gpu_ms"), TIMES),
    **dict.fromkeys(("prefill_ms_per_token", "decode_ms_per_step"), TIMES),
}


def values_of(annotation, name=""):
    """Return a strategy for a field, built from its annotation, or from the narrower bounds of its name."""
    if name in BOUNDED:
        return BOUNDED[name]
    if annotation in PLAIN:
        return PLAIN[annotation]
    if get_origin(annotation) is Literal:
        return st.sampled_from(get_args(annotation))
    if get_origin(annotation) is tuple:
        return st.lists(values_of(get_args(annotation)[0]), max_size=5).map(tuple)
    return records_of(annotation)


def records_of(kind):
    if kind is Step:
        return steps()
    return st.builds(kind, **{name: values_of(hint, name) for name, hint in get_type_hints(kind).items()})


@st.composite
def steps(draw):
    """Return steps some of whose rows have log probabilities, each with as many of others as ids."""
    hints = {name: hint for name, hint in get_type_hints(Step).items() if name != "logprobs"}
    values = {name: draw(values_of(hint, name)) for name, hint in hints.items()}
    rows = st.sampled_from(range(len(values["rows"]))) if values["rows"] else st.nothing()
    logprobs = []
    for place in draw(st.lists(rows, unique=True)):
        others = draw(st.lists(st.tuples(IDS, LOGPROBS), max_size=limits.TOP_LOGPROBS_MAX))
        ids, their = tuple(token for token, _ in others), tuple(logprob for _, logprob in others)
        logprobs.append(RowLogprobs(place, draw(LOGPROBS), ids, their))
    return Step(**values, logprobs=tuple(logprobs))


MESSAGES = st.one_of([records_of(kind) for kind in KINDS])


@given(MESSAGES)
def test_a_message_of_any_kind_comes_back_as_it_went(message):
    assert decode(encode(message)) == message


def test_there_is_a_sample_of_every_kind():
    assert [type(sample) for sample in SAMPLES] == list(KINDS)
    assert list(golden()) == [kind.__name__ for kind in KINDS]


# --- the wire as it was agreed ------------------------------------------------------------------------------


def golden():
    lines = (line.split() for line in GOLDEN.read_text("utf-8").splitlines() if not line.startswith("#"))
    return {name: bytes.fromhex(frame) for name, frame in lines}


CHANGED = "the wire's format has changed: raise PROTOCOL_VERSION, then renew golden_wire.txt"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_the_bytes_of_a_message_are_those_of_its_protocol_version(sample):
    """Proxy and worker may be of two installs for a while; the version must tell them apart."""
    frame = golden()[type(sample).__name__]
    assert msgpack.unpackb(frame)[0] == messages.PROTOCOL_VERSION, CHANGED
    assert encode(sample).hex() == frame.hex(), CHANGED
    assert decode(frame) == sample, CHANGED


# --- hostile frames -----------------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(raw):
    refused(raw)


ODD = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.sampled_from(SAMPLES), st.data())
def test_a_frame_with_anything_in_the_place_of_a_field_is_a_message_or_refused(sample, data):
    parts = msgpack.unpackb(encode(sample))
    parts[data.draw(st.integers(0, len(parts) - 1))] = data.draw(ODD)
    try:
        message = decode(msgpack.packb(parts))
    except FrameError:
        return
    assert decode(encode(message)) == message


@given(st.sampled_from(SAMPLES), st.data())
def test_a_frame_with_some_bytes_changed_is_a_message_or_refused(sample, data):
    frame = bytearray(encode(sample))
    for place in data.draw(st.lists(st.integers(0, len(frame) - 1), max_size=4)):
        frame[place] = data.draw(st.integers(0, 255))
    try:
        message = decode(bytes(frame))
    except FrameError:
        return
    assert decode(encode(message)) == message


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_frame_cut_anywhere_or_with_more_behind_it_is_refused(sample):
    frame = encode(sample)
    for end in range(len(frame)):
        refused(frame[:end])
    assert refused(frame + b"\x00") == "bytes after the end"


def places(kind, parts, path=()):
    """Yield (path, annotation) of every field in a frame's array, those of nested records too."""
    for place, field in enumerate(fields(kind)):
        annotation = get_type_hints(kind, include_extras=True)[field.name]
        here = (*path, place)
        yield here, annotation
        inner = get_args(annotation)[:1] if get_origin(annotation) is tuple else ()
        if is_dataclass(annotation):
            yield from places(annotation, parts[place], here)
        elif inner and is_dataclass(inner[0]):
            for number, item in enumerate(parts[place]):
                yield from places(inner[0], item, (*here, number))
        elif inner:
            yield from (((*here, number), inner[0]) for number, _ in enumerate(parts[place]))


FIELDS = [
    pytest.param(sample, path, annotation, id=f"{type(sample).__name__}{path}")
    for sample in SAMPLES
    for path, annotation in places(type(sample), msgpack.unpackb(encode(sample))[2:])
]


def wrong_for(annotation):
    """Return values of types that this annotation doesn't take, though Python might take some for it."""
    anything = [None, {}, {"a": 1}, b"x", msgpack.ExtType(5, b"x"), msgpack.Timestamp(1), [[]], [None], [{}]]
    if annotation in (int, float):
        anything += [True, False, "1", [], float("nan"), float("inf"), float("-inf")]
    if annotation is int:
        anything += [1.0, 0.5]
    if annotation is bool:
        anything += [0, 1, "true", []]
    if annotation is str or get_origin(annotation) is Annotated:
        most = get_args(annotation)[1].chars if annotation is not str else limits.TEXT_CHARS_MAX
        anything += [1, True, [], "x" * (most + 1)]
    if get_origin(annotation) is Literal:
        anything += [0, "", "x", "stop ", []]
    if get_origin(annotation) is tuple:
        anything += [1, "ab", [True], [1.5]]
    return anything


@pytest.mark.parametrize(("sample", "path", "annotation"), FIELDS)
def test_a_field_of_the_wrong_type_is_refused(sample, path, annotation):
    for wrong in wrong_for(annotation):
        parts = msgpack.unpackb(encode(sample))
        *outer, last = (path[0] + 2, *path[1:])
        target = parts
        for step in outer:
            target = target[step]
        target[last] = wrong
        refused(msgpack.packb(parts))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_field_too_few_or_too_many_is_refused(sample):
    parts = msgpack.unpackb(encode(sample))
    assert "fields" in refused(msgpack.packb(parts[:-1]))
    assert "fields" in refused(msgpack.packb([*parts, 0]))


@pytest.mark.parametrize("version", [0, messages.PROTOCOL_VERSION + 1, -1])
def test_another_version_is_refused_by_its_number(version):
    parts = msgpack.unpackb(encode(SAMPLES[0]))
    assert f"version {version}" in refused(msgpack.packb([version, *parts[1:]]))


@pytest.mark.parametrize("kind", [0, -1, len(KINDS) + 1, 2**64 - 1])
def test_an_unknown_kind_is_refused(kind):
    assert f"unknown kind {kind}" in refused(msgpack.packb([messages.PROTOCOL_VERSION, kind]))


@pytest.mark.parametrize("head", [None, True, "1", 1.0, [], [[]] * 1000, {}], ids=str)
def test_a_head_that_is_no_number_is_refused_in_few_words(head):
    for parts in ([head, 1], [messages.PROTOCOL_VERSION, head]):
        assert len(refused(msgpack.packb(parts))) < 100


@pytest.mark.parametrize("content", [None, 1, "a", {}, {1: 1}, [], [messages.PROTOCOL_VERSION]], ids=str)
def test_what_is_no_array_with_a_head_is_refused(content):
    refused(msgpack.packb(content))


@pytest.mark.parametrize("structure", [[1], {"a": 1}, b"x", msgpack.ExtType(5, b"x")], ids=str)
def test_a_structure_where_a_number_stands_is_refused_before_it_is_built(structure):
    assert refused(change(sample_of(Submit), epoch=structure)) == "not a frame: ValueError"


def array(count, item):
    return b"\xdd" + count.to_bytes(4, "big") + item * count


HEAD = bytes([0x9C, messages.PROTOCOL_VERSION])
BULK = {
    "ten thousand levels": b"\x91" * 10_000,
    "a thousand levels that promise a million items": (b"\xdd" + (1 << 20).to_bytes(4, "big")) * 1000,
    "fifteen million empty lists": b"\x9f" + array(limits.CONTEXT_TOKENS_MAX, b"\x90") * 15,
    "fifteen million empty maps": b"\x9f" + array(limits.CONTEXT_TOKENS_MAX, b"\x80") * 15,
    "empty lists for prompt ids": HEAD + b"\x01\x01\xa1a\x01" + array(limits.CONTEXT_TOKENS_MAX, b"\x90"),
    "too many prompt ids": HEAD + b"\x01\x01\xa1a\x01" + array(limits.CONTEXT_TOKENS_MAX + 1, b"\x01"),
    "two million rows": bytes([0x98, messages.PROTOCOL_VERSION])
    + b"\x05\x01\x01\x01\x01"
    + array(1 << 21, b"\x94\xa1a\x01\x00\x05"),
    "a string that promises a gigabyte": HEAD + b"\x02\x01\xdb\x40\x00\x00\x00",
    "a list that promises four billion": HEAD + b"\x01\x01\xa1a\x01\xdd\xff\xff\xff\xff",
    "a map that promises four billion": b"\xdf\xff\xff\xff\xff",
    "an extension of a gigabyte": HEAD + b"\xc9\x40\x00\x00\x00\x05",
}


@pytest.mark.parametrize("frame", BULK.values(), ids=BULK.keys())
def test_no_frame_takes_memory_to_speak_of(frame):
    """No more than the largest true message takes: a list of ids as long as the longest context."""
    tracemalloc.start()
    refused(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80 * limits.MIB


def test_a_frame_over_the_limit_is_refused_unread():
    assert str(limits.FRAME_BYTES_MAX) in refused(b"\x00" * (limits.FRAME_BYTES_MAX + 1))


def test_a_message_over_the_limit_is_not_made():
    row = StepRow("x" * limits.NAME_CHARS_MAX, 1, 0, 5)
    with pytest.raises(ValueError, match=str(limits.FRAME_BYTES_MAX)):
        encode(Step(1, 1, 1.0, 1.0, (row,) * 150_000, ()))


def test_the_longest_grammar_goes_through_with_the_longest_context():
    ids = (limits.VOCABULARY_MAX - 1,) * limits.CONTEXT_TOKENS_MAX
    sampling = Sampling(grammar="\U0001f332" * limits.GRAMMAR_CHARS_MAX)
    submit = Submit(1, "a", 1, ids, ids[1:], limits.CONTEXT_TOKENS_MAX, (1,) * 100, sampling, 0, 1.0)
    assert decode(encode(submit)) == submit


def test_the_largest_submit_of_all_goes_through():
    ids = (limits.VOCABULARY_MAX - 1,) * (limits.CONTEXT_TOKENS_MAX - 1)
    submit = Submit(
        1, "x" * limits.NAME_CHARS_MAX, 1, ids, ids, limits.CONTEXT_TOKENS_MAX, ids, Sampling(), 0, 1.0
    )
    assert decode(encode(submit)) == submit
