"""Who is cut off: readings in, verdicts out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.slow_readers import LARGEST_LAGGARD, READS_NOTHING, Reading, SlowReaders

PATIENCE_S = 60.0


@pytest.fixture
def slow():
    return SlowReaders(PATIENCE_S, 1000)


def test_who_takes_nothing_is_cut_when_the_time_is_over(slow):
    stuck = {"a": Reading(5, 10)}
    assert slow.look(stuck, 0.0) == {}
    assert slow.look(stuck, 59.9) == {}
    assert slow.look(stuck, 60.0) == {"a": READS_NOTHING}


def test_a_little_now_and_then_is_enough(slow):
    for second in range(0, 600, 50):
        assert slow.look({"a": Reading(second, 10)}, second) == {}


def test_who_has_nothing_to_take_waits_as_long_as_it_likes(slow):
    for now_s in (0.0, 100.0, 1000.0):
        assert slow.look({"a": Reading(5, 0, 100)}, now_s) == {}


def test_having_taken_all_of_it_begins_the_time_anew(slow):
    slow.look({"a": Reading(5, 10)}, 0.0)
    slow.look({"a": Reading(5, 0)}, 50.0)
    assert slow.look({"a": Reading(5, 10)}, 70.0) == {}


def test_who_is_gone_is_forgotten(slow):
    slow.look({"a": Reading(5, 10)}, 0.0)
    slow.look({}, 50.0)
    assert slow.look({"a": Reading(5, 10)}, 70.0) == {}


def test_over_the_bound_the_largest_laggard_goes_and_no_more_than_are_needed(slow):
    readings = {"a": Reading(0, 300), "b": Reading(0, 100, 500), "c": Reading(0, 200)}
    assert slow.look(readings, 0.0) == {"b": LARGEST_LAGGARD}
    readings = {"a": Reading(0, 900), "b": Reading(0, 1500), "c": Reading(0, 200)}
    assert slow.look(readings, 1.0) == {"b": LARGEST_LAGGARD, "a": LARGEST_LAGGARD}


def test_at_the_bound_nobody_goes(slow):
    assert slow.look({"a": Reading(0, 400), "b": Reading(0, 0, 600)}, 0.0) == {}


def test_who_is_cut_for_reading_nothing_counts_no_more(slow):
    stuck = {"a": Reading(0, 900)}
    slow.look(stuck, 0.0)
    assert slow.look(stuck | {"b": Reading(0, 1000)}, 60.0) == {"a": READS_NOTHING}


@given(
    st.dictionaries(st.integers(), st.builds(Reading, st.just(0), st.integers(0, 900), st.integers(0, 900)))
)
def test_what_is_left_is_within_the_bound_and_nobody_larger_than_who_is_cut(readings):
    cut = SlowReaders(PATIENCE_S, 1000).look(readings, 0.0)
    left = [each.undelivered_bytes for key, each in readings.items() if key not in cut]
    gone = [readings[key].undelivered_bytes for key in cut]
    assert sum(left) <= 1000
    if gone:
        assert sum(left) + min(gone) > 1000
        assert min(gone) >= max(left, default=0)
