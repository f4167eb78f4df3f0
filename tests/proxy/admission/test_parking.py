"""Rows that are given up for a higher lane: whose, when, how many, and how often."""

import pytest

from tests.proxy.admission.small_core import HIGH, LOW, Desk, lane

PARKABLE = lane("low", parkable=True)


def low_rows(slots=2, *lanes, **worker):
    """Every slot is taken by a row of the low lane, started a second apart: l0, l1, … until now."""
    desk = Desk(*lanes or (HIGH, PARKABLE))
    desk.worker(slots=slots, **worker)
    for number in range(slots):
        desk.now = float(number)
        desk.arrive(f"l{number}", lane="low", max_tokens=100)
        assert desk.starts() == [f"l{number}"]
    return desk


# --- whose --------------------------------------------------------------------------------------------------


def test_the_newest_is_parked_and_the_one_that_waits_starts_in_its_place():
    desk = low_rows()
    desk.arrive("h")
    assert desk.decide(at=9.0) == ["park l1", "start h"]
    assert desk.core.running == 2
    desk.end("h")
    assert desk.decide() == []
    desk.parked("l1")
    assert desk.starts() == ["l1"]


def test_a_row_is_not_parked_before_it_has_run_two_seconds():
    """The newest ripe one is taken instead, once there is one."""
    desk = low_rows()
    desk.arrive("h")
    assert desk.decide(at=1.9) == []
    assert desk.decide(at=2.0) == ["park l0", "start h"]


def test_a_row_is_ripe_after_64_tokens_however_fast_they_came():
    desk = low_rows(1)
    desk.arrive("h")
    desk.steps(63, "l0")
    assert desk.decide() == []
    desk.step("l0")
    assert desk.decide() == ["park l0", "start h"]


def test_tokens_from_before_its_last_start_make_no_row_ripe():
    desk = low_rows(1)
    desk.steps(70, "l0")
    desk.core.interrupted(["l0"], 0.0)
    assert desk.starts() == ["l0"]
    desk.arrive("h")
    desk.steps(10, "l0")
    assert desk.decide() == []


def test_rows_of_its_own_lane_and_of_higher_ones_are_not_parked():
    top = lane("top", parkable=True)
    desk = Desk(top, PARKABLE)
    desk.worker(slots=2)
    desk.arrive("t", lane="top")
    desk.arrive("l", lane="low")
    assert desk.starts() == ["t", "l"]
    desk.arrive("l2", lane="low")
    assert desk.decide(at=9.0) == []
    desk.arrive("t2", lane="top")
    assert desk.decide() == ["park l", "start t2"]


def test_rows_of_a_lane_that_can_not_be_parked_stay():
    desk = low_rows(2, HIGH, LOW)
    desk.arrive("h")
    assert desk.decide(at=9.0) == []


def test_the_highest_lane_that_waits_is_helped_first():
    desk = low_rows(2, lane("top"), lane("high", parkable=True), PARKABLE)
    desk.arrive("h", lane="high")
    desk.arrive("t", lane="top")
    assert desk.decide(at=9.0) == ["park l1", "start t", "park l0", "start h"]


def test_an_aged_one_of_a_lane_below_does_not_take_what_is_parked_for_a_higher_one():
    desk = Desk(HIGH, lane("low", parkable=True, ages_after_s=5.0))
    desk.worker(slots=1)
    desk.arrive("l0", "l1", lane="low")
    assert desk.starts() == ["l0"]
    desk.arrive("h")
    assert desk.decide(at=9.0) == ["park l0", "start h"]
    desk.end("h")
    desk.arrive("h2")
    assert desk.starts() == ["l1"]


@pytest.mark.parametrize(("ages_after_s", "words"), [(50.0, ["park l", "start m"]), (5.0, [])])
def test_nobody_is_parked_for_a_lane_that_waits_for_an_aged_one_above(ages_after_s, words):
    """What is highest doesn't fit beside the row that can't be parked; once it has aged, all wait for it."""
    desk = Desk(lane("top", ages_after_s=ages_after_s), lane("middle"), PARKABLE)
    desk.worker(75, slots=2)
    desk.arrive("t1", lane="top", max_tokens=24)
    desk.arrive("l", lane="low")
    assert desk.starts() == ["t1", "l"]
    desk.arrive("t2", lane="top", max_tokens=40)
    desk.arrive("m", lane="middle")
    assert desk.decide(at=9.0) == words


# --- how many -----------------------------------------------------------------------------------------------


def test_no_more_rows_are_parked_than_are_needed():
    desk = low_rows(4)
    desk.arrive("h1", "h2")
    assert desk.decide(at=9.0) == ["park l3", "start h1", "park l2", "start h2"]
    assert desk.decide() == []


