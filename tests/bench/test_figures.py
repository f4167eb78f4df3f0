"""What event times that were written down add up to, and how sure figures are: pure, with laws."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.bench.aftermath import death_figures, lane_ratios, overload_figures, pause_ms, peer_ratios
from ops.bench.figures import Arm, arm_figures, gaps_ms, piece_tokens, samples, thinned
from ops.bench.intervals import Resampled, percentile_intervals, percentile_ratios
from ops.load.statistics import percentile
from tests.bench.samples import ARM, POINT, one_pass, record, refused, steady

VALUES = st.floats(0.001, 1e6)
REPETITIONS = st.lists(
    st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=5), min_size=1, max_size=3
)


# --- tokens of pieces -------------------------------------------------------------------------------------


def test_a_piece_is_a_token_where_there_are_as_many_of_both():
    assert piece_tokens([1, 9, 3], 3) == [1, 1, 1]


def test_tokens_beyond_the_pieces_go_where_the_most_characters_are():
    assert piece_tokens([4, 12, 4], 5) == [1, 3, 1]
    assert piece_tokens([4, 12, 9], 5) == [1, 2, 2]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 60))
def test_every_token_is_in_a_piece_and_every_piece_has_one(chars, tokens):
    given_ = piece_tokens(chars, tokens)
    assert sum(given_) == max(tokens, len(chars))
    assert min(given_) >= 1


def test_an_answer_without_text_has_no_tokens_in_pieces():
    assert piece_tokens([], 7) == []


def test_the_gap_before_a_piece_of_three_tokens_is_shared_by_them():
    assert gaps_ms(record([1.0, 1.25, 2.0], chars=[4, 4, 12], tokens=5)) == pytest.approx([250] * 4)


def test_the_token_that_ends_an_answer_has_no_text_and_shortens_no_gap():
    ended = record([1.0, 1.5, 2.0], tokens=4, chars=[1, 1, 9], finish_reason="stop")
    assert gaps_ms(ended) == [500.0, 500.0]
    assert gaps_ms(record([1.0, 1.5, 2.0], tokens=4, chars=[1, 1, 9])) == [500.0, 250.0, 250.0]


def test_a_usage_beyond_all_measure_is_bounded():
    wild = record([1.0, 2.0], tokens=10**12)
    assert len(gaps_ms(wild)) <= 1 << 20


# --- figures of an arm ------------------------------------------------------------------------------------


def test_an_arms_figures_are_those_of_its_times():
    passes = [one_pass(steady(4), ended=5.5), one_pass(steady(4), ended=11.0)]
    found = arm_figures(ARM, passes, 1)
    metrics = found["metrics"]
    assert [each["output_tokens_per_s"] for each in found["passes"]] == [8.0, 4.0]
    assert metrics["output_tokens_per_s"] == {"value": 6.0, "low": 4.0, "high": 8.0}
    assert metrics["ttft_ms"]["p95"] == {"value": 500.0, "low": 500.0, "high": 500.0}
    assert metrics["itl_ms"]["p50"]["value"] == pytest.approx(100, abs=1e-3)
    assert metrics["tpot_ms"]["p50"]["value"] == pytest.approx(100, abs=1e-3)
    assert metrics["e2e_ms"]["p50"]["value"] == pytest.approx(1500)
    assert metrics["queue_ms"] == {"count": 0}
    assert found["requests"] == {"sent": 8, "completed": 8, "cut": 0, "failed": {}}
    assert found["peak_memory_bytes"] is None


def test_times_count_from_when_a_request_was_meant_to_go():
    late = record([3.0, 3.5], sent_at=2.0, scheduled_at=1.0, ended_at=4.0, queue_ms=40.0)
    values = samples([one_pass([late])])
    assert values["ttft_ms"] == [[[2000.0]]]
    assert values["e2e_ms"] == [[[3000.0]]]
    assert values["queue_ms"] == [[[40.0]]]


def test_what_failed_is_counted_with_its_reason_and_has_no_times():
    records = [
        record([1.0]),
        refused(0.0, 0.5),
        record([9.0], outcome="cut"),
        record(outcome="failed", code="timeout"),
    ]
    found = arm_figures(ARM, [one_pass(records, peak_bytes=7)], 1)
    assert found["requests"] == {
        "sent": 4,
        "completed": 1,
        "cut": 1,
        "failed": {"refused server_is_overloaded": 1, "failed timeout": 1},
    }
    assert found["metrics"]["ttft_ms"]["count"] == 1
    assert found["peak_memory_bytes"] == 7


def test_nothing_that_completed_is_no_figure_but_a_count_of_none():
    found = arm_figures(ARM, [one_pass([refused(0.0, 0.1)])], 1)
    assert found["metrics"]["ttft_ms"] == {"count": 0}
    assert found["metrics"]["output_tokens_per_s"]["value"] == 0.0
    assert found["tokens"]["prompt_tokens"] is None


def test_a_pass_that_was_cut_short_gives_no_rate_beside_whole_ones():
    whole, short = one_pass(steady(2), ended=2.0), one_pass(steady(1), ended=100.0, partial=True)
    assert samples([whole, short])["requests_per_s"] == [[[1.0]]]
    assert samples([short])["requests_per_s"] == [[[0.01]]]
    assert len(samples([whole, short])["ttft_ms"]) == 2


def test_pieces_are_checked_against_what_usage_counts():
    merged = record([1.0, 2.0], tokens=6)
    tokens = arm_figures(ARM, [one_pass([*steady(2), merged, record(tokens=1)])], 1)["tokens"]
    assert tokens["answers_with_several_tokens_in_a_piece"] == 1
    assert tokens["answers_without_text"] == 1
    assert tokens["pieces"] == 24
    assert tokens["by_usage"]
    uncounted = arm_figures(ARM, [one_pass([record([1.0], prompt_tokens=None)])], 1)["tokens"]
    assert not uncounted["by_usage"]


@given(REPETITIONS, st.integers(1, 40))
def test_thinned_values_are_fewer_and_of_the_same_requests(values, count_max):
    kept = thinned(values, count_max)
    requests = sum(len(repetition) for repetition in values)
    for before, after in zip(values, kept, strict=True):
        assert [bool(request) for request in before] == [bool(request) for request in after]
        assert all(set(b) <= set(a) for a, b in zip(before, after, strict=True))
    assert sum(len(each) for repetition in kept for each in repetition) <= max(count_max, 1) + requests


# --- intervals --------------------------------------------------------------------------------------------


@given(REPETITIONS, st.sampled_from([50, 95, 99]))
@settings(max_examples=25)
def test_a_percentile_is_that_of_all_values_and_its_interval_is_within_them(values, percent):
    flat = [value for repetition in values for request in repetition for value in request]
    ((value, interval),) = percentile_intervals(values, [percent], 1)
    assert value == percentile(flat, percent)
    if interval is not None:
        assert min(flat) * (1 - 1e-9) <= interval.low <= interval.high <= max(flat) * (1 + 1e-9)


@given(st.lists(st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=6), st.integers(0, 99))
def test_a_draw_is_the_percentile_of_the_values_that_were_drawn(requests, seed):
    """A single repetition of which each request is drawn as the same dice draw it by hand."""
    numbers = random.Random(seed)
    drawn = Resampled([requests]).draw([50, 95], numbers)
    numbers.seed(seed)
    numbers.choices([0], k=1)
    owners = numbers.choices(list(range(len(requests))), k=len(requests))
    taken = [value for owner in owners for value in requests[owner]]
    assert drawn == pytest.approx([percentile(taken, 50), percentile(taken, 95)])


def test_of_a_single_request_nobody_knows_the_noise():
    assert percentile_intervals([[[3.0, 4.0]]], [50], 1) == [(3.5, None)]
    assert percentile_intervals([[], [[]]], [50], 1) == []


def test_repetitions_that_differ_widen_an_interval_that_requests_alone_leave_narrow():
    quiet = [[[float(value)] for value in range(100, 120)]] * 3
    drifting = [[[float(value + shift)] for value in range(100, 120)] for shift in (0, 50, 100)]
    ((_, narrow),), ((_, wide),) = (percentile_intervals(values, [50], 1) for values in (quiet, drifting))
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


@given(REPETITIONS, st.integers(2, 9))
@settings(max_examples=15)
def test_a_ratio_knows_no_unit_and_beside_itself_is_one(values, factor):
    scaled = [[[factor * value for value in request] for request in repetition] for repetition in values]
    ((ratio, interval),) = percentile_ratios(scaled, values, [50], 3)
    assert ratio == pytest.approx(factor)
    if interval is not None:
        assert interval.low <= ratio * (1 + 1e-9)
        assert ratio <= interval.high * (1 + 1e-9)


def test_a_ratio_beside_zero_is_one_or_beyond_measure():
    zeros, ones = [[[0.0], [0.0]]], [[[1.0], [1.0]]]
    ((value, interval),) = percentile_ratios(zeros, zeros, [50], 1)
    assert (value, interval.low, interval.high) == (1.0, 1.0, 1.0)
    ((value, interval),) = percentile_ratios(ones, zeros, [50], 1)
    assert value == interval.low == interval.high == float("inf")
    assert percentile_ratios(ones, [[]], [50], 1) == []


# --- scenarios --------------------------------------------------------------------------------------------


def test_overload_tells_who_was_refused_and_what_was_still_done():
    peak = [one_pass(steady(4), ended=4.0)]
    over = [one_pass([*steady(2), refused(0.0, 0.25), refused(0.0, 0.75, retry_after_s=None)], ended=2.0)]
    found = overload_figures(peak, over)
    assert (found["refused"], found["refused_with_a_time_to_come_back"]) == (2, 1)
    assert found["refusal_ms"]["p50"] == 500.0
    assert found["tokens_per_s_of_peak"] == 1.0


def test_a_pause_is_the_longest_silence_after_the_moment_of_death():
    paused = record([1.0, 1.1, 1.2, 6.0, 6.1])
    assert pause_ms(paused, 1.15) == pytest.approx(4800)
    assert pause_ms(paused, 6.5) is None
    assert pause_ms(record([7.0], sent_at=1.0), 2.0) == pytest.approx(6000)


def test_a_death_counts_what_was_under_way_and_what_went_on():
    went_on, broke = record([1.0, 5.0], ended_at=5.0), record([1.0], outcome="failed", code="x", ended_at=2.5)
    before, after = record([0.5], ended_at=1.0), record([8.0], sent_at=7.0)
    found = death_figures([one_pass([went_on, broke, before, after])], [2.0])
    assert (found["deaths"], found["under_way"], found["went_on_to_their_end"]) == (1, 2, 1)
    assert found["pause_ms"]["max"] == 4000.0


def test_ratios_are_of_the_same_point_and_of_both_parts():
    def arm(target, part, first_s):
        work = "lanes" if part else "sweep"
        return arm_figures(Arm(target, work, part, POINT), [one_pass(steady(4, first_s))], 1)

    chats = [arm("server", "interactive alone", 0.5), arm("server", "interactive beside batch", 1.0)]
    assert [each["ratio"] for each in lane_ratios(chats, 1) if each["metric"] == "ttft_ms"] == [2.0, 2.0]
    assert lane_ratios(chats[:1], 1) == []
    pair = [arm("server", "", 0.25), arm("peer", "", 1.0), *chats]
    found = peer_ratios(pair, "server", "peer", 1)
    assert {each["work"] for each in found} == {"sweep"}
    assert [each["ratio"] for each in found if each["metric"] == "ttft_ms"] == [0.25, 0.25]
