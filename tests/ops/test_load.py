"""What load is made of, and what is made of it: pure, from a seed, with results to work out by hand."""

import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ops.load import fairness, flood, idle, overload, token_path
from ops.load.__main__ import SCENARIOS
from ops.load.arrivals import Lengths, Mix, dice, poisson, prompt
from ops.load.command_line import parser
from ops.load.overload import overload_figures
from ops.load.progress import Progress
from ops.load.records import (
    Ask,
    Attempt,
    Record,
    accepted_waits_s,
    first_token_waits_s,
    gaps_s,
    outcomes,
    tokens_between,
    whole_times_s,
)
from ops.load.statistics import jain, median, percentile, percentile_ratio, ratio, summary
from ops.load.token_path import added_s, sent_times
from tests.ops.load_samples import WATCHING

ASK = Ask("Hello.", 8)
NUMBERS = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40)


def attempt(sent_at=0.0, status=200, name="a-1", retry_after_s=None, code="", answered_at=None):
    return Attempt(name, sent_at, answered_at, status, retry_after_s, code)


def record(times=(), *, ask=ASK, attempts=(), outcome="completed", tokens=None, ended_at=9.0, code=""):
    return Record(
        ask=ask,
        attempts=tuple(attempts) or (attempt(),),
        text_times=tuple(times),
        ended_at=ended_at,
        tokens=len(times) if tokens is None else tokens,
        outcome=outcome,
        code=code,
        lane_served="",
        queue_ms=None,
    )


# --- statistics -------------------------------------------------------------------------------------------


def test_a_percentile_lies_on_the_line_between_its_neighbours():
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([10.0, 20.0], 95) == pytest.approx(19.5)
    assert percentile([1.0, 2.0, 3.0], 0) == 1.0
    assert percentile([1.0, 2.0, 3.0], 100) == 3.0
    assert median([7.0]) == 7.0


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 101), ([1.0], -1)])
def test_what_has_no_percentile_is_refused(values, percent):
    with pytest.raises(ValueError, match=r"no values|no percentage"):
        percentile(values, percent)


@given(NUMBERS, st.floats(0, 100), st.floats(0, 100))
def test_percentiles_grow_with_the_percentage_and_stay_within_the_values(values, one, other):
    low, high = (percentile(values, percent) for percent in sorted((one, other)))
    assert min(values) <= low <= high * (1 + 1e-12)
    assert high <= max(values) * (1 + 1e-12)


def test_a_summary_of_nothing_is_a_count_of_none():
    assert summary([]) == {"count": 0}
    assert summary([2.0, 4.0])["mean"] == 3.0
    assert summary([2.0, 4.0])["max"] == 4.0


def test_a_ratio_of_percentiles_has_an_interval_around_it_that_the_seed_fixes():
    above, below = [float(n) for n in range(20, 60)], [float(n) for n in range(10, 50)]
    found = percentile_ratio(above, below, 95, seed=1)
    assert found is not None
    assert found.value == pytest.approx(percentile(above, 95) / percentile(below, 95))
    assert found.low < found.value < found.high
    assert found == percentile_ratio(above, below, 95, seed=1)
    assert found != percentile_ratio(above, below, 95, seed=2)


def test_a_ratio_of_values_that_never_vary_has_no_width():
    found = percentile_ratio([3.0] * 5, [2.0] * 9, 95, seed=0)
    assert found is not None
    assert (found.value, found.low, found.high) == (1.5, 1.5, 1.5)


def test_the_interval_of_a_ratio_is_narrow_where_there_are_many_values():
    values = [float(n) for n in range(1000, 1400)]
    found = percentile_ratio(values, values, 50, seed=1)
    assert found is not None
    assert 0.95 < found.low < 1 < found.high < 1.05


def test_a_ratio_needs_values_on_both_sides():
    assert percentile_ratio([], [1.0], 95, seed=0) is None
    assert percentile_ratio([1.0], [], 95, seed=0) is None
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(3.0, 0.0) is None


@given(NUMBERS, st.floats(0.1, 10))
def test_jain_lies_between_one_of_n_and_one_and_knows_no_unit(shares, factor):
    index = jain(shares)
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9
    assert jain([factor * share for share in shares]) == pytest.approx(index)


