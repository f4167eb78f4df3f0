"""Hostile bodies: refused with a reason, in bounded time, and never with another exception."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.json_body import read_object
from shared.errors import InvalidRequest
from shared.limits import BODY_BYTES_MAX, BODY_DEPTH_MAX, BODY_PARTS_MAX


def nested(levels: int) -> bytes:
    """An object whose innermost list is `levels` deep, the object included."""
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "isn't valid JSON"),
        (b"{", "isn't valid JSON"),
        (b'{"a":1}x', "isn't valid JSON"),
        (b"\xef\xbb\xbf{}", "isn't valid JSON"),
        (b'{"a":"\xff"}', "UTF-8 at byte 6"),
        (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"NaN", "must be a JSON object"),
        (b'{"a":' + b"1" * 5000 + b"}", "thousands of digits"),
        (nested(BODY_DEPTH_MAX + 1), "levels deep"),
        (b"[" * 10_000, "levels deep"),
        (b'{"a":' * 10_000, "levels deep"),
        (nested(10_000), "levels deep"),
    ],
)
def test_a_body_that_is_no_sound_object_is_refused_in_words(body, said):
    with pytest.raises(InvalidRequest, match=said) as refusal:
        read_object(body)
    assert refusal.value.param is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"temperature":NaN}', "temperature"),
        (b'{"a":[0,{"b":-Infinity}]}', "a.1.b"),
        (b'{"n":1,"n":2}', "n"),
        (b'{"a":{"role":"x","role":"x"}}', "role"),
        (b'{"messages":[{"content":"half \\ud83d"}]}', "messages.0.content"),
        (b'{"a":["\\uDE00 alone"]}', "a.0"),
    ],
)
def test_what_pythons_decoder_would_let_through_is_refused_by_field(body, param):
    with pytest.raises(InvalidRequest) as refusal:
        read_object(body)
    assert refusal.value.param == param


def test_a_key_given_twice_among_very_many_is_found_at_once():
    """The search must not be quadratic in the number of keys."""
    keys = ",".join(f'"{number}":0' for number in range(BODY_PARTS_MAX // 2))
    with pytest.raises(InvalidRequest, match="'7' is given twice"):
        read_object(f'{{{keys},"7":0}}'.encode())


@pytest.mark.parametrize(
    "filling",
    [b'"",', b'"\\\\",', b"[],", b"{},", b'"', b"[", b"\\", b'\\"'],
    ids=["strings", "backslashes", "lists", "objects", "quotes", "openings", "bare", "escapes"],
)
def test_the_largest_body_of_the_smallest_parts_is_refused(filling):
    """Building ten million empty strings or lists first would take seconds and gigabytes."""
    body = b'{"a":[' + filling * ((BODY_BYTES_MAX - 10) // len(filling)) + b"0]}"
    with pytest.raises(InvalidRequest):
        read_object(body)


def test_the_name_of_a_field_is_cut_before_it_is_said_back():
    long = "x" * 10_000
    with pytest.raises(InvalidRequest) as refusal:
        read_object(f'{{"{long}":NaN}}'.encode())
    assert len(refusal.value.message) < 300
    assert len(refusal.value.param) < 200


@pytest.mark.parametrize(
    "content",
    [
        {"a": "[{" * 500 + '\\" [ "'},
        {"a": "NaN and Infinity", "b": ["\U0001f600"]},
        {"a": [1, 2.5, -3, True, None, {"b": {}}]},
    ],
)
def test_brackets_and_odd_words_inside_strings_are_text(content):
    assert read_object(json.dumps(content).encode()) == content


def test_the_deepest_nesting_allowed_is_read():
    assert "a" in read_object(nested(BODY_DEPTH_MAX))


JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | JSON_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(JSON_TEXT, inner),
    max_leaves=20,
)


@given(st.dictionaries(JSON_TEXT, VALUES), st.booleans())
def test_every_sound_object_comes_through_unchanged(content, ascii_only):
    assert read_object(json.dumps(content, ensure_ascii=ascii_only).encode()) == content


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_end_in_an_object_or_a_refusal(body):
    try:
        assert isinstance(read_object(body), dict)
    except InvalidRequest as refusal:
        assert refusal.message.endswith(".")  # noqa: PT017 (either outcome is right)
