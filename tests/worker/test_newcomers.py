"""A chat that comes while a lower lane prefills joins the step that comes next, and waits for no other."""

import dataclasses
from collections.abc import Sequence as Seq

import pytest

from shared.messages import Cancel, Finished, Message, Park, PrefillShare, Step, Submit
from tests.worker.prompt_scheduler import PromptScheduler
from tests.worker.test_scheduler import chunks, names, scheduler, sequence
from tests.worker.turned_loop import EPOCH, Turned, met_loop, submit
from worker.engine.batch_engine import PrefillResult
from worker.plan import Chunk, Plan, StepTimes
from worker.scheduler import Emitted, Ended, Scheduler


def with_a_plan(slots: int = 4) -> tuple[Scheduler, Plan]:
    """Return a scheduler whose plan prefills a piece of a lower prompt, beside a row."""
    plans = scheduler(slots)
    plans.submit(sequence("row", rank=1, max_tokens=100))
    plans.submit(sequence("low", prompt=300, rank=1))
    plan = plans.plan(0.0)
    assert (chunks(plan), names(plan.rows)) == ([("low", 0, 100)], ["row"])
    return plans, plan


def test_a_higher_prompt_that_came_is_prefilled_and_decodes_in_the_same_turn() -> None:
    plans, plan = with_a_plan()
    plans.submit(sequence("chat", prompt=30))
    more = plans.extend(plan, 0.0)
    assert (chunks(more), names(more.rows)) == ([("chat", 0, 29)], ["row", "chat"])
    assert [row.launched for row in more.rows] == [1, 1]
    assert more.expected_ms == 29.0 + 5.0


def test_a_prompt_of_the_same_lane_waits_for_the_next_turn() -> None:
    plans, plan = with_a_plan()
    plans.submit(sequence("other", prompt=30, rank=1))
    more = plans.extend(plan, 0.0)
    assert (chunks(more), names(more.rows)) == ([], ["row"])
    assert [chunk[0] for chunk in chunks(plans.plan(0.0))] == ["other", "low"]


def test_what_was_dropped_meanwhile_leaves_the_plan() -> None:
    plans, plan = with_a_plan(slots=2)
    plans.park("row")
    plans.submit(sequence("chat", prompt=30))
    more = plans.extend(plan, 0.0)
    assert (names(more.dropped), names(more.rows)) == (["row"], ["chat"])


def test_nothing_new_changes_nothing() -> None:
    plans, plan = with_a_plan()
    more = plans.extend(plan, 0.0)
    assert (more.chunks, names(more.rows), more.dropped) == ((), ["row"], ())
    assert [row.launched for row in more.rows] == [1]


# --- the loop -----------------------------------------------------------------------------------------------


def ask(name: str, prompt: int, rank: int) -> Submit:
    return dataclasses.replace(submit(name, prompt=range(prompt)), rank=rank)


def interrupted(*messages: Message, prefills_last: bool = False) -> Turned:
    """Return a loop whose engine hears these messages come during its next prefill."""
    world = met_loop(prefills_last=prefills_last)
    prefill, left = world.engine.prefill, list(messages)

    def prefill_and_hear(chunks: Seq[Chunk]) -> PrefillResult:
        while left:
            world.channel.say(left.pop(0))
        return prefill(chunks)

    world.engine.prefill = prefill_and_hear  # type: ignore[method-assign]  # for this one world
    return world


CHAT = ask("chat", 9, rank=0)


def test_the_loop_prefills_a_chat_that_came_during_a_lower_lanes_prefill_before_it_launches() -> None:
    world = interrupted(CHAT)
    world.turn(ask("low", 9, rank=1))
    assert world.engine.calls == ["prefill", "prefill", "launch"]
    assert names(world.engine.steps[-1]) == ["low", "chat"]
    assert [report.phase for report in world.reports[-2:]] == ["prefill", "prefill"]


def test_after_a_prefill_of_the_highest_lane_what_comes_waits_for_the_next_turn() -> None:
    world = interrupted(CHAT)
    world.turn(ask("first", 9, rank=0))
    assert world.engine.calls == ["prefill", "launch"]
    assert names(world.engine.steps[-1]) == ["first"]


