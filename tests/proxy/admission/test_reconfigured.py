"""Other lanes while answers queue and run: an order, bounds, a lane that is new, and one that is gone."""

import pytest

from shared.errors import Overloaded
from tests.proxy.admission.small_core import HIGH, LOW, Desk, lane

MIDDLE = lane("middle")


def reconfigure(desk, *lanes):
    desk.core.reconfigured(lanes, desk.shared)


def test_an_order_that_is_swapped_holds_for_what_waits():
    desk = Desk()
    desk.worker(slots=1)
    desk.arrive("h1", "h2")
    desk.arrive("l", lane="low")
    assert desk.starts() == ["h1"]
    reconfigure(desk, LOW, HIGH)
    desk.end("h1")
    assert desk.starts() == ["l"]


def test_an_order_that_is_swapped_holds_for_what_runs():
    """Rows of what is the lower lane now keep clear of the reserve."""
    desk = Desk()
    desk.worker(slots=3)
    desk.arrive("h1", "h2", "h3")
    assert desk.starts() == ["h1", "h2", "h3"]
    reconfigure(desk, lane("low", reserved_slots=2), HIGH)
    desk.end("h1")
    desk.arrive("h4")
    desk.arrive("l", lane="low")
    assert desk.starts() == ["l"]
    desk.end("l", "h2")
    assert desk.starts() == []
    desk.end("h3")
    assert desk.starts() == ["h4"]


def test_what_was_higher_is_parked_for_what_is_higher_now():
    desk = Desk(lane("high", parkable=True), LOW)
    desk.worker(slots=1)
    desk.arrive("h")
    desk.arrive("l", lane="low")
    assert desk.starts() == ["h"]
    assert desk.decide(at=9.0) == []
    reconfigure(desk, LOW, lane("high", parkable=True))
    assert desk.decide(at=9.0) == ["park h", "start l"]


def test_a_lane_that_is_new_takes_what_comes():
    desk = Desk()
    desk.worker(slots=1)
    desk.arrive("l", lane="low")
    reconfigure(desk, HIGH, MIDDLE, LOW)
    desk.arrive("m", lane="middle")
    assert desk.starts() == ["m"]


def test_bounds_hold_from_then_on():
    desk = Desk()
    desk.arrive("a", "b", "c")
    reconfigure(desk, lane("high", queue_places=3), LOW)
    with pytest.raises(Overloaded):
        desk.arrive("d")
    reconfigure(desk, lane("high", queue_places=2), LOW)
    assert desk.core.queued == 3
    desk.end("a", completed=False)
    with pytest.raises(Overloaded):
        desk.arrive("d")
    desk.end("b", completed=False)
    desk.arrive("d")


def test_overload_is_judged_by_the_new_target():
    desk = Desk()
    reconfigure(desk, lane("high", target_wait_s=5.0), LOW)
    desk.worker(slots=1)
    desk.arrive("a", "b")
    assert desk.starts(at=6.0) == ["a"]
    desk.end("a")
    assert desk.starts(at=16.0) == ["b"]
    assert desk.lane("high").overload.lasting


def merged():
    """The middle lane is gone: one of its answers runs, one ran before, two wait, as others do below."""
    desk = Desk(HIGH, MIDDLE, LOW)
    desk.worker(slots=2)
    desk.arrive("m1", "m2", lane="middle", key="a")
    assert desk.starts() == ["m1", "m2"]
    desk.arrive("l1", lane="low", key="a")
    desk.arrive("m3", lane="middle", key="a")
    desk.arrive("l2", lane="low", key="b")
    desk.arrive("m4", lane="middle", key="a")
    desk.core.interrupted(["m2"], desk.now)
    held = desk.announce(2, lane="middle", key="a")
    reconfigure(desk, HIGH, LOW)
    return desk, held


def test_answers_of_a_lane_that_is_gone_go_on_in_the_lowest():
    desk, _ = merged()
    assert (desk.core.running, desk.core.queued) == (1, 5)
    desk.arrive("h")
    assert desk.starts() == ["h"]
    order = []
    while desk.core.running:
        desk.end(*(name for each in desk.state.lanes for name in tuple(each.running)))
        order += desk.starts()
    assert order[0] == "m2"
    assert sorted(order) == ["l1", "l2", "m2", "m3", "m4"]
    assert [name for name in order[1:] if name != "l2"] == ["l1", "m3", "m4"]
    assert (desk.core.reserved_bytes, desk.state.answers, desk.state.lane_of) == (0, {}, {})


def test_the_eldest_of_a_key_is_still_known_where_two_lanes_became_one():
    desk = Desk(HIGH, MIDDLE, LOW)
    desk.arrive("m", lane="middle")
    desk.now = 100.0
    desk.arrive("l", lane="low")
    reconfigure(desk, HIGH, LOW)
    assert desk.lane("low").waits_s(110.0) == 110.0


def test_what_is_announced_for_a_lane_that_is_gone_can_be_measured_and_arrive():
    desk, held = merged()
    desk.core.measured(held)
    desk.arrive("late", lane="middle", key="a")
    assert desk.state.lane_of["late"] is desk.lane("low")
    assert [each.announced for each in desk.state.lanes] == [0, 0]


def test_what_was_prepaid_in_a_lane_that_is_gone_is_no_credit_below():
    desk, _ = merged()
    low = desk.lane("low").counters
    desk.end("m1")
    assert low.of("a") == pytest.approx(0.0)
    assert low.of("b") == 0.0


def test_every_answer_of_a_key_is_counted_below():
    desk, _ = merged()
    desk.end("m1", "m2", "m3", "m4", "l1", "l2", completed=False)
    assert desk.lane("low").counters.active() == ()


def test_rows_of_a_lane_that_is_gone_keep_clear_of_what_is_reserved_now():
    desk, _ = merged()
    reconfigure(desk, lane("high", reserved_slots=1), LOW)
    assert desk.starts() == []


def test_a_row_that_overcommits_grows_on_in_a_lane_that_can_not_be_parked():
    """Or it would outgrow what is reserved for it."""
    desk = Desk(HIGH, lane("gone", parkable=True), LOW)
    desk.worker()
    desk.arrive("a", lane="gone", prompt_tokens=10, max_tokens=100)
    assert desk.starts() == ["a"]
    assert desk.reserved("a") == 80
    reconfigure(desk, HIGH, LOW)
    desk.steps(39, "a")
    assert desk.decide() == []
    assert desk.reserved("a") == 110


def test_one_lane_is_enough():
    desk, _ = merged()
    reconfigure(desk, HIGH)
    assert desk.starts() == ["m2"]
    assert desk.core.queued == 4


def test_a_row_that_is_being_parked_when_its_lane_goes_is_parked_all_the_same():
    desk = Desk(HIGH, lane("gone", parkable=True), lane("low", parkable=True))
    desk.worker(slots=1)
    desk.arrive("a", lane="gone")
    assert desk.starts() == ["a"]
    desk.arrive("h")
    assert desk.decide(at=9.0) == ["park a", "start h"]
    reconfigure(desk, HIGH, lane("low", parkable=True))
    assert list(desk.lane("low").parking) == ["a"]
    desk.end("h")
    assert desk.decide() == []
    desk.parked("a")
    assert desk.starts() == ["a"]
    assert list(desk.lane("low").running) == ["a"]