def test_jain_is_one_for_equal_shares_and_one_of_n_where_one_has_all():
    assert jain([5.0, 5.0, 5.0]) == pytest.approx(1.0)
    assert jain([0.0, 9.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([0.0, 0.0]) == 1.0
    for shares in ([], [1.0, -1.0]):
        with pytest.raises(ValueError, match="shares"):
            jain(shares)


# --- arrivals ---------------------------------------------------------------------------------------------


def test_the_same_seed_and_purpose_draw_the_same_and_another_purpose_does_not():
    assert poisson(5, 20, dice(1, "a", 2)) == poisson(5, 20, dice(1, "a", 2))
    assert poisson(5, 20, dice(1, "a", 2)) != poisson(5, 20, dice(1, "a", 3))
    assert poisson(5, 20, dice(1, "a", 2)) != poisson(5, 20, dice(2, "a", 2))


def test_poisson_arrivals_have_the_rate_and_the_spread_of_their_kind():
    """The gaps' standard deviation is their mean: neither regular nor in bursts."""
    moments = poisson(10, 2000, dice(7))
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.1, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)
    assert moments[0] > 0
    assert moments[-1] < 2000


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="rate"):
        poisson(0, 1, dice(1))


@given(st.integers(0, 1000), st.integers(1, 50), st.floats(0, 2))
def test_lengths_stay_within_their_bounds(seed, median_, spread):
    lengths = Lengths(median_, spread, 1, 60)
    assert 1 <= lengths.draw(dice(seed)) <= 60
    assert Lengths(median_, 0.0, 1, 60).draw(dice(seed)) == median_


def test_half_of_all_lengths_are_below_the_median():
    numbers = dice(3)
    drawn = [Lengths(100, 0.6, 10, 1000).draw(numbers) for _ in range(4000)]
    assert median(drawn) == pytest.approx(100, rel=0.05)
    assert len(set(drawn)) > 100


@pytest.mark.parametrize("bounds", [(5, 0.1, 6, 9), (9, 0.1, 1, 8), (1, -0.1, 1, 1), (1, 0.1, 0, 1)])
def test_lengths_that_contradict_each_other_are_refused(bounds):
    with pytest.raises(ValueError, match="distributed"):
        Lengths(*bounds)


@given(st.integers(1, 300))
def test_a_prompt_has_as_many_words_as_asked_for(words):
    opening = "Tell a long story about this: "
    text = prompt(words, dice(1))
    assert text.startswith(opening)
    assert len(text.removeprefix(opening).split()) == words
    assert text.isascii()
    assert text.endswith(".")


def test_two_arms_ask_equally_long_things_and_never_the_same():
    mix = Mix(Lengths(20, 0.5, 5, 60), Lengths(30, 0.5, 10, 90))
    one, other = mix.stream(1, "chat 1", "unloaded"), mix.stream(1, "chat 1", "flooded")
    pairs = [(one(), other()) for _ in range(20)]
    assert all(len(a[0].split()) == len(b[0].split()) and a[1] == b[1] for a, b in pairs)
    assert all(a[0] != b[0] for a, b in pairs)
    assert len({a[1] for a, _ in pairs}) > 1


# --- records ----------------------------------------------------------------------------------------------


def test_waits_count_from_the_intended_moment_and_for_the_accepted_attempt_from_its_own():
    planned = Ask("Hello.", 8, scheduled_at=1.0)
    late = record((9.0, 9.5), ask=planned, attempts=(attempt(2.0, 503), attempt(7.0)), ended_at=10.0)
    assert first_token_waits_s([late]) == [8.0]
    assert accepted_waits_s([late]) == [2.0]
    assert whole_times_s([late]) == [9.0]
    unplanned = record((9.0,), attempts=(attempt(2.0, 503), attempt(7.0)))
    assert first_token_waits_s([unplanned]) == [7.0]


