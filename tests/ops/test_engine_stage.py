"""What is counted of tokens and the times they came at."""

from dataclasses import replace

import pytest

from ops.engine.side import Request, Token, held_bytes
from ops.engine.stage import NotReached, Stage, gaps_ms, tokens_between
from shared.sampling import Sampling
from tests.proxy.small_worlds import facts

TIMES = {"a": [1.0, 1.5, 2.5], "b": [1.5, 2.0, 2.5]}


class Script:
    """A side whose turns are written down."""

    kv_bytes = 0

    def __init__(self, *turns: list[Token]) -> None:
        self.turns = list(turns)

    def add(self, requests) -> None: ...

    def turn(self) -> list[Token]:
        return self.turns.pop(0) if self.turns else []

    def close(self) -> None: ...


def request(name: str, prompt_tokens: int = 3) -> Request:
    return Request(name, (1,) * prompt_tokens, 10, Sampling())


def test_a_stretch_counts_what_came_after_its_start_and_up_to_its_end():
    """So stretches that follow one another count every token once."""
    assert tokens_between(TIMES, 1.0, 2.0) == 3
    assert tokens_between(TIMES, 2.0, 2.5) == 2


def test_gaps_belong_to_the_stretch_that_they_end_in():
    assert gaps_ms(TIMES, ["a"], 1.0, 2.0) == [500]
    assert gaps_ms(TIMES, ["a", "b"], 2.0, 2.5) == [1000, 500]


def test_gaps_are_those_of_the_rows_that_are_asked_for():
    assert gaps_ms(TIMES, ["b"], 0.0, 9.0) == [500, 500]


def test_a_stage_turns_until_every_row_has_what_is_asked_for_and_no_further():
    stage = Stage(Script([Token("a", 1.0)], [Token("b", 2.0)], [Token("b", 3.0)]))
    stage.add([request("a"), request("b")])
    stage.until(["a", "b"], 1)
    assert (stage.times, stage.now_s) == ({"a": [1.0], "b": [2.0]}, 2.0)


def test_a_stage_goes_on_from_where_a_row_stands():
    stage = Stage(Script([Token("a", 1.0)], [Token("a", 2.0)], [Token("a", 3.0)], [Token("a", 4.0)]))
    stage.add([request("a")])
    stage.until(["a"], 1)
    stage.on("a", 2)
    assert stage.times == {"a": [1.0, 2.0, 3.0]}


def test_a_row_is_as_long_as_its_prompt_and_its_answer():
    stage = Stage(Script([Token("a", 1.0)], [Token("a", 2.0)]))
    stage.add([request("a", 5), request("b", 7)])
    stage.until(["a"], 2)
    assert stage.lengths == [7, 7]


def test_a_side_that_never_answers_is_given_up():
    stage = Stage(Script([Token("a", 1.0)]))
    stage.add([request("a")])
    with pytest.raises(NotReached, match=r"\[1\]"):
        stage.until(["a"], 2)


def test_what_rows_hold_has_no_padding_and_of_a_window_no_more_than_it():
    model = facts(
        kv_bytes_per_token=10,
        kv_pad_tokens=64,
        window_tokens=4,
        window_bytes_per_token=100,
        fixed_bytes_per_row=1000,
    )
    long, short = 10 * 300 + 400 + 1000, 10 * 256 + 400 + 1000
    assert held_bytes(model, [300]) == long
    assert [held_bytes(model, [tokens]) for tokens in (1, 255, 256)] == [short] * 3
    assert held_bytes(model, [300, 5, 300]) == 2 * long + short
    assert held_bytes(replace(model, window_tokens=280), [300, 5]) == long + short + (276 + 252) * 100
