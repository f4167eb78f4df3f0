"""What each work measures, of sides whose every step takes a time that is known."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, pairwise

import pytest
from rich.console import Console

from ops.engine.contest import Values, contest
from ops.engine.side import Contestant, Request, Token
from ops.engine.works import MANY, SCALES, WORKS, Measured, Setting
from ops.load.progress import Progress
from tests.proxy.small_worlds import facts

SCALE = SCALES["small"]
SETTING = Setting(SCALE, vocabulary=50, quantum_ms=250.0)
FACTS = facts(context_tokens=1000, vocabulary=50, kv_bytes_per_token=10, kv_pad_tokens=64)


class Clockwork:
    """A side that prefills one row a turn, then steps all that have begun. Its time is its own."""

    def __init__(self, step_s: Callable[[set[str]], float], prefill_s: float) -> None:
        self.step_s = step_s
        self.prefill_s = prefill_s
        self.asked: list[Request] = []
        self.arrivals: list[int] = []
        self.waiting: list[Request] = []
        self.left: dict[str, int] = {}
        self.now_s = 0.0

    def add(self, requests: Sequence[Request]) -> None:
        self.asked += requests
        self.arrivals.append(len(requests))
        self.waiting += requests

    def turn(self) -> list[Token]:
        if self.waiting:
            begun = self.waiting.pop(0)
            self.left[begun.name] = begun.tokens_max
            self.now_s += self.prefill_s
        self.now_s += self.step_s(set(self.left))
        tokens = [Token(row, self.now_s) for row in self.left]
        self.left = {row: left - 1 for row, left in self.left.items() if left > 1}
        return tokens

    @property
    def kv_bytes(self) -> int:
        return 1000 * len(self.left)

    def close(self) -> None: ...


def measured(
    work: str, step_s: Callable[[set[str]], float], prefill_s: float = 1.0, setting: Setting = SETTING
) -> tuple[Measured, Clockwork]:
    side = Clockwork(step_s, prefill_s)
    return WORKS[work](side, Contestant("clockwork", FACTS, lambda: side), setting), side


@pytest.mark.parametrize("work", ["equal", "mixed", "samplers", "kv8"])
def test_throughput_is_that_of_steps_of_all_rows_whatever_prefill_took(work):
    values, side = measured(work, lambda _rows: 0.1, prefill_s=7.0)
    assert values["tokens_per_s"] == pytest.approx(SCALE.rows / 0.1)
    assert values["kv_bytes"] == 1000 * SCALE.rows == 1000 * len(side.asked)


def test_mixed_rows_are_one_long_and_others_short_which_come_when_it_answers():
    scale = replace(SCALE, long=600, short=300)  # so that none counts as a longer one
    values, side = measured("mixed", lambda _rows: 0.1, setting=replace(SETTING, scale=scale))
    assert [len(request.ids) for request in side.asked] == [scale.long] + [scale.short] * (scale.rows - 1)
    answered = values["held_bytes"] / FACTS.kv_bytes_per_token - scale.long - scale.short * (scale.rows - 1)
    assert side.arrivals == [1, scale.rows - 1]
    assert scale.rows * scale.steps < answered < scale.rows * (scale.steps + scale.rows + 3)


def test_rows_with_samplers_have_one_each_and_other_works_are_greedy():
    _, side = measured("samplers", lambda _rows: 0.1)
    assert len({request.sampling for request in side.asked}) == SCALE.rows
    _, side = measured("equal", lambda _rows: 0.1)
    assert all(request.sampling.greedy for request in side.asked)


def test_there_are_sixteen_different_samplers_that_together_use_every_parameter():
    assert len(set(MANY)) == 16
    for part in ("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "logit_bias"):
        assert len({getattr(sampling, part) for sampling in MANY}) > 1
    assert len({sampling.repetition_penalty for sampling in MANY}) > 1


def test_the_steps_beside_a_seeded_row_are_set_against_those_beside_unseeded_ones():
    values, side = measured("seeded", lambda rows: 0.3 if "seeded-0" in rows else 0.1, prefill_s=0.0)
    assert (values["quiet_p95_ms"], values["p95_ms"]) == (pytest.approx(100), pytest.approx(300))
    assert values["of_quiet"] == pytest.approx(3)
    assert [request.name for request in side.asked if request.seeded] == ["seeded-0"]
    assert [request.name for request in side.asked[-3:]] == ["before-0", "seeded-0", "after-0"]


def test_a_seeded_row_that_nobody_feels_costs_nothing():
    values, _ = measured("seeded", lambda _rows: 0.1, prefill_s=0.0)
    assert values["of_quiet"] == pytest.approx(1)


def test_steps_that_get_longer_all_the_while_are_not_the_seeded_rows_doing():
    steps = count(100)
    values, _ = measured("seeded", lambda _rows: next(steps) / 1000, prefill_s=0.0)
    assert values["of_quiet"] == pytest.approx(1, abs=0.01)


def test_the_stall_of_an_arrival_is_in_the_gaps_up_to_its_first_token():
    values, side = measured("arrival", lambda _rows: 0.1, prefill_s=2.0)
    assert len(side.asked[-1].ids) == SCALE.arriving
    assert values["quiet_p95_ms"] == pytest.approx(100)
    assert values["longest_ms"] == values["p95_ms"] == pytest.approx(2100)
    assert values["of_allowed"] == pytest.approx(2100 / (1.5 * 100 + 250))
    assert values["first_token_s"] == pytest.approx(2.1)


def test_a_first_token_is_waited_for_from_when_its_prompt_came_alone_and_among_streams():
    values, side = measured("first", lambda rows: 0.1 * len(rows), prefill_s=2.0)
    assert values["alone_ms"] == pytest.approx(2100)
    assert values["among_ms"] == pytest.approx(2000 + 100 * SCALE.rows)
    newcomers = [request for request in side.asked if not request.name.startswith("stream")]
    assert {len(request.ids) for request in newcomers} == {SCALE.short}


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_no_row_ends_while_it_is_measured_nor_outgrows_the_context_of_its_scale(work, scale):
    side = Clockwork(lambda _rows: 0.1, prefill_s=0.0)
    WORKS[work](side, Contestant("clockwork", FACTS, lambda: side), Setting(scale, 50, 250.0))
    ended = {request.name for request in side.asked} - side.left.keys()
    assert {name.split("-")[0] for name in ended} <= {"before", "seeded", "after", "alone", "among"}
    assert max(len(each.ids) + each.tokens_max for each in side.asked) <= scale.context_tokens


def test_prompts_are_the_same_in_every_run_and_differ_between_rows():
    runs = [measured("equal", lambda _rows: 0.1)[1].asked for _ in range(2)]
    assert runs[0] == runs[1]
    assert all(one.ids != other.ids for one, other in pairwise(runs[0]))


class Contestants:
    """Two that note when they begin and end."""

    def __init__(self, step_s: Callable[[set[str]], float] = lambda _rows: 0.1) -> None:
        self.notes: list[str] = []
        self.pair = [Contestant(name, FACTS, partial(self.begin, name, step_s)) for name in ("a", "b")]

    def begin(self, name: str, step_s: Callable[[set[str]], float]) -> Clockwork:
        self.notes.append(name)
        return Noted(step_s, self.notes)

    def values(self, repeats: int) -> Values:
        progress = Progress(Console(file=io.StringIO()))
        return contest("equal", self.pair, SETTING, repeats=repeats, progress=progress)


class Noted(Clockwork):
    def __init__(self, step_s: Callable[[set[str]], float], notes: list[str]) -> None:
        super().__init__(step_s, prefill_s=0.0)
        self.notes = notes

    def close(self) -> None:
        self.notes.append("closed")


def test_contestants_run_in_turn_and_the_order_alternates():
    contestants = Contestants()
    contestants.values(repeats=2)
    assert contestants.notes == [word for name in "baabba" for word in (name, "closed")]


def test_the_warm_up_is_not_counted():
    values = Contestants().values(repeats=3)
    assert {name: len(measures["tokens_per_s"]) for name, measures in values.items()} == {"a": 3, "b": 3}


def test_a_side_that_fails_is_closed_before_the_error_goes_on():
    contestants = Contestants(step_s=lambda _rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        contestants.values(repeats=1)
    assert contestants.notes == ["b", "closed"]
