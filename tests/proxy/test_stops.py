"""Stop strings: the answer is a function of the text, not of how it was cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.stops import StopFilter


def before_first_stop(text, stops):
    """What must be shown, said in one line: the text up to where the first stop begins."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


def first_of(text, stops):
    """What ended it, said in one line: the stop that begins first, and of those at one place the shortest."""
    return min(
        (stop for stop in stops if stop in text), key=lambda stop: (text.find(stop), len(stop)), default=None
    )


def shown(filter_, pieces):
    return "".join(map(filter_.feed, pieces)) + filter_.finish()


TINY = st.text("ab ", max_size=24)
STOPS = st.lists(st.text("ab ", min_size=1, max_size=5), max_size=4).map(tuple)


@given(TINY, STOPS, st.data())
def test_every_cutting_of_a_text_ends_before_the_stop_that_begins_first(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    filter_ = StopFilter(stops)
    assert shown(filter_, pieces) == before_first_stop(text, stops)
    assert filter_.stopped == any(stop in text for stop in stops)
    assert filter_.matched == first_of(text, stops)


@given(TINY, STOPS)
def test_only_what_may_begin_a_stop_is_held_back(text, stops):
    filter_ = StopFilter(stops)
    out = ""
    for character in text:
        out += filter_.feed(character)
        if filter_.stopped:
            return
    held = text[len(out) :]
    assert held == "" or any(stop.startswith(held) for stop in stops)
    assert len(held) < max(map(len, stops), default=1)


@pytest.mark.parametrize(
    ("stops", "pieces", "answer"),
    [
        (("at ",), ["cat", " ", "cat "], "c"),
        (("at ",), ["c", "a", "t", "s"], "cats"),
        (("ab", "abc"), ["xa", "bc"], "x"),
        (("abc", "b"), ["a", "b", "d"], "a"),
        (("abc", "b"), ["a", "b", "c"], ""),
        (("abc", "b"), ["ab"], "a"),
        (("END", "\n\n"), ["one\n", "two\n", "\nEND"], "one\ntwo"),
        (("ü😀",), ["aü", "😀b"], "a"),
        ((), ["a", "b"], "ab"),
    ],
)
def test_known_cases(stops, pieces, answer):
    """A stop across tokens; one that is another's beginning; one inside another that doesn't come to be."""
    assert shown(StopFilter(stops), pieces) == answer


def test_a_stop_ends_the_text_as_soon_as_it_is_there():
    filter_ = StopFilter(("ab", "abc"))
    assert filter_.feed("xab") == "x"
    assert filter_.stopped


@pytest.mark.parametrize("stops", [("abc", "ab", "bc"), ("ab", "bc", "abc")])
@pytest.mark.parametrize("pieces", [["xabc"], ["xa", "bc"], ["x", "a", "b", "c"]])
def test_of_stops_at_one_place_the_one_that_ends_first_is_named_however_the_text_is_cut(stops, pieces):
    filter_ = StopFilter(stops)
    assert filter_.matched is None
    assert shown(filter_, pieces) == "x"
    assert filter_.matched == "ab"


def test_nothing_is_shown_after_a_stop():
    filter_ = StopFilter(("x",))
    assert filter_.feed("axb") == "a"
    assert filter_.feed("more") == ""
    assert filter_.finish() == ""


def test_text_without_the_beginning_of_a_stop_passes_at_once():
    filter_ = StopFilter(("END",))
    assert filter_.feed("THE E") == "THE "
    assert not filter_.stopped
    assert filter_.finish() == "E"