def test_only_completed_requests_have_waits_but_every_gap_counts():
    cut = record((1.0, 2.0, 4.0), outcome="cut")
    assert first_token_waits_s([cut]) == whole_times_s([cut]) == accepted_waits_s([cut]) == []
    assert gaps_s([cut, record((7.0,)), record()]) == [1.0, 2.0]


def test_tokens_count_by_when_they_came_and_are_spread_over_the_pieces_of_text():
    whole = record((1.0, 2.0, 3.0, 4.0), tokens=8)
    cut = record((2.0, 9.0), outcome="cut")
    assert tokens_between([whole, cut, record()], 2.0, 4.0, completed=True) == 4.0
    assert tokens_between([whole, cut, record()], 2.0, 4.0, completed=False) == 5.0


def test_outcomes_are_counted_and_what_went_wrong_has_its_code():
    wrong = [record(outcome=outcome, code="x") for outcome in ("failed", "refused", "cut")]
    counts = {"completed": 2, "cut": 1, "failed x": 1, "refused x": 1}
    assert outcomes([record(), *wrong, record()]) == counts


# --- what scenarios make of records -----------------------------------------------------------------------


def refusal(sent_at, took_s, **changes):
    values = {"status": 503, "retry_after_s": 2.0, "code": "server_is_overloaded"} | changes
    return attempt(sent_at, answered_at=sent_at + took_s, **values)


def test_overload_tells_quick_refusals_from_those_that_waited_and_finds_the_ones_without_a_time():
    records = [
        record((5.0,), attempts=(refusal(0.0, 0.25), attempt(4.0, answered_at=5.0))),
        record(attempts=(refusal(0.0, 30.0, code="queue_timeout"),), outcome="refused"),
        record(attempts=(refusal(0.0, 0.75, status=429, retry_after_s=61.0, code="x"),), outcome="refused"),
        record(attempts=(refusal(0.0, 0.5, retry_after_s=None),), outcome="refused"),
        record(attempts=(attempt(0.0, status=0, code="timeout"),), outcome="failed"),
        record(attempts=(attempt(0.0, answered_at=10.0, code="queue_timeout"),), outcome="failed"),
    ]
    figures = overload_figures(records)
    assert figures["refusal_s"]["count"] == 3
    assert figures["refusal_s"]["p50"] == 0.5
    assert figures["expired"] == 2
    assert figures["badly_refused"] == 2
    assert figures["attempts_per_success"] == 7.0
    assert figures["attempts_of_completed"] == 2.0
    assert figures["succeeded"] == pytest.approx(1 / 6)
    assert figures["accepted_first_token_s"]["p95"] == 1.0
    assert figures["answers"] == {
        "503 server_is_overloaded": 2,
        "200": 1,
        "503 queue_timeout": 1,
        "200 queue_timeout": 1,
        "429 x": 1,
        "0 timeout": 1,
    }


def test_sent_times_of_a_sequence_that_ran_twice_are_put_together():
    lines = (
        '{"sequence": "a-1/4/0", "first_index": 0, "sent_at": [1.0, 2.0]}',
        '{"sequence": "a-1/4/0", "first_index": 2, "sent_at": [5.0]}',
        '{"sequence": "a-2/5/0", "first_index": 0, "sent_at": [3.0]}',
    )
    assert sent_times(lines) == {"a-1": [1.0, 2.0, 5.0], "a-2": [3.0]}


def test_added_time_is_joined_token_by_token_and_only_where_every_token_was_seen():
    records = [
        record((1.5, 2.25), attempts=(attempt(name="a-1"),)),
        record((1.5,), attempts=(attempt(name="a-2"),)),
        record((1.5,), attempts=(attempt(name="a-3"),)),
        record((), attempts=(attempt(name="a-4"),)),
    ]
    assert added_s(records, {"a-1": [1.0, 2.0], "a-2": [1.0, 2.0]}) == ([0.25], 3)
    assert added_s([], {}) == ([], 0)


def test_added_time_counts_once_every_stream_has_begun():
    records = [
        record((1.5, 2.25, 4.0), attempts=(attempt(name="a-1"),)),
        record((2.5, 3.5), attempts=(attempt(name="a-2"),)),
    ]
    sent = {"a-1": [1.0, 2.0, 3.0], "a-2": [2.0, 3.0]}
    assert added_s(records, sent) == ([1.0, 0.5], 0)


