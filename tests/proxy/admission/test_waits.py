"""How long an answer may wait: estimates and early refusals, deadlines, restarts, and when to come back."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admission.estimate import Calibration, Promises, Restarts
from shared.errors import Overloaded
from tests.proxy.admission.small_core import HIGH, LOW, Desk, lane

# Unless a worker was seen at work, a token's prefill takes 1 ms and a step 50 ms.


def busy(slots=1, *lanes, **worker):
    """Every slot is taken by an answer of 5 + 4 tokens: 205 ms of work, 5 of them prefill."""
    desk = Desk(*lanes)
    desk.worker(slots=slots, **worker)
    desk.arrive(*(f"r{number}" for number in range(slots)))
    assert len(desk.starts()) == slots
    return desk


# --- estimates ----------------------------------------------------------------------------------------------


def test_nobody_waits_for_an_idle_worker():
    desk = Desk()
    desk.worker()
    assert desk.wait_s() == 0.0


def test_a_wait_is_that_for_a_row_and_for_prefill_and_for_the_step_that_runs():
    assert busy().wait_s() == pytest.approx(0.205 + 0.005 + 0.050)


def test_each_that_waits_before_is_another_answers_time_and_prefill():
    desk = busy(1, lane("high", max_tokens_default=10), LOW)
    desk.arrive("a", prompt_tokens=100)
    assert desk.wait_s() == pytest.approx(0.260 + 0.5 + 0.1)
    desk.arrive("b", prompt_tokens=100)
    assert desk.wait_s() == pytest.approx(0.260 + 1.0 + 0.2)


def test_rows_that_are_free_are_taken_by_those_ahead_and_free_again_after_an_answers_time():
    """Three of four rows are free and nine wait: without a decision yet, the tenth is in the third round."""
    desk = Desk(lane("high", max_tokens_default=10), LOW)
    desk.worker(slots=4)
    desk.arrive("r")
    desk.starts()
    desk.arrive(*(f"a{number}" for number in range(9)))
    assert desk.wait_s() == pytest.approx(0.5 + 0.5 + 9 * 0.005 + 0.005 + 0.050)


def test_answers_of_lower_lanes_are_not_waited_for():
    desk = busy()
    desk.arrive("a", "b", lane="low")
    assert desk.wait_s() == pytest.approx(0.260)
    assert desk.wait_s("low") > 1


def test_a_lower_lane_waits_for_higher_ones():
    desk = busy(1, lane("high", max_tokens_default=10), lane("low", max_tokens_default=10))
    desk.arrive("a", prompt_tokens=100)
    assert desk.wait_s("low") == pytest.approx(0.260 + 0.5 + 0.1)


def test_rows_that_may_be_parked_are_not_waited_for():
    desk = Desk(HIGH, lane("low", parkable=True), lane("lowest"))
    desk.worker(slots=2)
    desk.arrive("l", lane="low", prompt_tokens=100)
    desk.arrive("m", lane="lowest")
    desk.starts()
    assert desk.wait_s() == pytest.approx(0.050)
    assert desk.wait_s("low") > 0.2


def test_a_slot_that_is_reserved_is_not_free_for_a_lower_lane():
    desk = Desk(lane("high", reserved_slots=1), LOW)
    desk.worker(slots=2)
    desk.arrive("l", lane="low")
    desk.starts()
    assert desk.wait_s() == pytest.approx(0.050)
    assert desk.wait_s("low") == pytest.approx(0.205 + 0.005 + 0.050)


def test_a_large_one_waits_for_bytes():
    """A third row of 30 bytes fits once the short one has ended, one of 46 bytes once both have."""
    desk = Desk()
    desk.worker(60, slots=9)
    desk.arrive("short")
    desk.arrive("long", max_tokens=24)
    desk.starts()
    assert desk.wait_s(max_tokens=24) == pytest.approx(4 * 0.050 + 0.005 + 0.060)
    assert desk.wait_s(max_tokens=40) == pytest.approx(24 * 0.050 + 0.005 + 0.060)


def test_keys_take_turns_so_a_quiet_one_waits_less():
    desk = busy(1, lane("high", max_tokens_default=10), LOW)
    desk.arrive(*(f"a{number}" for number in range(6)), key="a")
    quiet, loud = desk.wait_s(key="b"), desk.wait_s(key="a")
    assert quiet == pytest.approx(0.260 + 0.5 + 0.005)
    assert loud == pytest.approx(0.260 + 6 * 0.5 + 6 * 0.005)


def test_a_heavy_key_has_more_turns_before_a_light_one():
    desk = busy(1, lane("high", max_tokens_default=10), LOW)
    desk.arrive(*(f"a{number}" for number in range(6)), key="a", weight=3.0)
    assert desk.wait_s(key="b") == pytest.approx(0.260 + 3 * 0.5 + 3 * 0.005)
    assert desk.wait_s(key="b", weight=3.0) == pytest.approx(0.260 + 0.5 + 0.005)


def test_answers_that_ran_before_go_before_a_newcomer():
    desk = busy(2, lane("high", max_tokens_default=10), LOW)
    desk.core.interrupted(["r1"], 0.0)
    before = desk.wait_s()
    desk.core.interrupted(["r0"], 0.0)
    assert before == pytest.approx(0.205 + 0.005 + 0.050)
    assert desk.wait_s() == pytest.approx(0.5)


def test_speeds_and_lengths_are_learnt_from_what_ran():
    desk = busy(1, lane("high", max_tokens_default=100), LOW)
    desk.end("r0")
    for number in range(8):
        desk.arrive(f"a{number}", max_tokens=100)
        (name,) = desk.starts()
        desk.prefill(name, 20, ms=40.0)
        desk.steps(9 if number else 90, name)
        desk.end(name)
    desk.arrive("r", max_tokens=100)
    desk.starts()
    prefill_ms = 5 * (1 + 1 - 0.9**8)
    assert desk.wait_s() == pytest.approx((9 * 10 + 2 * prefill_ms + 10) / 1000)


# --- refused at arrival -------------------------------------------------------------------------------------


def test_who_would_wait_longer_than_it_may_is_refused_at_once():
    desk = busy()
    with pytest.raises(Overloaded, match=r"wait for about 0\.3 s, and 0\.259 s are allowed"):
        desk.arrive("a", deadline_s=0.259)
    assert desk.core.queued == 0
    desk.arrive("a", deadline_s=0.261)


def test_who_would_wait_too_long_is_not_even_measured():
    desk = busy()
    with pytest.raises(Overloaded):
        desk.announce(deadline_s=0.259)
    desk.announce(deadline_s=0.261)


def test_the_last_of_a_requests_answers_counts():
    desk = busy(1, lane("high", max_tokens_default=10), LOW)
    with pytest.raises(Overloaded):
        desk.arrive_together("a", "b", deadline_s=0.5)
    with pytest.raises(Overloaded):
        desk.announce(2, deadline_s=0.5)
    desk.announce(2, deadline_s=0.9)
    desk.arrive_together("a", "b", deadline_s=0.9)


# --- deadlines ----------------------------------------------------------------------------------------------


def test_what_waited_as_long_as_it_may_is_refused_and_never_starts():
    desk = busy()
    desk.arrive("a", deadline_s=10.0)
    desk.arrive("b", deadline_s=20.0)
    desk.end("r0")
    assert desk.decide(at=10.0) == ["refuse a: queue_timeout", "start b"]
    assert desk.refusals["a"].retry_after_s >= 1
    assert "a" not in desk.state.answers


def test_each_is_refused_at_its_own_time():
    desk = busy()
    desk.arrive("c", deadline_s=30.0)
    desk.arrive("a", deadline_s=10.0)
    desk.arrive("b", deadline_s=20.0, lane="low")
    assert desk.decide(at=9.99) == []
    assert desk.decide(at=10.0) == ["refuse a: queue_timeout"]
    assert desk.decide(at=19.99) == []
    assert desk.decide(at=20.0) == ["refuse b: queue_timeout"]
    assert desk.decide(at=31.0) == ["refuse c: queue_timeout"]
    assert desk.core.queued == 0


def test_siblings_of_an_answer_that_started_wait_on():
    """Half of a request is no answer: what has used the device is not thrown away."""
    desk = Desk()
    desk.worker(slots=1)
    desk.arrive_together("a", "b", deadline_s=10.0)
    assert desk.starts() == ["a"]
    assert desk.decide(at=1000.0) == []
    desk.end("a")
    assert desk.starts() == ["b"]


def test_what_ran_before_waits_on():
    desk = Desk()
    desk.worker()
    desk.arrive("a", deadline_s=10.0)
    desk.starts()
    desk.core.interrupted(["a"], 1.0)
    desk.core.worker_went(1.0)
    assert desk.decide(at=1000.0) == []
    desk.worker()
    assert desk.starts() == ["a"]


# --- restarts -----------------------------------------------------------------------------------------------


def test_who_waits_in_vain_for_a_worker_is_refused_at_once():
    desk = busy()
    desk.arrive("a", deadline_s=9.0)
    desk.arrive("b", deadline_s=11.0)
    desk.now = 0.5
    desk.death()
    assert desk.decide() == ["refuse a: server_is_overloaded"]
    assert desk.refusals["a"].retry_after_s == pytest.approx(10.0)


def test_who_waits_for_a_worker_that_is_overdue_is_refused_once_it_will_be_too_late():
    """After 14 of the 10 s it is expected in another 2, after 15 in 2.5."""
    desk = Desk()
    desk.core.worker_went(0.0)
    desk.arrive("a", deadline_s=16.5)
    assert desk.decide() == []
    assert desk.decide(at=14.0) == []
    assert desk.decide(at=15.0) == ["refuse a: server_is_overloaded"]


def test_a_newcomer_waits_for_what_is_left_of_a_restart():
    desk = Desk(lane("high", max_tokens_default=10), LOW)
    desk.worker(slots=4)
    desk.core.worker_went(0.0)
    desk.now = 4.0
    assert desk.wait_s() == pytest.approx(6.0)
    with pytest.raises(Overloaded):
        desk.arrive("a", deadline_s=5.9)
    desk.arrive(*(f"a{number}" for number in range(8)), deadline_s=10.0)
    assert desk.wait_s() == pytest.approx(6.0 + 2 * 0.5 + 8 * 0.005)


def test_restarts_are_learnt_from():
    restarts = Restarts()
    restarts.lost(100.0)
    assert restarts.left_s(103.0) == pytest.approx(7.0)
    restarts.came(130.0)
    assert restarts.left_s(131.0) == 0.0
    restarts.lost(200.0)
    assert restarts.left_s(200.0) == pytest.approx(20.0)


def test_a_worker_that_is_not_started_yet_is_not_expected_before():
    restarts = Restarts()
    restarts.lost(0.0)
    restarts.delayed(30.0)
    assert restarts.left_s(1.0) >= 29.0
    assert restarts.left_s(32.0) == pytest.approx(8.0), "nor is it overdue when it has just been started"


def test_what_a_worker_waited_before_it_was_started_is_not_expected_the_next_time():
    restarts = Restarts()
    restarts.lost(0.0)
    restarts.delayed(60.0)
    restarts.came(64.0)
    restarts.lost(100.0)
    assert restarts.left_s(100.0) == pytest.approx(7.0)


def test_after_an_open_breaker_a_short_restart_refuses_nobody():
    desk = Desk(HIGH)
    desk.worker()
    desk.now = 100.0
    desk.death()
    desk.core.worker_delayed(160.0)
    desk.now = 165.0
    desk.worker()
    desk.now = 1000.0
    desk.death()
    desk.arrive("a", deadline_s=30.0)
    desk.now = 1005.0
    assert desk.decide() == []
    desk.worker()
    assert desk.starts() == ["a"]


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_while_there_is_no_worker_some_time_is_left(restart_s, now):
    restarts = Restarts()
    restarts.lost(0.0)
    restarts.came(restart_s)
    restarts.lost(0.0)
    assert restarts.left_s(now) >= 1.0


# --- how estimates did --------------------------------------------------------------------------------------


def test_four_in_five_waits_are_no_longer_than_estimated():
    """Waits between 0 and 2 s, estimated at 1 s: the factor goes to where four in five are covered."""
    calibration = Calibration()
    for number in range(5000):
        calibration.started(1.0 * calibration.factor, (number * 7 % 20) / 10)
    assert calibration.factor == pytest.approx(1.6, abs=0.2)


def test_a_factor_on_estimates_stays_within_four():
    calibration = Calibration()
    for _ in range(200):
        calibration.started(1.0, 100.0)
    assert calibration.factor == 4.0
    for _ in range(1000):
        calibration.started(1.0, 0.0)
    assert calibration.factor == 0.25


def test_waits_too_short_to_matter_teach_nothing():
    calibration = Calibration()
    calibration.started(0.09, 0.0)
    assert calibration.factor == 1.0


def test_only_first_starts_teach():
    desk = busy()
    desk.core.interrupted(["r0"], 0.0)
    desk.starts(at=100.0)
    assert desk.state.calibration.factor == 1.0
    desk.arrive("a")
    desk.end("r0")
    desk.starts(at=200.0)
    assert desk.state.calibration.factor > 1.0
    assert desk.wait_s() > 0.26


# --- when to come back --------------------------------------------------------------------------------------


def refused_s(desk, **changes):
    with pytest.raises(Overloaded) as refusal:
        desk.arrive("x", **changes)
    return refusal.value.retry_after_s


def test_no_two_of_those_who_are_refused_are_told_to_come_back_at_one_time():
    """Each is given the next place on the device: an answer's time later."""
    desk = busy(1, lane("high", queue_places=1, max_tokens_default=30), LOW)
    desk.arrive("a")
    times = [refused_s(desk) for _ in range(4)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps == [pytest.approx(30 * 0.050 + 0.005)] * 3


def test_the_time_to_come_back_is_when_half_of_the_deadline_will_do():
    desk = busy(1, lane("high", max_tokens_default=100), LOW)
    desk.arrive("a", "b")
    estimated_s = desk.wait_s()
    assert refused_s(desk, deadline_s=4.0) == pytest.approx(estimated_s - 2.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 100)), max_size=30))
def test_a_time_to_come_back_is_between_one_and_fifty_seconds(refused):
    promises, now = Promises(), 0.0
    for earliest_s, answers_s, pause_s in refused:
        now += pause_s
        assert 1.0 <= promises.next_s(earliest_s, answers_s, now) <= 50.0


def test_promises_are_kept_apart_until_their_end_and_forgotten_after():
    promises = Promises()
    assert promises.next_s(5.0, 40.0, 0.0) == 5.0
    assert promises.next_s(5.0, 40.0, 0.0) == 45.0
    assert promises.next_s(5.0, 40.0, 0.0) == 50.0
    assert promises.next_s(5.0, 40.0, 100.0) == 5.0
