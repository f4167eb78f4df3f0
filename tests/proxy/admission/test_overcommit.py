"""Answers that can be parked reserve a share of what they may take, and more as they grow."""

from tests.proxy.admission.small_core import HIGH, LOW, Desk, lane

PARKABLE = lane("low", parkable=True)


def started(*names, lanes=(HIGH, PARKABLE), budget=1 << 20, slots=9, **changes):
    """Start answers of 10 prompt and at most 100 further tokens in the low lane."""
    desk = Desk(*lanes)
    desk.worker(budget, slots, **changes)
    desk.arrive(*names, lane="low", prompt_tokens=10, max_tokens=100)
    assert desk.starts() == list(names)
    return desk


def test_what_can_be_parked_reserves_seven_tenths_of_what_may_come():
    assert started("a").reserved("a") == 10 + 70


def test_what_can_not_be_parked_reserves_all_it_may_take():
    assert started("a", lanes=(HIGH, LOW)).reserved("a") == 110


def test_a_reservation_is_never_more_than_all():
    desk = Desk(HIGH, PARKABLE)
    desk.worker()
    desk.arrive("short", lane="low", prompt_tokens=10, max_tokens=30)
    desk.arrive("middling", lane="low", prompt_tokens=10, max_tokens=40)
    desk.starts()
    assert desk.reserved("short") == 40
    assert desk.reserved("middling") == 10 + 32


def test_the_share_falls_while_answers_end_early():
    desk = started("a", "b", "c")
    desk.steps(100, "a")
    desk.end("a")
    assert desk.lane("low").ratio == 0.7
    desk.end("b", completed=False)
    assert desk.lane("low").ratio == 0.7
    desk.end("c")
    desk.arrive("d", lane="low", prompt_tokens=10, max_tokens=100)
    desk.starts()
    assert desk.reserved("d") == 10 + 69


def test_the_share_does_not_fall_below_three_tenths():
    desk = started()
    for number in range(60):
        desk.arrive(str(number), lane="low", prompt_tokens=10, max_tokens=1000)
        desk.starts()
        desk.end(str(number))
    desk.arrive("a", lane="low", prompt_tokens=10, max_tokens=1000)
    desk.starts()
    assert desk.reserved("a") == 10 + 300


def test_a_reservation_grows_before_it_is_used_up():
    """With 32 tokens to spare it takes seven tenths of the rest again."""
    desk = started("a")
    desk.steps(38, "a")
    assert desk.decide() == []
    assert desk.reserved("a") == 80
    desk.step("a")
    assert desk.decide() == []
    assert desk.reserved("a") == 49 + int(0.7 * 61)


def test_where_there_is_no_room_for_a_share_the_margin_must_do():
    """Beside another row 82 tokens may be reserved, of 250 bytes for two rows and a spare; 91 are wished."""
    desk = started("a", budget=250)
    desk.arrive("h")
    assert desk.starts() == ["h"]
    desk.steps(39, "a")
    assert desk.decide() == []
    assert desk.reserved("a") == 49 + 32


def test_a_row_that_can_not_grow_parks_the_newest_and_takes_less_for_granted():
    """Two rows of 80 tokens and a spare take 243 bytes: no token more fits."""
    desk = started("a", "b", budget=245)
    desk.lane("low").ratio = 0.5
    desk.steps(38, "a", "b")
    assert desk.decide(at=1.0) == []
    desk.step("a", "b")
    assert desk.decide() == ["park b"]
    assert desk.lane("low").ratio == 0.7
    assert desk.reserved("a") == 49 + int(0.7 * 61)
    assert desk.core.running == 1
    desk.steps(31, "a", "b")
    assert desk.decide() == []
    desk.parked("b")
    assert desk.decide() == []
    assert desk.reserved("a") == 110


def test_a_ripe_row_is_parked_before_a_newer_one():
    desk = started("a", budget=1000)
    desk.arrive("b", lane="low", prompt_tokens=10, max_tokens=100)
    assert desk.starts(at=10.0) == ["b"]
    desk.state.ledger.budget_bytes = 245
    desk.steps(39, "a")
    assert desk.decide(at=11.0) == ["park a"]


