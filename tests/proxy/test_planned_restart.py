"""A planned restart: what is seen goes in; out come an order, how far it is, and whether starts are held."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.planned_restart import LEAVING_S, PlannedRestart, Sight, why_not

READY = Sight(
    now_s=100.0, epoch=7, status="ready", breaker="closed", trouble="exit status 1", running=2, live=3
)
GONE = replace(READY, epoch=None, status="restarting", running=0)
IDLE = replace(READY, running=0, live=1)


def at(sight, now_s):
    return replace(sight, now_s=now_s)


def planned(*, drain=False, timeout_s=60.0):
    return PlannedRestart(1, READY, drain=drain, timeout_s=timeout_s)


def test_without_a_drain_the_order_goes_out_at_once_and_only_once():
    restart = planned()
    assert restart.observe(READY)
    assert not restart.observe(READY)
    assert restart.phase == "restarting"


def test_with_a_drain_it_waits_until_nothing_runs():
    restart = planned(drain=True)
    assert not restart.observe(READY)
    assert (restart.phase, restart.holds) == ("draining", True)
    assert restart.observe(IDLE)
    assert restart.told()["live"] == 1


def test_starts_are_held_until_the_old_worker_is_gone():
    restart = planned()
    restart.observe(READY)
    assert restart.holds
    restart.observe(GONE)
    assert (restart.phase, restart.holds) == ("restarting", False)


def test_a_new_epoch_is_the_end_and_its_time_counts_from_the_order():
    restart = planned(drain=True)
    restart.observe(at(READY, 101.0))
    restart.observe(at(IDLE, 110.0))
    restart.observe(at(GONE, 111.0))
    restart.observe(replace(READY, now_s=113.5, epoch=8))
    assert restart.over
    assert not restart.holds
    assert restart.told() == {
        "number": 1,
        "phase": "done",
        "drain": True,
        "old_epoch": 7,
        "new_epoch": 8,
        "live": 1,
        "took_s": 3.5,
        "problem": None,
    }


def test_a_drain_that_takes_too_long_is_given_up_and_holds_nothing():
    restart = planned(drain=True, timeout_s=30.0)
    assert not restart.observe(at(READY, 130.0))
    assert not restart.over
    assert not restart.observe(at(READY, 130.1))
    assert (restart.phase, restart.holds) == ("failed", False)
    assert restart.problem == "2 answers still ran after 30 s; nothing is held any more, and the worker stays"


@pytest.mark.parametrize("seen", [GONE, replace(READY, epoch=8)], ids=["gone", "another"])
def test_a_worker_that_leaves_during_the_drain_needs_no_restart(seen):
    restart = planned(drain=True)
    assert not restart.observe(seen)
    assert (restart.phase, restart.holds) == ("failed", False)
    assert "left by itself meanwhile (the last one: exit status 1)" in restart.problem


def test_a_worker_that_stays_after_the_order_goes_on():
    restart = planned()
    restart.observe(READY)
    restart.observe(at(READY, 100.0 + LEAVING_S))
    assert not restart.over
    restart.observe(at(READY, 100.1 + LEAVING_S))
    assert (restart.phase, restart.holds) == ("failed", False)


def test_a_worker_that_comes_too_late_is_said_with_its_state_and_what_ended_the_last_one():
    restart = planned(timeout_s=60.0)
    restart.observe(READY)
    restart.observe(at(GONE, 160.0))
    assert not restart.over
    restart.observe(replace(GONE, now_s=160.1, status="loading"))
    assert restart.problem == "no worker was ready after 60 s: it is loading (the last one: exit status 1)"


def test_a_breaker_that_opens_meanwhile_ends_the_wait():
    restart = planned()
    restart.observe(READY)
    restart.observe(replace(GONE, breaker="open"))
    assert "the breaker is open" in restart.problem


def test_an_unreachable_supervisor_ends_it():
    restart = planned()
    restart.observe(READY)
    restart.unreachable()
    assert (restart.phase, restart.holds) == ("failed", False)


def test_what_is_over_is_not_abandoned():
    done, going_on = planned(), planned()
    done.observe(READY)
    done.observe(replace(READY, epoch=8))
    for restart in (done, going_on):
        restart.abandon("the gateway is going down")
    assert (done.phase, done.problem) == ("done", None)
    assert (going_on.phase, going_on.problem) == ("failed", "the gateway is going down")


def test_why_none_can_begin():
    assert why_not(READY) is None
    assert "it is loading" in why_not(replace(GONE, status="loading"))
    assert "breaker is open" in why_not(replace(GONE, breaker="open"))
    assert why_not(replace(GONE, trouble="")) == "there is no worker to replace: it is restarting"


SIGHTS = st.builds(
    Sight,
    now_s=st.floats(0.0, 5.0),
    epoch=st.sampled_from([None, 7, 7, 7, 8]),
    status=st.just("seen"),
    breaker=st.sampled_from(["closed", "closed", "open", "half_open"]),
    trouble=st.just(""),
    running=st.integers(0, 3),
    live=st.just(3),
)


@given(st.lists(SIGHTS, max_size=60), st.booleans())
def test_whatever_is_seen_one_order_goes_out_at_most_and_nothing_is_held_for_ever(sights, drain):
    restart = planned(drain=drain, timeout_s=20.0)
    now_s, orders = 100.0, 0
    for sight in sights:
        now_s += sight.now_s
        if restart.over:
            break
        orders += restart.observe(at(sight, now_s))
        assert not (restart.over and restart.holds)
        assert not restart.holds or now_s <= 100.0 + 20.0 + LEAVING_S
    assert orders <= 1
    assert restart.phase not in {"done", "restarting"} or orders == 1