def test_a_free_slot_is_used_before_a_row_is_parked():
    desk = low_rows(4)
    desk.end("l0")
    desk.arrive("h1", "h2")
    assert desk.decide(at=9.0) == ["start h1", "park l3", "start h2"]


def test_as_many_rows_are_parked_as_one_needs_for_its_bytes():
    """Three rows of 76 bytes leave 72 of 300, two leave 148, and one leaves the 156 that are asked for."""
    desk = low_rows(3, budget=300)
    desk.arrive("h", prompt_tokens=5, max_tokens=150)
    assert desk.decide(at=9.0) == ["park l2", "park l1", "start h"]
    assert desk.core.running == 2
    assert desk.core.reserved_bytes == 76 + 156


def test_nobody_is_parked_for_one_that_would_not_fit_even_so():
    """The first of the high lane takes 30 of 75 bytes, and the next asks for 46."""
    desk = Desk(HIGH, PARKABLE)
    desk.worker(75, slots=9)
    desk.arrive("h1", max_tokens=24)
    desk.arrive("l", lane="low")
    assert desk.starts() == ["h1", "l"]
    desk.arrive("h2", max_tokens=40)
    assert desk.decide(at=9.0) == []


def test_a_row_that_is_being_parked_is_not_parked_again():
    desk = low_rows(4)
    desk.arrive("h1")
    assert desk.decide(at=9.0) == ["park l3", "start h1"]
    desk.arrive("h2")
    assert desk.decide() == ["park l2", "start h2"]
    desk.parked("l3")
    desk.arrive("h3")
    assert desk.decide() == ["park l1", "start h3"]


def test_what_a_row_gives_up_serves_one_only():
    desk = low_rows(1)
    desk.arrive("h1")
    assert desk.decide(at=9.0) == ["park l0", "start h1"]
    desk.arrive("h2")
    assert desk.decide(at=99.0) == []
    desk.parked("l0")
    assert desk.decide() == []


# --- how often ----------------------------------------------------------------------------------------------


def park_once(desk, at):
    desk.arrive(f"h{at}")
    assert desk.decide(at=at) == ["park l0", f"start h{at}"]
    desk.parked("l0")
    desk.end(f"h{at}")
    assert desk.starts() == ["l0"]


def test_a_row_is_parked_three_times_and_then_runs_to_its_end_with_all_it_may_take():
    desk = low_rows(1)
    for at in (10.0, 20.0, 30.0):
        assert desk.reserved("l0") < 105
        park_once(desk, at)
    assert desk.reserved("l0") == 105
    desk.arrive("h")
    assert desk.decide(at=99.0) == []
    desk.end("l0")
    assert desk.starts() == ["h"]


def test_a_death_is_no_park():
    desk = low_rows(1)
    for at in (10.0, 20.0, 30.0, 40.0):
        desk.now = at
        desk.core.interrupted(["l0"], at)
        assert desk.starts() == ["l0"]
    park_once(desk, 50.0)


def test_a_death_while_a_row_is_being_parked_queues_it_again_and_the_park_counts():
    desk = low_rows(1)
    desk.arrive("h")
    assert desk.decide(at=9.0) == ["park l0", "start h"]
    assert sorted(desk.death()) == ["h", "l0"]
    assert desk.state.answers["l0"].parks == 1
    desk.worker(slots=1)
    assert desk.starts() == ["h"]
    desk.end("h")
    assert desk.starts() == ["l0"]


# --- between the asking and the answer ----------------------------------------------------------------------


@pytest.mark.parametrize(("ages_after_s", "words"), [(50.0, ["park l", "start small"]), (5.0, [])])
def test_rows_are_parked_for_smaller_ones_than_one_that_would_not_fit_even_so(ages_after_s, words):
    desk = Desk(lane("high", ages_after_s=ages_after_s), PARKABLE)
    desk.worker(75, slots=2)
    desk.arrive("h1", max_tokens=24)
    desk.arrive("l", lane="low")
    assert desk.starts() == ["h1", "l"]
    desk.arrive("large", max_tokens=40)
    desk.arrive("small")
    assert desk.decide(at=9.0) == words


def test_what_is_being_parked_holds_nothing_and_waits_nowhere():
    desk = low_rows(1)
    desk.arrive("h")
    assert desk.decide(at=9.0) == ["park l0", "start h"]
    assert desk.core.queued == 0
    assert list(desk.lane("low").parking) == ["l0"]
    desk.end("h")
    assert (desk.core.running, desk.core.reserved_bytes) == (0, 0)
    desk.parked("l0")
    assert desk.lane("low").parking == {}
    assert desk.core.queued == 1


def test_tokens_that_come_while_a_row_is_being_parked_are_not_lost():
    """It is started again with all it has, 5 + 3 tokens, and a share of the rest."""
    desk = low_rows(1)
    desk.arrive("h")
    desk.decide(at=9.0)
    desk.steps(3, "l0")
    assert desk.decide() == []
    desk.end("h")
    desk.parked("l0")
    assert desk.starts() == ["l0"]
    assert desk.reserved("l0") == 8 + int(0.7 * 97)