@pytest.mark.parametrize("word", [Cancel(EPOCH, "row"), Park(EPOCH, "row")], ids=["cancel", "park"])
def test_a_row_that_is_given_up_during_a_prefill_is_not_launched_any_more(word: Message) -> None:
    world = interrupted(word, CHAT)
    world.turn(ask("row", 1, rank=1))
    world.turn(ask("low", 49, rank=1))
    assert world.engine.dropped == ["row"]
    assert names(world.engine.steps[-1]) == ["chat"]


# --- what prefill brings ----------------------------------------------------------------------------------


def test_a_prompt_that_is_prefilled_whole_has_its_first_token_and_decodes_the_next_one_at_once() -> None:
    plans = PromptScheduler(4, StepTimes(1.0, 5.0), prefills_last=True)
    a, one = sequence("a", prompt=30), sequence("one", prompt=20, max_tokens=1)
    for each in (a, one):
        plans.submit(each)
    plan = plans.plan(0.0)
    assert chunks(plan) == [("one", 0, 20), ("a", 0, 30)]
    assert [chunk.brings_token for chunk in plan.chunks] == [True, True]
    assert (names(plan.rows), a.launched, one.launched) == (["a"], 2, 1)
    assert plans.settle((one, a), (7, 8)) == [Emitted(one, 0, 7), Ended(one, 1, "length"), Emitted(a, 0, 8)]
    assert (plans.still_in(plan), a.last_id) == ((a,), 8)


def test_a_row_that_its_first_token_ends_is_not_decoded() -> None:
    plans = PromptScheduler(4, StepTimes(1.0, 5.0), prefills_last=True)
    a = sequence("a", prompt=30, stop_ids=(2,))
    plans.submit(a)
    plan = plans.plan(0.0)
    assert plans.settle((a,), (2,)) == [Ended(a, 0, "stop")]
    assert (names(plan.rows), plans.still_in(plan)) == (["a"], ())


def test_where_only_the_last_token_is_left_it_is_the_steps() -> None:
    plans = PromptScheduler(4, StepTimes(1.0, 5.0), prefills_last=True)
    plans.kept = {"kept": 29}
    for each in (sequence("kept", prompt=30), sequence("short", prompt=1)):
        plans.submit(each)
    plan = plans.plan(0.0)
    assert (chunks(plan), names(plan.rows)) == ([], ["kept", "short"])


def test_a_state_is_kept_behind_all_tokens_but_the_last() -> None:
    plans = PromptScheduler(4, StepTimes(1.0, 5.0), reuse="checkpoints", prefills_last=True)
    plans.submit(sequence("a", prompt=30))
    plan = plans.plan(0.0)
    assert chunks(plan) == [("a", 0, 29)]
    assert not plan.chunks[0].brings_token


def test_what_prefill_brings_is_sent_at_once_and_took_no_time_of_its_own() -> None:
    met = met_loop(prefills_last=True)
    met.turn(submit("a", (1,) * 10), submit("b", (1,) * 30, max_tokens=1))
    step, *more = met.channel.of(Step)
    assert {(row.sequence, row.index, row.token) for row in step.rows} == {("a", 0, 7), ("b", 0, 7)}
    assert (step.step_ms, step.row_ms, more) == (0.0, 0.0, [])
    assert step.prefills == (PrefillShare("a", 1, 10, 0.75), PrefillShare("b", 1, 30, 2.25))
    assert [each.sequence for each in met.channel.of(Finished)] == ["b"]
    assert [names(rows) for rows in met.engine.steps] == [["a"]]


def test_a_chat_that_came_during_another_lanes_prefill_has_its_first_token_before_the_step() -> None:
    world = interrupted(ask("chat", 20, rank=0), prefills_last=True)
    world.turn(ask("low", 49, rank=1))
    assert [row.sequence for step in world.channel.of(Step) for row in step.rows] == ["chat"]
    assert [names(rows) for rows in world.engine.steps] == [["chat"]]
