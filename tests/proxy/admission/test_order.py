"""Who starts next: lanes by rank, slots and bytes that are kept, and small ones past a large one."""

import pytest

from shared.errors import ContextTooLong
from tests.proxy.admission.small_core import HIGH, LOW, Desk, lane

MIB = 1 << 20


def test_without_a_worker_nobody_starts():
    desk = Desk()
    desk.arrive("a")
    assert desk.starts() == []
    desk.worker()
    desk.core.worker_went(desk.now)
    assert desk.starts() == []
    desk.worker()
    assert desk.starts() == ["a"]


def test_whoever_came_first_starts_first_and_slots_bound_what_runs():
    desk = Desk()
    desk.worker(slots=2)
    desk.arrive("a", "b", "c")
    assert desk.starts() == ["a", "b"]
    assert (desk.core.running, desk.core.queued) == (2, 1)
    desk.end("b")
    assert desk.starts() == ["c"]


def test_a_higher_lane_goes_first_whoever_came_first():
    desk = Desk(lane("top"), HIGH, LOW)
    desk.worker(slots=4)
    desk.arrive("low", lane="low")
    desk.arrive("high 1", "high 2", lane="high")
    desk.arrive("top", lane="top")
    assert desk.starts() == ["top", "high 1", "high 2", "low"]


def test_a_lane_that_nobody_knows_is_the_lowest():
    desk = Desk()
    desk.worker(slots=1)
    desk.arrive("a", lane="gone")
    desk.arrive("b")
    assert desk.starts() == ["b"]
    assert desk.state.lane_of["a"] is desk.lane("low")


# --- slots and bytes ----------------------------------------------------------------------------------------


def test_reserved_slots_are_kept_from_lower_lanes_only():
    desk = Desk(lane("high", reserved_slots=2), LOW)
    desk.worker(slots=4)
    desk.arrive("l1", "l2", "l3", lane="low")
    assert desk.starts() == ["l1", "l2"]
    desk.arrive("h1", "h2", "h3")
    assert desk.starts() == ["h1", "h2"]
    desk.end("l1")
    assert desk.starts() == ["h3"]
    desk.end("h1", "h2")
    assert desk.starts() == []
    desk.end("h3")
    assert desk.starts() == ["l3"]


def test_however_many_rows_higher_lanes_have_the_reserve_is_free_beside_them():
    desk = Desk(lane("high", reserved_slots=1), LOW)
    desk.worker(slots=4)
    desk.arrive("h1", "h2")
    desk.arrive("l1", "l2", lane="low")
    assert desk.starts() == ["h1", "h2", "l1"]


def test_the_lowest_lane_leaves_free_what_all_lanes_above_reserve():
    desk = Desk(lane("top", reserved_slots=1), lane("high", reserved_slots=1), LOW)
    desk.worker(slots=4)
    desk.arrive("l1", "l2", "l3", lane="low")
    desk.arrive("h1", lane="high")
    assert desk.starts() == ["h1", "l1"]
    desk.arrive("h2", lane="high")
    assert desk.starts() == ["h2"]


def test_a_reserve_never_takes_a_lower_lanes_last_slot():
    desk = Desk(lane("high", reserved_slots=9), LOW)
    desk.worker(slots=2)
    desk.arrive("l1", "l2", lane="low")
    assert desk.starts() == ["l1"]


def test_reserved_bytes_are_kept_from_lower_lanes_only():
    """A row takes 10 MiB; of 40 MiB the low lane may use 30."""
    desk = Desk(lane("high", reserved_mb=10), LOW)
    desk.worker(40 * MIB, slots=9, kv_bytes_per_token=MIB)
    desk.arrive("l1", "l2", "l3", "l4", lane="low")
    assert desk.starts() == ["l1", "l2", "l3"]
    desk.arrive("h1", "h2")
    assert desk.starts() == ["h1"]
    assert desk.core.reserved_bytes == 40 * MIB


def test_bytes_that_no_setting_reserves_are_those_of_the_lanes_p95_request():
    """The high lane's requests take 20 bytes a row: of 50 the low lane may use 30."""
    desk = Desk(lane("high", reserved_slots=1, reserved_mb=None), LOW)
    desk.worker(50, slots=9)
    desk.arrive("h", prompt_tokens=10, max_tokens=9)
    assert desk.starts() == ["h"]
    desk.end("h")
    desk.arrive("l1", "l2", "l3", "l4", lane="low")
    assert desk.starts() == ["l1", "l2", "l3"]


@pytest.mark.parametrize(("small", "large", "started"), [(10, 10, 3), (99, 1, 4)])
def test_the_p95_request_is_neither_the_usual_one_nor_the_largest(small, large, started):
    """Half of them large: 20 of 50 bytes are kept. One in a hundred: 10, which leaves 40 for four rows."""
    desk = Desk(lane("high", reserved_slots=1, reserved_mb=None), LOW)
    desk.worker(50, slots=9)
    for number in range(small + large):
        desk.arrive(f"h{number}", prompt_tokens=5 if number < small else 15)
        desk.end(f"h{number}", completed=False)
    desk.arrive("l1", "l2", "l3", "l4", "l5", lane="low")
    assert len(desk.starts()) == started


def test_a_lane_that_reserves_no_slot_reserves_no_bytes_of_its_own_accord():
    desk = Desk(lane("high", reserved_slots=0, reserved_mb=None), LOW)
    desk.worker(50, slots=9)
    desk.arrive("h", prompt_tokens=10, max_tokens=9)
    assert desk.starts() == ["h"]
    desk.end("h")
    desk.arrive("l1", "l2", "l3", "l4", "l5", "l6", lane="low")
    assert desk.starts() == ["l1", "l2", "l3", "l4", "l5"]


