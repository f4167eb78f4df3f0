"""Rows with grammars in the engine: each says what its grammar allows, and the same whatever is beside it."""

import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from shared.messages import Failed, Finished
from shared.sampling import LogitBias, Sampling
from tests.worker.test_batch_engine import FLAT_SAMPLING, WIDE, count_redraws, flat, prompt_of
from tests.worker.tiny_grammars import EOS, STOPS, schema_grammar, text_of, tiny_desk, tiny_tokens
from tests.worker.tiny_models import clamped, tiny
from tests.worker.workbench import Workbench
from worker.engine.flatness import Flatness
from worker.engine.model import LoadedModel
from worker.grammar import Guide
from worker.grammar_desk import GrammarDesk

TOKENS_MAX: Final = 60
SCHEMA: Final = {
    "type": "object",
    "properties": {"ab": {"type": "boolean"}, "no": {"type": "string", "maxLength": 6}},
    "required": ["ab", "no"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def fits_schema(text: str) -> bool:
    answer = json.loads(text)
    return isinstance(answer["ab"], bool) and len(answer["no"]) <= 6 and len(answer) == 2


Fits = Callable[[str], object]
CONSTRAINED: Final[dict[str, tuple[Sampling, Fits]]] = {
    "schema": (Sampling(seed=1, grammar=schema_grammar(SCHEMA)), fits_schema),
    "regex": (Sampling(seed=2, grammar="start: /(ab|no){3,9}!/"), re.compile("(ab|no){3,9}!").fullmatch),
    "lark": (
        Sampling(seed=3, top_p=0.8, grammar='start: "[" (item ",")* item "]"\nitem: "12" | "a" item'),
        re.compile(r"\[(a*12,)*a*12\]").fullmatch,
    ),
    "choice": (
        Sampling(seed=4, top_k=3, grammar='start: "true" | "abc" | "no"'),
        {"true", "abc", "no"}.__contains__,
    ),
    "greedy": (Sampling(temperature=0.0, grammar="start: /[a-f]{4}/"), re.compile("[a-f]{4}").fullmatch),
    "changed": (
        Sampling(
            seed=5,
            min_p=0.01,
            repetition_penalty=1.3,
            frequency_penalty=0.5,
            top_logprobs=2,
            grammar="start: /[0-9]{9}/",
        ),
        re.compile("[0-9]{9}").fullmatch,
    ),
}
FREE: Final = {
    "free": Sampling(seed=6),
    "free greedy": Sampling(temperature=0.0),
    "free biased": Sampling(seed=7, top_p=0.9, presence_penalty=1.0, logit_bias=(LogitBias(3, 2.0),)),
}
EVERY: Final = {**{name: sampling for name, (sampling, _) in CONSTRAINED.items()}, **FREE}


def submit(bench: Workbench, name: str, emitted: Sequence[int] = (), stop_ids: Sequence[int] = STOPS) -> None:
    length = 3 + 4 * list(EVERY).index(name)
    bench.submit(
        name, prompt_of(length, 0), TOKENS_MAX, sampling=EVERY[name], emitted=emitted, stop_ids=stop_ids
    )


@functools.cache
def alone() -> dict[str, list[int]]:
    """Return what each row says by itself, where one row runs at a time."""
    bench = Workbench(clamped(tiny("llama")))
    for name in EVERY:
        submit(bench, name)
        bench.run()
    assert all(isinstance(end, Finished) for end in bench.ends.values())
    return bench.answers


def test_every_answer_that_ends_by_itself_fits_its_grammar() -> None:
    ended = 0
    for seed in range(3):
        bench = Workbench(tiny("llama"), slots=8)
        for name, (sampling, _) in CONSTRAINED.items():
            drawn = Sampling(seed=seed, grammar=sampling.grammar)
            bench.submit(name, prompt_of(5, seed), TOKENS_MAX, sampling=drawn, stop_ids=STOPS)
        bench.run()
        for name, (_, fits) in CONSTRAINED.items():
            end = bench.ends[name]
            assert isinstance(end, Finished)
            if end.reason == "stop":
                ended += 1
                assert fits(text_of(bench.answers[name])), (name, text_of(bench.answers[name]))
            assert not set(bench.answers[name]) & set(STOPS)
    assert ended > 12


@pytest.mark.parametrize("name", CONSTRAINED)
def test_whatever_way_a_row_is_drawn_it_keeps_to_its_grammar(name: str) -> None:
    assert CONSTRAINED[name][1](text_of(alone()[name]))


@pytest.mark.parametrize(("slots", "apart", "reverse"), [(16, 0, False), (4, 1, True), (3, 2, False)])
def test_rows_with_grammars_and_free_ones_say_in_company_what_they_say_alone(
    slots: int, apart: int, reverse: bool
) -> None:
    bench = Workbench(tiny("llama"), slots=slots, kv_bytes_max=0)
    for name in sorted(EVERY, reverse=reverse):
        submit(bench, name)
        for _ in range(apart):
            bench.turn()
    bench.run()
    assert bench.answers == alone()


@pytest.mark.parametrize("runs", [lambda loaded: loaded, clamped], ids=["batch", "one row"])
@pytest.mark.parametrize("cut", [1, 4])
def test_an_answer_that_is_resumed_goes_on_in_its_grammar(
    runs: Callable[[LoadedModel], LoadedModel], cut: int
) -> None:
    bench = Workbench(runs(tiny("llama")), slots=16)
    for name in CONSTRAINED:
        submit(bench, name, emitted=alone()[name][:cut])
    bench.run()
    assert bench.answers == {name: alone()[name] for name in CONSTRAINED}


def test_rows_that_give_up_their_places_in_between_and_come_back_say_the_same() -> None:
    bench = Workbench(tiny("llama"), slots=4)
    for name in EVERY:
        submit(bench, name)
    for _ in range(4):
        for _ in range(3):
            bench.turn()
        dropped = [each for name in EVERY if (each := bench.drop(name)) is not None]
        bench.turn()
        for each in reversed(dropped):
            bench.resume(each)
    bench.run()
    assert bench.answers == alone()


def test_a_family_whose_rows_are_attended_to_one_by_one_keeps_to_grammars_beside_free_rows() -> None:
    together = Workbench(tiny("llama4"), slots=16)
    by_itself = Workbench(clamped(tiny("llama4")))
    for bench in (by_itself, together):
        for name in EVERY:
            submit(bench, name)
            if bench is by_itself:
                bench.run()
        bench.run()
    for name, (_, fits) in CONSTRAINED.items():
        assert fits(text_of(together.answers[name]))
    assert together.answers == by_itself.answers


# --- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_ids", [STOPS, ()])
@pytest.mark.parametrize("grammar", ['start: "abc"', 'start: "ab" | "abx"', 'start: ""'])
def test_an_answer_ends_where_nothing_can_come_whether_or_not_it_has_stop_ids(
    grammar: str, stop_ids: Sequence[int]
) -> None:
    bench = Workbench(tiny("llama"))
    sampling = Sampling(grammar=grammar, logit_bias=tuple(LogitBias(id_, -100.0) for id_ in STOPS))
    bench.submit("row", (1, 2, 3), TOKENS_MAX, sampling=sampling, stop_ids=stop_ids)
    bench.run()
    end = bench.ends["row"]
    assert isinstance(end, Finished)
    assert (end.reason, end.index) == ("stop", len(bench.answers["row"]))
    assert text_of(bench.answers["row"]) in {"abc", "abx", ""}


def test_where_a_grammar_may_end_or_go_on_the_model_chooses() -> None:
    for bias, text in ((100.0, "ab"), (-100.0, "ababab")):
        sampling = Sampling(grammar="start: /(ab){1,3}/", logit_bias=(LogitBias(EOS, bias),))
        bench = Workbench(tiny("llama"))
        assert text_of(bench.answer((1, 2), TOKENS_MAX, sampling=sampling, stop_ids=[EOS])) == text


def test_an_answer_that_is_cut_short_is_no_more_than_that() -> None:
    bench = Workbench(tiny("llama"))
    tokens = bench.answer((1, 2), 3, sampling=Sampling(grammar="start: /[0-9]{9}/"), stop_ids=STOPS)
    assert len(tokens) == 3
    assert bench.ends["one"] == Finished(1, "one", 1, 3, "length")


def test_one_that_had_said_all_before_a_death_ends_without_another_token() -> None:
    bench = Workbench(tiny("llama"))
    submit(bench, "choice", emitted=alone()["choice"])
    bench.turn()
    assert bench.ends["choice"] == Finished(1, "choice", 1, len(alone()["choice"]), "stop")
    assert not bench.manifest


# --- failures -----------------------------------------------------------------------------------------------


def test_a_grammar_that_is_none_fails_alone() -> None:
    bench = Workbench(tiny("llama"), slots=16)
    for name in EVERY:
        submit(bench, name)
    bench.submit("bad", (1, 2, 3), 9, sampling=Sampling(grammar="start: nobody"))
    bench.run()
    end = bench.ends["bad"]
    assert isinstance(end, Failed)
    assert "grammar" in end.message
    assert "nobody" in end.message
    assert {name: bench.answers[name] for name in EVERY} == alone()


def test_what_was_said_before_and_is_not_in_the_grammar_fails_alone() -> None:
    bench = Workbench(tiny("llama"))
    submit(bench, "schema", emitted=[5, 6])
    submit(bench, "choice")
    bench.run()
    assert isinstance(bench.ends["schema"], Failed)
    assert bench.answers["choice"] == alone()["choice"]


def test_a_grammar_that_can_not_be_followed_any_more_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """After three tokens one matcher is given one that isn't allowed, which puts it into error."""
    settle = Guide.settle
    masks = 0

    def broken(guide: Guide, filled: object) -> None:
        nonlocal masks
        if guide.is_stop(7):
            masks += 1
            if masks == 4:
                guide.matcher.consume_token(7)
        settle(guide, filled)  # type: ignore[arg-type]  # it is handed on

    monkeypatch.setattr(Guide, "settle", broken)
    bench = Workbench(tiny("llama"), slots=16)
    for name in EVERY:
        submit(bench, name, stop_ids=[*STOPS, 7] if name == "regex" else STOPS)
    bench.run()
    end = bench.ends["regex"]
    assert isinstance(end, Failed)
    assert "grammar" in end.message
    del bench.answers["regex"]
    assert bench.answers == {name: tokens for name, tokens in alone().items() if name != "regex"}


# --- rows that are drawn again ------------------------------------------------------------------------------


def wide_desk() -> GrammarDesk:
    desk = tiny_desk()
    desk._read = lambda: tiny_tokens(WIDE)
    return desk


@pytest.mark.parametrize("runs", [lambda loaded: loaded, clamped], ids=["batch", "one row"])
def test_beside_rows_that_are_drawn_again_rows_keep_to_their_grammars_and_say_the_same(
    runs: Callable[[LoadedModel], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    redraws = count_redraws(monkeypatch)
    monkeypatch.setattr(Flatness, "missed", lambda *_: None)
    samplings = {**EVERY, **{f"flat {number}": each for number, each in enumerate(FLAT_SAMPLING)}}

    def begin(bench: Workbench, name: str) -> None:
        bench.submit(name, prompt_of(4, 0), 30, sampling=samplings[name], stop_ids=STOPS)

    by_itself = Workbench(clamped(flat()), grammars=wide_desk())
    for name in samplings:
        begin(by_itself, name)
        by_itself.run()
    redraws.clear()
    bench = Workbench(runs(flat()), slots=16, grammars=wide_desk())
    for name in samplings:
        begin(bench, name)
        bench.turn()
    bench.run()
    assert redraws
    assert bench.answers == by_itself.answers
    for name, (_, fits) in CONSTRAINED.items():
        end = bench.ends[name]
        assert isinstance(end, Finished)
        if end.reason == "stop":
            assert fits(text_of(bench.answers[name]))


# --- speed --------------------------------------------------------------------------------------------------


def test_without_a_row_that_waits_for_its_masks_a_step_is_drawn_as_it_is_launched() -> None:
    bench = Workbench(tiny("llama"), slots=4)
    submit(bench, "free")
    for _ in range(4):
        bench.turn()
        assert all(step.drawn is not None for step in bench.engine._steps)
    submit(bench, "regex")
    forwards: list[bool] = []
    engine_forward = bench.engine._forward

    def watched(previous: object) -> object:
        step = engine_forward(previous)  # type: ignore[arg-type]  # it is handed on
        forwards.append(step.drawn is not None)
        return step

    bench.engine._forward = watched  # type: ignore[assignment]  # it is watched
    for _ in range(6):
        bench.turn()
    assert forwards[0]
    assert not all(forwards)
    bench.run()
