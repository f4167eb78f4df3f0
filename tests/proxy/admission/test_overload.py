"""Lasting overload: waits allowed shrink to the target, the newest go first, one quick start ends it."""

import pytest

from proxy.admission.overload import Overload
from shared.errors import Overloaded
from tests.proxy.admission.small_core import LOW, Desk, lane


def test_waits_over_the_target_for_the_whole_interval_are_lasting_overload():
    overload = Overload(2.0, 10.0)
    overload.started(2.1, 100.0)
    overload.started(9.0, 109.9)
    assert not overload.lasting
    assert overload.admissible_wait_s(30.0) == 30.0
    overload.started(2.1, 110.0)
    assert overload.lasting
    assert overload.admissible_wait_s(30.0) == 2.0
    assert overload.admissible_wait_s(1.0) == 1.0


def test_one_wait_within_the_target_begins_the_interval_anew():
    overload = Overload(2.0, 10.0)
    overload.started(3.0, 0.0)
    overload.started(2.0, 9.0)
    overload.started(3.0, 10.0)
    overload.started(3.0, 19.9)
    assert not overload.lasting
    overload.started(3.0, 20.0)
    assert overload.lasting


def test_one_start_within_the_target_ends_it():
    overload = Overload(2.0, 10.0)
    overload.started(3.0, 0.0)
    overload.started(3.0, 10.0)
    overload.started(2.0, 11.0)
    assert not overload.lasting
    assert overload.admissible_wait_s(30.0) == 30.0


def test_a_lane_without_a_target_is_never_overloaded():
    overload = Overload(None, 10.0)
    overload.started(1e6, 0.0)
    overload.started(1e6, 100.0)
    assert not overload.lasting
    assert overload.admissible_wait_s(30.0) == 30.0


def overloaded():
    """One slot, keys a and b; every start since 3 s ago waited too long, until lasting overload."""
    desk = Desk(lane("high", target_wait_s=2.0, max_tokens_default=100), LOW)
    desk.worker(slots=1)
    for number in range(5):
        desk.arrive(f"a{number}", key="a")
        desk.arrive(f"b{number}", key="b")
    assert desk.starts(at=3.0) == ["a0"]
    desk.end("a0", completed=False)
    assert desk.starts(at=13.0) == ["b0"]
    assert desk.lane("high").overload.lasting
    return desk


def test_under_lasting_overload_a_keys_newest_goes_first_and_keys_take_turns_as_ever():
    desk = overloaded()
    desk.step("b0", ms=90.0)
    order = []
    for _ in range(4):
        desk.end(*desk.lane("high").running, completed=False)
        (name,) = desk.starts()
        order.append(name)
        desk.step(name, ms=100.0)
    assert order == ["a4", "b4", "a3", "b3"]


def test_under_lasting_overload_only_short_waits_are_admitted():
    desk = overloaded()
    with pytest.raises(Overloaded, match="2 s are allowed now"):
        desk.arrive("c", key="c")
    with pytest.raises(Overloaded, match="2 s are allowed now"):
        desk.announce(key="c")


def test_a_newcomer_that_starts_soon_ends_the_overload():
    desk = overloaded()
    desk.end(
        *(f"b{number}" for number in range(5)), *(f"a{number}" for number in range(1, 5)), completed=False
    )
    desk.now = 20.0
    desk.arrive("new", key="b")
    assert desk.starts() == ["new"]
    assert not desk.lane("high").overload.lasting


def test_answers_that_start_again_say_nothing_about_waits():
    desk = overloaded()
    desk.core.interrupted(["b0"], desk.now)
    assert desk.starts() == ["b0"]
    assert desk.lane("high").overload.lasting


def test_other_lanes_are_not_concerned():
    desk = overloaded()
    assert not desk.lane("low").overload.lasting
    desk.arrive("l", lane="low")
