"""What the loop tells of device time, and how it gives up a row that is parked."""

from collections.abc import Sequence as Seq

import pytest

from shared.messages import (
    Cancel,
    Finished,
    Park,
    Parked,
    PrefillShare,
    Progress,
    Step,
    Submit,
)
from shared.sampling import Sampling
from tests.worker.turned_loop import EPOCH, QUANTUM_MS, Turned, met_loop, submit


@pytest.fixture
def met() -> Turned:
    return met_loop()


# --- what was prefilled -----------------------------------------------------------------------------------


def prefills(steps: Seq[Step]) -> list[tuple[PrefillShare, ...]]:
    return [step.prefills for step in steps if step.prefills]


def test_a_step_says_what_it_took_and_each_rows_share_of_that(met: Turned) -> None:
    met.turn(submit("a", max_tokens=1), submit("b", max_tokens=2), times=4)
    both, last = met.channel.of(Step)
    assert (both.step_ms, both.row_ms) == (3.0, 1.5)
    assert (last.step_ms, last.row_ms) == (3.0, 3.0)


def test_a_row_that_was_cancelled_took_its_share_of_the_step_all_the_same(met: Turned) -> None:
    met.turn(submit("a", max_tokens=9), submit("b", max_tokens=9))
    met.turn(Cancel(EPOCH, "a"))
    [step] = met.channel.of(Step)
    assert [row.sequence for row in step.rows] == ["b"]
    assert step.row_ms == 1.5


def test_what_was_prefilled_goes_out_with_the_step_that_is_under_way_behind_it(met: Turned) -> None:
    met.turn(submit("a", (1,) * 11), submit("b", (1,) * 31))
    assert met.channel.of(Step) == []
    met.turn()
    [step] = met.channel.of(Step)
    assert len(step.rows) == 2
    assert step.prefills == (PrefillShare("a", 1, 10, 0.75), PrefillShare("b", 1, 30, 2.25))
    met.turn(times=3)
    assert len(prefills(met.channel.of(Step))) == 1, "charged twice"


def test_a_turn_that_only_prefills_says_so_at_once_in_a_step_without_rows(met: Turned) -> None:
    met.turn(submit("a", (1,) * 60))
    [step] = met.channel.of(Step)
    assert (step.rows, step.step_ms, step.row_ms) == ((), 0.0, 0.0)
    assert step.prefills == (PrefillShare("a", 1, 40, 3.0),)
    met.turn(times=2)
    assert [step.step for step in met.channel.of(Step)] == [1, 3]
    assert met.channel.of(Step)[1].prefills == (PrefillShare("a", 1, 19, 3.0),)


def test_all_of_a_prompt_is_charged_in_the_turn_it_was_prefilled_or_the_next(met: Turned) -> None:
    """Also where the row beside it ends while it prefills, so that a turn reads a step and launches none."""
    met.turn(submit("a", max_tokens=2), submit("b", (1,) * 90, max_tokens=2))
    prefilled = 40
    for _ in range(5):
        met.turn()
        told = sum(share.tokens for step in met.channel.of(Step) for share in step.prefills)
        assert told >= prefilled
        prefilled = min(89, prefilled + 40)
    assert told == 89


# --- parking ----------------------------------------------------------------------------------------------


def test_a_parked_row_is_given_up_in_the_same_turn_and_says_no_more(met: Turned) -> None:
    met.turn(submit("a", max_tokens=50), submit("b", max_tokens=50), times=4)
    assert met.engine.under_way, "a step of it is under way that nobody has read"
    told = [row for step in met.channel.of(Step) for row in step.rows if row.sequence == "a"]
    met.channel.sent.clear()
    met.turn(Park(EPOCH, "a"))
    assert met.channel.sent[0] == Parked(EPOCH, "a", 1, len(told))
    assert met.engine.dropped == ["a"]
    met.turn(times=3)
    assert {row.sequence for step in met.channel.of(Step) for row in step.rows} == {"b"}
    assert met.reports[-1].running == ("b",)


def test_a_parked_sequence_comes_back_as_another_attempt_and_goes_on_where_it_was(met: Turned) -> None:
    met.turn(submit("a", max_tokens=5), times=3)
    met.turn(Park(EPOCH, "a"))
    [parked] = met.channel.of(Parked)
    emitted = (7,) * parked.index
    met.turn(Submit(EPOCH, "a", 2, (1,), emitted, 5, (), Sampling(), 0, QUANTUM_MS), times=9)
    rows = [row for step in met.channel.of(Step) for row in step.rows]
    assert [row.index for row in rows] == [0, 1, 2, 3, 4]
    assert [row.attempt for row in rows] == [1] * parked.index + [2] * (5 - parked.index)
    assert met.channel.of(Finished) == [Finished(EPOCH, "a", 2, 5, "length")]


def test_a_resumed_sequence_parked_before_its_first_token_counts_those_it_came_with(met: Turned) -> None:
    again = Submit(EPOCH, "a", 3, (1,) * 60, (2, 2), 9, (), Sampling(), 0, QUANTUM_MS)
    met.turn(again)
    met.turn(Park(EPOCH, "a"))
    assert met.channel.of(Parked) == [Parked(EPOCH, "a", 3, 2)]


def test_what_a_parked_sequence_prefilled_is_told_before_it_is_parked(met: Turned) -> None:
    met.turn(submit("a", (1,) * 11, max_tokens=9))
    assert met.engine.under_way
    met.turn(Park(EPOCH, "a"))
    share = PrefillShare("a", 1, 10, 3.0)
    told = [message for message in met.channel.sent if not isinstance(message, Progress)]
    assert told == [Step(EPOCH, 1, 0.0, 0.0, (), (share,)), Parked(EPOCH, "a", 1, 0)]


def test_a_sequence_that_waits_for_a_row_can_be_parked_too(met: Turned) -> None:
    met.turn(submit("a", max_tokens=50), submit("b", max_tokens=50), submit("c"))
    met.turn(Park(EPOCH, "c"))
    assert met.channel.of(Parked) == [Parked(EPOCH, "c", 1, 0)]
    assert met.engine.dropped == []


def test_parking_what_nobody_knows_is_ignored(met: Turned) -> None:
    met.turn(submit("a", max_tokens=1), times=3)
    met.turn(Park(EPOCH, "a"), Park(EPOCH, "nobody"))
    assert met.channel.of(Parked) == []
