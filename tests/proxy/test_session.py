"""Routing keys: what is taken for one, and the mark by which the log knows it again."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.session import HEADER, mark_of, session_key
from shared.errors import InvalidRequest


@pytest.mark.parametrize("sent", ["k", "user 7/thread 9", "~" * 256])
def test_a_header_of_printable_ascii_is_a_key(sent):
    assert session_key([sent]) == sent


def test_no_header_is_no_key_and_has_no_mark():
    assert session_key([]) == mark_of("") == ""


@pytest.mark.parametrize("sent", ["", "x" * 257, "ü", "a\tb", "a\nb", "a\x7f", "\udcff", "k\n"])
def test_a_header_that_is_too_long_or_not_plain_is_refused_by_its_name(sent):
    with pytest.raises(InvalidRequest) as refusal:
        session_key([sent])
    assert refusal.value.param == HEADER
    assert HEADER in refusal.value.message
    assert len(refusal.value.message) < 100


def test_two_headers_are_no_key():
    with pytest.raises(InvalidRequest, match="more than once"):
        session_key(["one", "one"])


@given(st.text(min_size=1, max_size=50), st.text(min_size=1, max_size=50))
def test_marks_are_plain_and_equal_just_when_the_keys_are(one, other):
    assert re.fullmatch("[0-9a-f]{12}", mark_of(one))
    assert (mark_of(one) == mark_of(other)) == (one == other)
