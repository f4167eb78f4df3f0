"""From measured values to ratios, verdicts and a table."""

import io
from importlib.metadata import version

import pytest
from rich.console import Console

from ops.engine.lines import OURS, OURS_8_BIT, THEIRS, Aim, Line, Spread, lines_of
from ops.engine.table import caption_of, shown, table_of
from ops.engine.works import SCALES, WORKS

DECODE = {
    "tokens_per_s": [100.0],
    "cpu_ms_per_token": [10.0],
    "kv_bytes": [1e6],
    "held_bytes": [8e5],
    "peak_bytes": [2e6],
}
FELT = {
    "quiet_p95_ms": [10.0],
    "p95_ms": [20.0],
    "of_quiet": [2.0],
    "longest_ms": [30.0],
    "of_allowed": [0.5],
    "first_token_s": [1.0],
    "alone_ms": [40.0],
    "among_ms": [50.0],
}


def line(work: str, values, measured: str, quantum_ms: float = 250.0) -> Line:
    [found] = [each for each in lines_of(work, values, quantum_ms) if measured in each.measured]
    return found


def decoded(ours: list[float], theirs: list[float], work: str = "equal") -> Line:
    many = {key: value * len(ours) for key, value in DECODE.items()}
    values = {OURS: {**many, "tokens_per_s": ours}, THEIRS: {**many, "tokens_per_s": theirs}}
    return line(work, values, "tokens/s")


def test_a_ratio_is_the_median_of_what_ran_side_by_side():
    """A slow minute that meets both of a pair doesn't move it."""
    assert decoded([100.0, 10.0, 120.0], [50.0, 5.0, 40.0]).ratio == Spread(2.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("work", "ours", "verdict"),
    [
        ("equal", 100.0, "met"),
        ("equal", 99.0, "missed"),
        ("mixed", 200.0, "met"),
        ("mixed", 199.0, "missed"),
        ("samplers", 200.0, "met"),
        ("samplers", 199.0, "missed"),
    ],
)
def test_throughput_is_held_against_its_aim_and_the_bound_itself_meets_it(work, ours, verdict):
    assert decoded([ours], [100.0], work).verdict == verdict


@pytest.mark.parametrize(("kv_bytes", "verdict"), [(2e6, "met"), (2.1e6, "missed")])
def test_mixed_rows_may_take_a_fifth_of_the_bytes(kv_bytes, verdict):
    values = {OURS: {**DECODE, "kv_bytes": [kv_bytes]}, THEIRS: {**DECODE, "kv_bytes": [1e7]}}
    [found] = [each for each in lines_of("mixed", values, 250.0) if each.measured == "KV bytes"]
    assert (found.verdict, found.aim) == (verdict, Aim("at most", 0.2))


def test_bytes_are_set_against_what_each_sides_rows_hold():
    values = {OURS: DECODE, THEIRS: {**DECODE, "kv_bytes": [8e6]}}
    found = line("mixed", values, "what the rows hold (256 tokens at least)")
    assert (found.ours, found.theirs, found.verdict) == (1.25, 10.0, "met")


@pytest.mark.parametrize(("kv_bytes", "verdict"), [(1.3e6, "met"), (1.31e6, "missed")])
def test_our_side_alone_is_judged_by_what_its_rows_hold(kv_bytes, verdict):
    held = {"held_bytes": [1e6]}
    values = {OURS: {**DECODE, **held, "kv_bytes": [kv_bytes]}, THEIRS: {**DECODE, **held, "kv_bytes": [9e6]}}
    assert line("equal", values, "what the rows hold").verdict == verdict


@pytest.mark.parametrize(("of_quiet", "verdict"), [(1.1, "met"), (1.11, "missed")])
def test_a_seeded_row_is_judged_by_what_others_feel_of_it_on_our_side(of_quiet, verdict):
    values = {OURS: {**FELT, "of_quiet": [of_quiet]}, THEIRS: {**FELT, "of_quiet": [5.0]}}
    found = line("seeded", values, "beside a seeded one")
    assert (found.verdict, found.ours, found.theirs) == (verdict, of_quiet, 5.0)


@pytest.mark.parametrize(("of_allowed", "verdict"), [(1.0, "met"), (1.01, "missed")])
def test_an_arrival_may_cost_what_is_allowed_and_theirs_stands_beside_it(of_allowed, verdict):
    values = {
        OURS: {**FELT, "of_allowed": [of_allowed]},
        THEIRS: {**FELT, "of_allowed": [9.0], "longest_ms": [4000.0]},
    }
    assert line("arrival", values, "1.5 x quiet + 250 ms").verdict == verdict
    assert line("arrival", values, "stall").theirs == 4000.0


def test_quantised_caches_are_set_against_the_engine_itself():
    values = {OURS_8_BIT: {**DECODE, "kv_bytes": [5e5]}, OURS: DECODE}
    [found] = [each for each in lines_of("kv8", values, 250.0) if each.measured == "KV bytes"]
    assert (found.ratio, found.verdict) == (Spread(0.5, 0.5, 0.5), "")


@pytest.mark.parametrize("work", WORKS)
def test_every_work_has_an_aim_and_quantised_caches_only_that_of_bytes_held(work):
    side = {**DECODE, **FELT}
    lines = lines_of(work, {OURS: side, THEIRS: side, OURS_8_BIT: side}, 250.0)
    aims = [each.measured for each in lines if each.aim]
    assert aims
    assert work != "kv8" or [each.split(" (")[0] for each in aims] == ["KV bytes / what the rows hold"]


def test_the_table_has_values_ratio_aim_and_verdict_in_one_row_and_names_a_work_once():
    lines = [
        Line("mixed", "tokens/s", "tokens/s", 80.0, 32.0, Spread(2.5, 2.25, 2.75), Aim("at least", 2.0)),
        Line("mixed", "KV bytes", "MB", 3e6, 30e6, Spread(0.1, 0.1, 0.1), Aim("at most", 0.05)),
        Line("arrival", "quiet", "ms", 1.0, 2.0),
    ]
    screen = Console(width=130, file=io.StringIO())
    screen.print(table_of(lines, "how it was measured"))
    text = screen.file.getvalue()
    cells = [row.split() for row in text.splitlines()]
    assert ["mixed", "tokens/s", "80.0", "32.0", "tokens/s", "2.50", "(2.25-2.75)", "≥", "2", "met"] in cells
    assert ["KV", "bytes", "3.0", "30.0", "MB", "0.10", "(0.10-0.10)", "≤", "0.05", "missed"] in cells
    assert ["arrival", "quiet", "1.0", "2.0", "ms"] in cells
    assert "how it was measured" in text
    assert f"mlx-lm {version('mlx-lm')}'s BatchGenerator" in text


def test_bytes_are_shown_as_megabytes_and_ratios_with_two_digits():
    assert [shown(1_550_000, "MB"), shown(0.123, "x"), shown(12.34, "ms")] == ["1.6", "0.12", "12.3"]


def test_the_caption_says_what_was_timed_and_how_often():
    text = caption_of(SCALES["gpu"], 5)
    parts = ("5 runs", "16384", "15 of 256", "Only decode steps", "2048 tokens come among 7")
    for part in (*parts, "look back 20 tokens", "full log probabilities", "Joins and leaves"):
        assert part in text