def test_the_lowest_lanes_row_is_parked_first():
    lanes = (HIGH, lane("middle", parkable=True), PARKABLE)
    desk = Desk(*lanes)
    desk.worker(245, slots=9)
    desk.arrive("l", lane="low", prompt_tokens=10, max_tokens=100)
    assert desk.starts() == ["l"]
    desk.arrive("m", lane="middle", prompt_tokens=10, max_tokens=100)
    assert desk.starts(at=1.0) == ["m"]
    desk.steps(39, "m")
    assert desk.decide(at=9.0) == ["park l"]


def test_as_many_rows_are_parked_at_once_as_the_growth_takes():
    """The batch has places for four rows or eight: of five, one gives up its place; of six, two must."""
    desk = started("a", "b", "c", "d", "e", "f", budget=9 * 81, kv_pad_rows=4)
    desk.steps(39, "a")
    assert desk.decide(at=9.0) == ["park f", "park e"]
    assert desk.reserved("a") == 49 + int(0.7 * 61)


def test_a_row_grows_as_soon_as_others_are_parked_for_it():
    """One row less leaves room for 107 tokens: more than the 91 of a whole share."""
    desk = started("a", "b", "c", budget=4 * 81)
    desk.steps(39, "a")
    assert desk.decide(at=9.0) == ["park c"]
    assert desk.reserved("a") == 49 + int(0.7 * 61)
    assert desk.core.running == 2


def test_a_row_that_outgrows_the_room_of_one_park_takes_another():
    desk = started("a", "b", "c", budget=4 * 81)
    desk.steps(39, "a")
    assert desk.decide(at=9.0) == ["park c"]
    desk.steps(27, "a")
    assert desk.decide() == ["park b"]
    assert desk.reserved("a") == 76 + 32


def test_nobody_starts_into_what_is_freed_for_a_row_that_grows():
    """A batch has places for two rows or four: a third costs the room that a park frees."""
    desk = started("a", "b", "c", budget=5 * 81 + 40, kv_pad_rows=2)
    desk.steps(47, "a")
    desk.arrive("small", lane="low")
    assert desk.decide(at=9.0) == ["park c"]
    assert desk.reserved("a") == 57 + int(0.7 * 53)
    desk.parked("c")
    assert desk.decide() == []
    desk.end("b", completed=False)
    assert desk.starts() == ["c"]


def test_one_park_lets_all_grow_that_have_room_then():
    desk = started("a", "b", "c", budget=4 * 84)
    desk.steps(42, "a", "b")
    assert desk.decide(at=9.0) == ["park c"]
    assert min(desk.reserved("a"), desk.reserved("b")) >= 52 + 32
    assert desk.decide() == []


def test_a_row_that_is_being_parked_does_not_grow():
    desk = started("a", "b", budget=245)
    desk.steps(39, "a")
    assert desk.decide(at=9.0) == ["park b"]
    held_bytes = desk.core.reserved_bytes
    desk.steps(60, "b")
    assert desk.decide() == []
    assert desk.core.reserved_bytes == held_bytes


def test_one_that_is_stuck_does_not_keep_smaller_ones_from_growing():
    """Here it stays stuck, because none of the rows may be parked any more."""
    desk = started("a", budget=1000)
    desk.arrive("b", lane="low", prompt_tokens=10, max_tokens=50)
    desk.starts()
    assert desk.reserved("b") == 45
    desk.core.reconfigured((HIGH, LOW), desk.shared)
    desk.core.squeezed(3 * 81)
    desk.steps(39, "a", "b")
    assert desk.decide(at=9.0) == []
    assert desk.reserved("a") == 80
    assert desk.reserved("b") == 60


def test_without_a_worker_nobody_is_parked_for_growth():
    desk = started("a", "b", budget=245)
    desk.steps(39, "a", "b")
    desk.core.worker_went(9.0)
    assert desk.decide(at=9.0) == []


def test_a_row_that_ran_before_reserves_what_it_has_and_a_share_of_the_rest():
    desk = started("a")
    desk.steps(60, "a")
    desk.core.interrupted(["a"], 0.0)
    desk.starts()
    assert desk.reserved("a") == 70 + 32
