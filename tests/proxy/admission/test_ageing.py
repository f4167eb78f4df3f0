"""No lane starves: an aged head goes first, then holds everything, and each lane has its share of time."""

from tests.proxy.admission.small_core import HIGH, Desk, lane

AGES = lane("low", ages_after_s=100.0)


def flooded(low=AGES, slots=1):
    """Every slot is taken by the high lane, which has more to come; the low one waits since 0."""
    desk = Desk(HIGH, low)
    desk.worker(slots=slots)
    desk.arrive(*(f"h{number}" for number in range(40)))
    desk.arrive(*(f"l{number}" for number in range(9)), lane="low")
    assert desk.starts() == [f"h{number}" for number in range(slots)]
    return desk


def test_an_aged_head_goes_before_higher_lanes_and_one_of_its_lane_only():
    desk = flooded(slots=4)
    desk.end("h0", "h1")
    assert desk.starts(at=99.9) == ["h4", "h5"]
    desk.end("h2", "h3", "h4")
    assert desk.starts(at=100.0) == ["l0", "h6", "h7"]


def test_an_aged_lane_gets_one_slot_in_each_of_its_times():
    desk = flooded()
    desk.end("h0")
    assert desk.starts(at=150.0) == ["l0"]
    desk.end("l0")
    assert desk.starts(at=249.9) == ["h1"]
    desk.end("h1")
    assert desk.starts(at=250.0) == ["l1"]


def test_an_aged_head_may_use_what_is_reserved():
    desk = Desk(lane("high", reserved_slots=1), AGES)
    desk.worker(slots=2)
    desk.arrive("a", "b", lane="low")
    assert desk.starts() == ["a"]
    assert desk.starts(at=99.9) == []
    assert desk.starts(at=100.0) == ["b"]


def test_of_two_aged_lanes_each_gets_its_slot():
    desk = Desk(HIGH, lane("middle", ages_after_s=100.0), AGES)
    desk.worker(slots=1)
    desk.arrive("h0", "h1", "h2")
    desk.arrive("m0", "m1", lane="middle")
    desk.arrive("l0", lane="low")
    assert desk.starts() == ["h0"]
    desk.end("h0")
    assert desk.starts(at=100.0) == ["m0"]
    desk.end("m0")
    assert desk.starts(at=101.0) == ["l0"]
    desk.end("l0")
    assert desk.starts(at=102.0) == ["h1"]


def large_below(aged_s):
    """Two rows run, high ones wait, and the low lane's head fits only into an empty worker."""
    desk = Desk(HIGH, AGES)
    desk.worker(20, slots=9)
    desk.arrive("h0", "h1", "h2", "h3")
    desk.arrive("large", lane="low", prompt_tokens=10)
    assert desk.starts() == ["h0", "h1"]
    desk.end("h0")
    return desk, desk.starts(at=aged_s)


def test_an_aged_head_that_does_not_fit_is_passed_until_twice_as_old():
    _, started = large_below(aged_s=199.9)
    assert started == ["h2"]


def test_what_a_head_needs_is_kept_for_it_once_it_is_twice_as_old():
    desk, started = large_below(aged_s=200.0)
    assert started == []
    desk.end("h1")
    assert desk.starts() == ["large"]
    desk.end("large")
    assert desk.starts() == ["h2", "h3"]


def test_a_smaller_one_of_an_aged_lane_may_take_its_slot():
    desk = Desk(HIGH, AGES)
    desk.worker(20, slots=9)
    desk.arrive("h0", "h1", "h2")
    desk.arrive("large", lane="low", prompt_tokens=10)
    desk.arrive("small", lane="low")
    assert desk.starts() == ["h0", "h1"]
    desk.end("h0")
    assert desk.starts(at=100.0) == ["small"]


def test_one_that_ran_before_ages_from_when_it_was_put_back():
    desk = flooded()
    desk.end("h0")
    assert desk.starts(at=100.0) == ["l0"]
    desk.end(*(f"l{number}" for number in range(1, 9)), completed=False)
    desk.core.interrupted(["l0"], desk.now)
    assert desk.starts() == ["h1"]
    desk.end("h1")
    assert desk.starts(at=199.9) == ["h2"]
    desk.end("h2")
    assert desk.starts(at=200.0) == ["l0"]


# --- the least share of the device's time -------------------------------------------------------------------

SHARE = lane("low", ages_after_s=1000.0, step_share_min=0.05)


def test_a_lane_that_had_too_little_for_a_minute_goes_first():
    desk = flooded(SHARE)
    desk.step("h0")
    desk.end("h0")
    assert desk.starts(at=59.9) == ["h1"]
    desk.step("h1")
    desk.end("h1")
    assert desk.starts(at=60.0) == ["l0"]


def test_a_lane_that_had_its_share_waits_on():
    """Six of a hundred milliseconds are enough; they are forgotten a minute later."""
    desk = flooded(SHARE)
    desk.end("h0")
    desk.now = 60.0
    assert desk.starts() == ["l0"]
    desk.step("l0", ms=6.0)
    desk.end("l0")
    assert desk.starts() == ["h1"]
    desk.step("h1", ms=94.0)
    desk.end("h1")
    assert desk.starts(at=119.9) == ["h2"]
    desk.end("h2")
    assert desk.starts(at=120.0) == ["l1"]


def test_a_share_just_below_the_least_is_too_little():
    desk = flooded(SHARE)
    desk.end("h0")
    assert desk.starts(at=60.0) == ["l0"]
    desk.step("l0", ms=4.9)
    desk.end("l0")
    assert desk.starts() == ["h1"]
    desk.step("h1", ms=95.1)
    desk.end("h1")
    assert desk.starts() == ["l1"]


def test_a_lane_whose_row_runs_gets_no_second_one_for_its_share():
    desk = flooded(SHARE, slots=2)
    desk.end("h0", "h1")
    assert desk.starts(at=60.0) == ["l0", "h2"]
    desk.step("h2")
    desk.end("h2")
    assert desk.starts(at=130.0) == ["h3"]


def test_a_lane_that_only_just_has_work_has_no_claim_yet():
    desk = Desk(HIGH, SHARE)
    desk.worker(slots=1)
    desk.arrive("h0", "h1", "h2")
    assert desk.starts(at=100.0) == ["h0"]
    desk.arrive("l0", lane="low")
    desk.step("h0")
    desk.end("h0")
    assert desk.starts(at=159.9) == ["h1"]
    desk.end("h1")
    assert desk.starts(at=160.0) == ["l0"]


def test_a_lane_that_ages_sooner_than_in_a_minute_has_its_share_by_the_minute_too():
    desk = flooded(lane("low", ages_after_s=30.0, step_share_min=0.05))
    desk.end("h0")
    assert desk.starts(at=45.0) == ["l0"]
    desk.end("l0")
    assert desk.starts() == ["h1"]
    desk.step("h1")
    desk.end("h1")
    assert desk.starts(at=59.9) == ["h2"]
    desk.end("h2")
    assert desk.starts(at=60.0) == ["l1"]