def test_no_more_than_half_of_the_bytes_are_ever_reserved():
    desk = Desk(lane("high", reserved_mb=45), LOW)
    desk.worker(40 * MIB, slots=9, kv_bytes_per_token=MIB)
    desk.arrive("l1", "l2", "l3", lane="low")
    assert desk.starts() == ["l1", "l2"]


def test_an_empty_worker_takes_whatever_fits_by_arithmetic():
    desk = Desk(lane("high", reserved_mb=15, reserved_slots=3), LOW)
    desk.worker(20 * MIB, slots=4, kv_bytes_per_token=MIB)
    desk.arrive("l1", "l2", lane="low")
    assert desk.starts() == ["l1"]


def test_an_answers_bytes_are_free_wherever_it_ends():
    desk = Desk()
    desk.worker(20, slots=9)
    desk.arrive("a", "b", "c", "d")
    assert desk.starts() == ["a", "b"]
    assert desk.core.reserved_bytes == 20
    desk.end("c", completed=False)
    desk.end("a", completed=False)
    assert desk.core.reserved_bytes == 10
    assert desk.starts() == ["d"]
    desk.end("b", "d", "d", "nobody")
    assert (desk.core.reserved_bytes, desk.core.running, desk.core.queued) == (0, 0, 0)


# --- passing ------------------------------------------------------------------------------------------------


def large_and_small(**changes):
    """Two rows run; a large one that fits only alone waits, and small ones behind it and in the low lane."""
    desk = Desk(lane("high", **changes), LOW)
    desk.worker(20, slots=9)
    desk.arrive("a", "b")
    assert desk.starts() == ["a", "b"]
    desk.arrive("large", prompt_tokens=10, max_tokens=4)
    desk.arrive("small 1", "small 2", "small 3")
    desk.arrive("low", lane="low")
    return desk


def test_small_ones_pass_a_large_one_that_does_not_fit():
    desk = large_and_small()
    desk.end("a")
    assert desk.starts() == ["small 1"]


def test_what_a_lane_can_not_use_the_one_below_takes():
    desk = large_and_small()
    desk.end("small 1", "small 2", "small 3", "a", completed=False)
    assert desk.starts() == ["low"]


def test_nobody_passes_a_first_one_that_has_aged_in_its_lane_or_below():
    desk = large_and_small(ages_after_s=10.0)
    desk.end("a")
    assert desk.starts(at=10.0) == []
    desk.end("b")
    assert desk.starts() == ["large"]
    desk.end("large")
    assert desk.starts() == ["small 1", "small 2"]


def test_a_first_one_is_passed_until_it_has_aged():
    desk = large_and_small(ages_after_s=10.0)
    desk.end("a")
    assert desk.starts(at=9.99) == ["small 1"]


def test_the_largest_that_fits_is_found_among_many():
    """What there is room for is worked out once: the answer must be the same as by trying each."""
    desk = Desk(HIGH)
    desk.worker(43, slots=9)
    desk.arrive("a", prompt_tokens=20, max_tokens=1)
    assert desk.starts() == ["a"]
    desk.arrive("too large", prompt_tokens=21, max_tokens=1)
    desk.arrive("just too large", prompt_tokens=20, max_tokens=1)
    assert desk.starts() == []
    desk.state.ledger.budget_bytes = 44
    assert desk.starts() == ["just too large"]


# --- what ran before ----------------------------------------------------------------------------------------


def test_what_ran_before_goes_first_in_its_own_order_but_not_before_a_higher_lane():
    desk = Desk()
    desk.worker(slots=2)
    desk.arrive("a", "b", "c", lane="low")
    assert desk.starts() == ["a", "b"]
    desk.arrive("high")
    desk.core.interrupted(["b"], 1.0)
    desk.core.interrupted(["a"], 2.0)
    assert desk.starts(at=3.0) == ["high", "a"]
    desk.end("a")
    assert desk.starts() == ["b"]


# --- a worker with less memory ------------------------------------------------------------------------------


def test_what_never_fits_is_refused_with_both_numbers():
    desk = Desk()
    desk.worker(50 * MIB, kv_bytes_per_token=MIB)
    with pytest.raises(ContextTooLong, match=r"50 tokens.*50 MiB") as refusal:
        desk.arrive("a", prompt_tokens=46)
    assert refusal.value.param == "max_tokens"
    desk.arrive("b", prompt_tokens=45)
    assert desk.starts() == ["b"]


def test_what_never_fits_is_refused_while_the_worker_restarts_too():
    desk = Desk()
    desk.worker(30)
    desk.core.worker_went(0.0)
    with pytest.raises(ContextTooLong):
        desk.arrive("a", prompt_tokens=1000)


def test_what_a_smaller_worker_can_not_hold_is_refused_wherever_it_waits():
    """Nobody may wait for ever, nor behind one that can never start."""
    desk = Desk()
    desk.worker(200)
    desk.arrive("ran", prompt_tokens=50)
    assert desk.starts() == ["ran"]
    desk.arrive("large", "larger", prompt_tokens=60, lane="low")
    desk.arrive("small")
    desk.death()
    desk.worker(30)
    assert desk.decide() == [
        "refuse ran: context_length_exceeded",
        "refuse large: context_length_exceeded",
        "refuse larger: context_length_exceeded",
        "start small",
    ]
    assert desk.refusals["large"].param == "max_tokens"


def test_nobody_is_too_large_before_a_worker_came():
    desk = Desk()
    desk.arrive("a", prompt_tokens=1 << 19)
    assert desk.decide() == []
    assert desk.core.queued == 1
