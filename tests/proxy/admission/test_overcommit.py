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


def beside_small(*names, smaller, tokens):
    """Start such answers and smaller ones, of so many tokens each; together they take all the bytes."""
    desk = started(*names)
    desk.arrive(*smaller, lane="low", prompt_tokens=2, max_tokens=tokens - 2)
    assert desk.starts() == list(smaller)
    desk.core.squeezed(82 * len(names) + (tokens + 1) * len(smaller))
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
    """Beside the 10 bytes of another row there are 90 of 100; a whole share takes 92."""
    desk = started("a")
    desk.arrive("h")
    assert desk.starts() == ["h"]
    desk.core.squeezed(100)
    desk.steps(39, "a")
    assert desk.decide() == []
    assert desk.reserved("a") == 49 + 32


def test_a_row_that_can_not_grow_parks_the_newest_and_takes_less_for_granted():
    """Two rows of 80 or 81 tokens take 82 bytes each, and one of 82 takes 84."""
    desk = started("a", "b", budget=165)
    desk.lane("low").ratio = 0.5
    desk.steps(39, "a", "b")
    assert desk.decide(at=1.0) == []
    desk.step("a", "b")
    assert desk.decide() == ["park b"]
    assert desk.lane("low").ratio == 0.7
    assert desk.reserved("a") == 50 + int(0.7 * 60)
    assert desk.core.running == 1
    desk.steps(30, "a", "b")
    assert desk.decide() == []
    desk.parked("b")
    assert desk.decide() == []
    assert desk.reserved("a") == 110


def test_a_ripe_row_is_parked_before_a_newer_one():
    desk = started("a", budget=1000)
    desk.arrive("b", lane="low", prompt_tokens=10, max_tokens=100)
    assert desk.starts(at=10.0) == ["b"]
    desk.state.ledger.budget_bytes = 165
    desk.steps(40, "a")
    assert desk.decide(at=11.0) == ["park a"]


def test_the_lowest_lanes_row_is_parked_first():
    lanes = (HIGH, lane("middle", parkable=True), PARKABLE)
    desk = Desk(*lanes)
    desk.worker(165, slots=9)
    desk.arrive("l", lane="low", prompt_tokens=10, max_tokens=100)
    assert desk.starts() == ["l"]
    desk.arrive("m", lane="middle", prompt_tokens=10, max_tokens=100)
    assert desk.starts(at=1.0) == ["m"]
    desk.steps(40, "m")
    assert desk.decide(at=9.0) == ["park l"]


def test_as_many_rows_are_parked_at_once_as_the_growth_takes():
    """It needs 8 bytes more for what it may emit until it is asked again; the others have 5 each."""
    desk = beside_small("a", smaller=("b", "c", "d"), tokens=4)
    desk.steps(47, "a")
    assert desk.decide(at=9.0) == ["park d", "park c"]
    assert desk.reserved("a") == 57 + 32


def test_a_row_grows_as_soon_as_others_are_parked_for_it():
    """Three rows take all the bytes; one less leaves room for a whole share."""
    desk = started("a", "b", "c", budget=3 * 82)
    desk.steps(40, "a")
    assert desk.decide(at=9.0) == ["park c"]
    assert desk.reserved("a") == 50 + int(0.7 * 60)
    assert desk.core.running == 2


def test_a_row_that_outgrows_the_room_of_one_park_takes_another():
    """The first frees 5 bytes: enough for 85 tokens."""
    desk = beside_small("a", "b", smaller=("c",), tokens=4)
    desk.steps(40, "a")
    assert desk.decide(at=9.0) == ["park c"]
    desk.steps(3, "a")
    assert desk.decide() == []
    desk.step("a")
    assert desk.decide() == ["park b"]
    assert desk.reserved("a") == 54 + int(0.7 * 56)


def test_nobody_starts_into_what_is_freed_for_a_row_that_grows():
    """A park frees 21 bytes, of which the row takes 14: a small one would need 10."""
    desk = beside_small("a", "b", smaller=("c",), tokens=20)
    desk.steps(47, "a")
    desk.arrive("small", lane="low")
    assert desk.decide(at=9.0) == ["park c"]
    assert desk.reserved("a") == 57 + int(0.7 * 53)
    desk.parked("c")
    assert desk.decide() == []
    desk.end("b", completed=False)
    assert desk.starts() == ["c", "small"]


def test_one_park_lets_all_grow_that_have_room_then():
    """Each of the two needs 4 bytes, and 3 are free."""
    desk = started("a", "b", "c", budget=3 * 82 + 3)
    desk.steps(42, "a", "b")
    assert desk.decide(at=9.0) == ["park c"]
    assert desk.reserved("a") == desk.reserved("b") == 52 + int(0.7 * 58)
    assert desk.decide() == []


def test_a_row_that_is_being_parked_does_not_grow():
    desk = started("a", "b", budget=165)
    desk.steps(40, "a")
    assert desk.decide(at=9.0) == ["park b"]
    held_bytes = desk.core.reserved_bytes
    desk.steps(60, "b")
    assert desk.decide() == []
    assert desk.core.reserved_bytes == held_bytes


def test_one_that_is_stuck_does_not_keep_smaller_ones_from_growing():
    """Here it stays stuck, because none of the rows may be parked any more: it needs 22 bytes, of 20."""
    desk = started("a", budget=1000)
    desk.arrive("b", lane="low", prompt_tokens=10, max_tokens=50)
    desk.starts()
    assert desk.reserved("b") == 45
    desk.core.reconfigured((HIGH, LOW), desk.shared)
    desk.core.squeezed(82 + 46 + 20)
    desk.steps(60, "a")
    desk.steps(4, "b")
    assert desk.decide(at=9.0) == []
    assert desk.reserved("a") == 80
    assert desk.reserved("b") == 60


def test_without_a_worker_nobody_is_parked_for_growth():
    desk = started("a", "b", budget=165)
    desk.steps(40, "a", "b")
    desk.core.worker_went(9.0)
    assert desk.decide(at=9.0) == []


def test_a_row_that_ran_before_reserves_what_it_has_and_a_share_of_the_rest():
    desk = started("a")
    desk.steps(60, "a")
    desk.core.interrupted(["a"], 0.0)
    desk.starts()
    assert desk.reserved("a") == 70 + 32