# --- tables and the command -------------------------------------------------------------------------------

NO_RATIO = {"value": 1.25, "low": 1.0, "high": 1.5}
SHORT = {"count": 3, "mean": 0.1, "p50": 0.1, "p95": 0.2, "p99": 0.3, "max": 0.4}
PARTS = {"p50_s": 0.002, "p99_s": None, "cpu_s_per_token": None}
SAMPLES = {
    "flood": {
        "rate_hz": 0.2,
        "first_token_s": {"unloaded": SHORT, "flooded": {"count": 0}},
        "gap_s": {"unloaded": SHORT, "flooded": {"count": 0}},
        "tokens_per_s": {"unloaded": [1.0], "flooded": [2.0], "batch": [3.0]},
        "first_token_p95_ratio": None,
        "batch_step_s": None,
        "p95_over_unloaded_and_step": None,
        "tokens_under_flood_of_batch_alone": 0.96,
    },
    "overload": {
        "deadline_s": 30.0,
        "rounds": [
            {
                "peak": {"tokens_per_s": 100.0, "requests_per_s": 3.0},
                "over": {"rate_hz": 30.0, "tokens_per_s": 96.0, **overload_figures([])},
            }
        ],
    },
    "fairness": {
        "first_token_s": {"solo": SHORT, "beside heavy": {"count": 0}},
        "whole_s": {"solo": SHORT, "beside heavy": {"count": 0}},
        "p95_ratio": {"first_token": NO_RATIO, "whole": None},
        "jain": [0.96],
    },
    "proxy": {
        "streams": 64,
        "step_ms": 20.0,
        "groups": 8,
        "arms": {
            "lockstep": [
                {
                    **PARTS,
                    "tokens": 9,
                    "server_cpu_share": 0.96,
                    "client_cpu_share": 0.5,
                    "tokens_per_s": 1.0,
                    "unjoined": 0,
                }
            ]
        },
        "own_part": {"lockstep": PARTS},
    },
    "idle": {
        "streams": 1000,
        "arms": {
            "with": [
                {"cpu_share": 0.96, "resident_bytes": 96 << 20, "first_token_s": {}, "idle_ended_early": 0}
            ]
        },
    },
    **WATCHING,
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_each_scenario_shows_its_figures_also_where_values_are_missing(scenario):
    screen = Console(width=160, file=io.StringIO())
    screen.print(scenario.table(SAMPLES[scenario.name]))
    assert "96" in screen.file.getvalue()
    assert " - " in screen.file.getvalue()


def test_the_command_takes_scenarios_by_name_and_refuses_others_and_times_that_are_none(capsys):
    names = [each.SCENARIO.name for each in (flood, overload, fairness, token_path, idle)]
    takes = parser("load", None, SCENARIOS)
    chosen = takes.parse_args([*names, "--seconds", "2.5", "--repeats", "3", "--seed", "9"])
    assert (chosen.scenarios, chosen.seconds, chosen.repeats, chosen.seed) == (names, 2.5, 3, 9)
    for words in ([], ["drought"], ["flood", "--seconds", "0"], ["flood", "--repeats", "-1"]):
        with pytest.raises(SystemExit):
            takes.parse_args(words)
        assert "usage" in capsys.readouterr().err


def test_progress_is_said_again_and_again_until_the_phase_is_over():
    screen = io.StringIO()
    progress = Progress(Console(file=screen, width=80), between_s=0.001)
    with progress.phase("waiting", 60, lambda: "3 ended"):
        while screen.getvalue().count("3 ended") < 2:
            pass
    said = screen.getvalue()
    assert said.startswith("waiting\nwaiting: 0 of 60 s, 3 ended\n")


def test_a_context_is_left_with_its_phase_also_when_the_block_fails():
    screen = io.StringIO()
    progress = Progress(Console(file=screen, width=80), between_s=60)
    started = io.StringIO("x")

    def fail():
        with progress.around("it", started):
            assert not started.closed
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert started.closed
    assert screen.getvalue() == "it starts\nit ends\n"
