"""A chat that comes while a lower lane prefills joins the step that comes next, and waits for no other."""

import dataclasses
from collections.abc import Sequence as Seq

import pytest

from shared.messages import Cancel, Message, Park, Submit
from tests.worker.test_scheduler import chunks, names, scheduler, sequence
from tests.worker.turned_loop import EPOCH, Turned, met_loop, submit
from worker.plan import Chunk, Plan
from worker.scheduler import Scheduler


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


def interrupted(*messages: Message) -> Turned:
    """Return a loop whose engine hears these messages come during its next prefill."""
    world = met_loop()
    prefill, left = world.engine.prefill, list(messages)

    def prefill_and_hear(chunks: Seq[Chunk]) -> float:
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