def test_a_row_that_ends_while_it_is_being_parked_frees_no_second_place():
    desk = low_rows()
    desk.arrive("h")
    assert desk.decide(at=9.0) == ["park l1", "start h"]
    desk.end("l1")
    desk.arrive("l2", lane="low")
    assert desk.decide() == []
    assert desk.core.running == 2
    assert desk.lane("low").counters.active() == ("",)
    desk.end("l0", "l2")
    assert desk.lane("low").counters.active() == ()


def test_without_a_worker_nobody_is_asked_to_park():
    desk = low_rows()
    desk.arrive("h")
    desk.core.worker_went(9.0)
    assert desk.decide(at=9.0) == []


def test_lower_lanes_start_nothing_while_parking_would_let_a_higher_one_in():
    """The row that will be parked isn't ripe yet. What is free now would be too little for the high one."""
    desk = Desk(HIGH, PARKABLE)
    desk.worker(35, slots=9)
    desk.arrive("l0", "l1", lane="low")
    assert desk.starts() == ["l0", "l1"]
    desk.arrive("h", max_tokens=14)
    desk.arrive("l2", lane="low")
    assert desk.decide(at=1.0) == []
    assert desk.decide(at=2.0) == ["park l1", "start h"]
    assert desk.decide() == []


def test_lower_lanes_start_where_no_parking_would_help():
    desk = Desk(HIGH, PARKABLE)
    desk.worker(45, slots=9)
    desk.arrive("h1", "h2")
    assert desk.starts() == ["h1", "h2"]
    desk.arrive("h3", max_tokens=24)
    desk.arrive("l", lane="low")
    assert desk.starts(at=9.0) == ["l"]


@pytest.mark.parametrize("resumed", [True, False])
def test_a_parked_answer_goes_before_its_lanes_newcomers(resumed):
    desk = low_rows(1)
    desk.arrive("later", lane="low")
    if resumed:
        park_once(desk, 9.0)
    else:
        desk.end("l0")
        assert desk.starts(at=9.0) == ["later"]


# --- when memory falls short --------------------------------------------------------------------------------


def three_rows(*lanes, in_lanes=("low",) * 3, tokens=10):
    """Three rows that take 11 bytes each."""
    desk = Desk(*lanes or (HIGH, PARKABLE))
    desk.worker(budget=200)
    for number, name in enumerate(in_lanes):
        desk.now = float(number)
        desk.arrive(f"r{number}", lane=name, prompt_tokens=2, max_tokens=tokens - 2)
    desk.now = 0.0
    assert sorted(desk.starts(at=9.0)) == ["r0", "r1", "r2"]
    return desk


@pytest.mark.parametrize(("budget", "parked"), [(33, 0), (32, 1), (22, 1), (21, 2), (11, 2), (10, 3), (0, 3)])
def test_no_more_rows_are_parked_than_a_smaller_budget_asks_for(budget, parked):
    desk = three_rows()
    desk.core.squeezed(budget)
    assert len(desk.decide()) == parked
    assert desk.core.reserved_bytes <= max(budget, 0)
    assert desk.decide() == []


def test_the_lowest_lanes_newest_goes_first():
    top = lane("top", parkable=True)
    desk = three_rows(top, PARKABLE, in_lanes=("low", "low", "top"))
    desk.core.squeezed(22)
    assert desk.decide() == ["park r1"]
    desk.core.squeezed(11)
    assert desk.decide() == ["park r0"]
    desk.core.squeezed(0)
    assert desk.decide() == ["park r2"]


def test_what_can_not_be_parked_stays_and_nothing_starts_until_it_fits_again():
    desk = three_rows(HIGH, LOW)
    desk.core.squeezed(13)
    desk.arrive("n", prompt_tokens=1, max_tokens=1)
    assert desk.decide(at=60.0) == []
    assert desk.core.running == 3
    desk.end("r0", "r1")
    assert desk.decide() == []
    desk.end("r2")
    assert desk.starts() == ["n"]


def test_what_was_parked_starts_again_when_memory_is_back_and_nobody_is_refused_meanwhile():
    desk = three_rows()
    desk.core.squeezed(0)
    assert len(desk.decide()) == 3
    desk.parked("r0", "r1", "r2")
    desk.arrive("n", max_tokens=60)
    assert desk.decide(at=600.0) == []
    desk.core.squeezed(33)
    assert desk.starts() == ["r0", "r1", "r2"]
    desk.end("r0", "r1", "r2")
    desk.core.squeezed(400)
    assert desk.core.state.ledger.budget_bytes == 200
    assert desk.starts() == ["n"]
