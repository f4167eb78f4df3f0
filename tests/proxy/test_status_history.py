"""The last quarter of an hour in intervals: pure values in, columns out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.status.history import INTERVAL_S, SPAN_S, History, Levels

NOTHING = Levels(0, 0, 0)


def test_an_interval_says_what_came_in_it_and_the_next_begins_at_nothing():
    history = History()
    history.close(10.0, NOTHING)
    for _ in range(6):
        history.came()
    history.refused("queue_full")
    history.died()
    history.close(12.0, Levels(3, 2, 100))
    history.close(14.0, NOTHING)
    _, told, after = history.intervals
    assert (told.end, told.tokens_per_s, told.refused, told.deaths) == (12.0, 3.0, 1, 1)
    assert told.levels == Levels(3, 2, 100)
    assert (after.tokens_per_s, after.refused, after.deaths) == (0.0, 0, 0)


def test_a_late_close_doesn_t_make_the_speed_higher_than_it_was():
    history = History()
    history.close(10.0, NOTHING)
    for _ in range(6):
        history.came()
    history.close(13.0, NOTHING)
    assert history.intervals[-1].tokens_per_s == 2.0


@pytest.mark.parametrize(
    ("times_s", "p50", "p95"),
    [([], None, None), ([0.4], 0.4, 0.4), ([float(each) for each in range(101)], 50.0, 95.0)],
)
def test_times_to_first_token_are_told_as_median_and_p95_or_not_at_all(times_s, p50, p95):
    history = History()
    for each in times_s:
        history.began(each)
    history.close(2.0, NOTHING)
    assert (history.intervals[0].ttft_p50_s, history.intervals[0].ttft_p95_s) == (p50, p95)


@given(st.lists(st.integers(0, 600), min_size=1, max_size=700))
def test_of_however_many_times_the_p95_is_never_below_the_median_nor_beyond_the_longest(times_s):
    history = History()
    for each in times_s:
        history.began(each)
    history.close(2.0, NOTHING)
    (told,) = history.intervals
    assert min(times_s) <= told.ttft_p50_s <= told.ttft_p95_s <= max(times_s)


def test_no_more_than_a_quarter_of_an_hour_is_remembered():
    history = History()
    for number in range(1000):
        history.close(INTERVAL_S * number, NOTHING)
    assert len(history.intervals) == SPAN_S / INTERVAL_S
    assert history.intervals[-1].end == INTERVAL_S * 999
