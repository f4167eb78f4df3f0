"""The memory guard: looks in, orders out, in which order it takes measures, and that it lets go of them."""

from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.limits import MIB
from shared.readings import MemoryReading
from worker.memory_guard import (
    CLEAR_INTERVAL_S,
    FLOOR_SHARE,
    GROWTH_SHARE,
    Bounds,
    MemoryGuard,
    Orders,
    Seen,
)

GIB: Final = 1024 * MIB
FULL: Final = 10 * GIB
READY: Final = 6 * GIB
# A Mac with 64 GiB of which Metal recommends 48 for the GPU; half of that is the worker's.
MAC: Final = Bounds(24 * GIB, FULL, reserve_bytes=3 * GIB, arrays_max=499_000)
CARD: Final = Bounds(19 * GIB, FULL, shares_memory=False)
PLENTY: Final = 40 * GIB


@dataclass
class Bench:
    """A guard and the worker it watches; what isn't said stays as it was."""

    bounds: Bounds = MAC
    held: int = READY
    spare: int = 0
    kv: int = 0
    kept: int = 0
    available: int | None = PLENTY
    arrays: int = 300
    idle: bool = False
    now: float = 100.0
    guard: MemoryGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = MemoryGuard(self.bounds, self.seen())

    def seen(self) -> Seen:
        reading = MemoryReading(self.held, self.spare, 0, self.held + self.spare)
        return Seen(self.now, reading, self.kv, self.idle, self.available, self.arrays, self.kept)

    def look(self, after_s: float = 0.05, **changes: int | bool | None) -> Orders:
        for name, value in changes.items():
            setattr(self, name, value)
        self.now += after_s
        return self.guard.look(self.seen())


@pytest.fixture
def bench() -> Bench:
    return Bench()


# --- the cap ----------------------------------------------------------------------------------------------


def test_the_cap_is_the_limit_where_the_budget_fits_in_it(bench: Bench) -> None:
    assert bench.guard.cap_bytes == 24 * GIB
    assert bench.guard.warning == ""


def test_who_is_over_the_limit_from_the_start_gets_a_cap_that_leaves_its_budget() -> None:
    bench = Bench(held=30 * GIB)
    assert bench.guard.cap_bytes == 40 * GIB
    assert bench.guard.warning == (
        "30720 MiB are held before anything runs, more than the 24576 MiB that the worker may take"
    )
    for kv in (0, FULL // 2, FULL, 0):
        orders = bench.look(held=30 * GIB + kv, kv=kv, idle=kv == 0)
        assert orders == Orders(False, False, 1.0, FULL, wants_recycle=False)


def test_of_memory_that_is_shared_the_larger_figure_counts() -> None:
    guard = Bench().guard
    by_footprint = Seen(101.0, MemoryReading(1, 0, 0, 25 * GIB), 0, is_idle=False)
    guard.look(by_footprint)
    assert guard.is_tight


def test_of_a_card_only_its_own_memory_counts() -> None:
    guard = Bench(bounds=CARD).guard
    guard.look(Seen(101.0, MemoryReading(18 * GIB, 0, 0, 200 * GIB), 0, is_idle=False))
    assert not guard.is_tight
    guard.look(Seen(101.1, MemoryReading(20 * GIB, 0, 0, 1 * GIB), 0, is_idle=False))
    assert guard.is_tight


# --- the order of measures --------------------------------------------------------------------------------


def test_measures_come_one_a_look_spare_buffers_then_smaller_pieces_then_a_smaller_budget(
    bench: Bench,
) -> None:
    over = {"held": 25 * GIB, "kv": 8 * GIB, "spare": GIB}
    assert bench.look(**over) == Orders(True, False, 1.0, FULL, wants_recycle=False, keeps_prefixes=False)
    assert bench.look(spare=0) == Orders(False, False, 0.5, FULL, wants_recycle=False, keeps_prefixes=False)
    assert bench.look() == Orders(False, False, 0.5, 7 * GIB, wants_recycle=False, keeps_prefixes=False)


def test_spare_buffers_alone_cost_no_more_than_themselves(bench: Bench) -> None:
    for _ in range(5):
        orders = bench.look(held=23 * GIB, spare=2 * GIB, kv=FULL, after_s=CLEAR_INTERVAL_S)
        assert orders == Orders(True, False, 1.0, FULL, wants_recycle=False)


def test_buffers_are_let_go_of_once_a_second_at_most(bench: Bench) -> None:
    cleared = [bench.look(after_s=0.125, held=23 * GIB, spare=2 * GIB).clear_cache for _ in range(16)]
    assert cleared == ([True] + [False] * 7) * 2


def test_the_budget_does_not_fall_further_as_caches_shrink_to_it(bench: Bench) -> None:
    for kv in (8, 8, 8):
        bench.look(held=(16 + kv) * GIB + GIB, kv=kv * GIB)
    for kv in (8, 7.75, 7.5, 7.25, 7):
        assert bench.look(held=int((16 + kv) * GIB) + GIB, kv=int(kv * GIB)).budget_bytes == 7 * GIB


def test_one_look_that_is_tight_lowers_no_budget(bench: Bench) -> None:
    assert bench.look(held=30 * GIB, kv=FULL).budget_bytes == FULL
    assert bench.look(held=20 * GIB).budget_bytes == FULL
    assert bench.look(held=30 * GIB).quantum_share == 1.0


def test_measures_end_only_when_there_is_some_room_again(bench: Bench) -> None:
    for _ in range(3):
        bench.look(held=25 * GIB, kv=8 * GIB)
    assert bench.look(held=24 * GIB - MIB, kv=7 * GIB).quantum_share == 0.5
    assert bench.look(held=23 * GIB, kv=6 * GIB).quantum_share == 1.0


def test_the_budget_grows_back_slowly_and_to_the_full(bench: Bench) -> None:
    for _ in range(3):
        bench.look(held=25 * GIB, kv=8 * GIB)
    assert bench.look(held=6 * GIB, kv=0, after_s=0.0).budget_bytes == 7 * GIB
    grown = bench.look(after_s=1.0).budget_bytes
    assert grown == 7 * GIB + int(GROWTH_SHARE * FULL)
    assert bench.look(after_s=4.5).budget_bytes < FULL
    assert bench.look(after_s=1.0).budget_bytes == FULL
    assert bench.look(after_s=100.0).budget_bytes == FULL


def test_a_budget_does_not_grow_into_what_a_leak_has_taken(bench: Bench) -> None:
    """Otherwise rows would be let in and parked again every few seconds."""
    for _ in range(3):
        bench.look(held=25 * GIB, kv=4 * GIB)
    assert bench.look(held=21 * GIB, kv=0, after_s=100.0).budget_bytes == 3 * GIB


# --- other programs ---------------------------------------------------------------------------------------


def test_when_other_programs_leave_too_little_the_budget_falls_by_what_is_missing(bench: Bench) -> None:
    budgets = [
        bench.look(held=14 * GIB, kv=8 * GIB, available=GIB, after_s=1.0).budget_bytes for _ in range(3)
    ]
    assert budgets == [FULL, FULL, 6 * GIB]


def test_a_figure_counts_once_however_often_one_looks_until_the_next(bench: Bench) -> None:
    bench.look(held=14 * GIB, kv=8 * GIB, available=GIB)
    for _ in range(9):
        orders = bench.look(available=None)
        assert (orders.budget_bytes, orders.quantum_share) == (FULL, 1.0)


def test_a_figure_that_is_not_fresh_lowers_nothing(bench: Bench) -> None:
    for _ in range(3):
        bench.look(held=14 * GIB, kv=8 * GIB, available=GIB)
    for kv in (7, 6, 5):
        orders = bench.look(held=(6 + kv) * GIB, kv=kv * GIB, available=None)
        assert (orders.budget_bytes, orders.quantum_share) == (6 * GIB, 0.5)


def test_other_programs_leave_somebody_to_be_served(bench: Bench) -> None:
    for _ in range(9):
        orders = bench.look(available=0, idle=True, after_s=1.0)
    assert orders.budget_bytes == int(FLOOR_SHARE * FULL)
    assert not orders.wants_recycle, "what others hold doesn't come back by replacing us"


def test_shortage_ends_only_when_some_more_than_the_least_is_available(bench: Bench) -> None:
    for _ in range(3):
        bench.look(available=2 * GIB)
    assert bench.look(available=3 * GIB + MIB).quantum_share == 0.5
    assert bench.look(available=4 * GIB).quantum_share == 1.0


def test_where_the_reserve_is_not_watched_nothing_is_short() -> None:
    bench = Bench(bounds=CARD)
    for _ in range(5):
        assert bench.look(available=0) == Orders(False, False, 1.0, FULL, wants_recycle=False)


# --- being replaced ---------------------------------------------------------------------------------------


def test_what_is_idle_over_its_cap_and_cannot_give_back_asks_to_be_replaced(bench: Bench) -> None:
    looks = [bench.look(held=25 * GIB, idle=True) for _ in range(5)]
    assert [orders.collect for orders in looks] == [False, False, True, False, False]
    assert [orders.clear_cache for orders in looks] == [False, False, True, False, False]
    assert [orders.wants_recycle for orders in looks] == [False, False, False, True, True]
    assert looks[-1].budget_bytes == 0


def test_what_is_idle_just_under_its_cap_is_no_wedge(bench: Bench) -> None:
    """There the budget doesn't grow back, and it was nothing at the last."""
    for _ in range(3):
        bench.look(held=24 * GIB + GIB // 4)
    assert bench.look(held=24 * GIB - GIB // 4, idle=True).budget_bytes == 0
    assert bench.look().wants_recycle


def test_what_has_grown_until_it_serves_little_is_replaced_when_idle(bench: Bench) -> None:
    for held, replaced in ((24 * GIB - FULL // 4, False), (24 * GIB - FULL // 4 + MIB, True)):
        assert not bench.look(held=held, idle=False).wants_recycle
        orders = [bench.look(idle=True), bench.look()]
        assert [order.collect for order in orders] == [replaced, False]
        assert orders[-1].wants_recycle is replaced


def test_what_can_be_collected_needs_no_replacing(bench: Bench) -> None:
    for _ in range(3):
        orders = bench.look(held=25 * GIB, idle=True)
    assert orders.collect
    orders = bench.look(held=READY)
    assert not orders.wants_recycle
    assert bench.look(after_s=20.0).budget_bytes == FULL


def test_while_something_runs_nobody_asks_to_be_replaced(bench: Bench) -> None:
    looks = [bench.look(held=25 * GIB, kv=GIB) for _ in range(9)]
    assert not any(orders.wants_recycle or orders.collect for orders in looks)
    assert looks[-1].budget_bytes == 0, "so that it becomes idle"


# --- how many arrays --------------------------------------------------------------------------------------


def test_over_half_of_the_arrays_there_may_be_spare_ones_are_let_go_of(bench: Bench) -> None:
    assert not bench.look(arrays=249_000, spare=MIB).clear_cache
    assert bench.look(arrays=250_000).clear_cache


def test_near_the_most_arrays_a_worker_asks_to_be_replaced_once_it_is_idle(bench: Bench) -> None:
    assert not bench.look(arrays=400_000).wants_recycle
    assert not bench.look(arrays=300).wants_recycle
    assert bench.look(idle=True).wants_recycle
    assert not bench.look(idle=False).wants_recycle


def test_a_model_of_very_many_arrays_is_not_replaced_for_ever() -> None:
    bench = Bench(arrays=450_000, idle=True)
    assert not any(bench.look().wants_recycle for _ in range(5))


def test_where_arrays_are_not_limited_any_number_will_do() -> None:
    bench = Bench(bounds=CARD)
    assert bench.look(arrays=10_000_000, spare=MIB, idle=True) == Orders(
        False, False, 1.0, FULL, wants_recycle=False
    )


# --- laws -------------------------------------------------------------------------------------------------

sizes = st.integers(0, 1 << 36)
looks = st.builds(
    dict,
    held=sizes,
    spare=sizes,
    kv=sizes,
    kept=st.just(0) | sizes,
    available=st.none() | sizes,
    idle=st.booleans(),
    after_s=st.floats(0, 60),
)
bounds = st.builds(
    Bounds,
    limit_bytes=sizes,
    budget_bytes=st.integers(1, 1 << 36),
    reserve_bytes=st.just(0) | sizes,
    shares_memory=st.booleans(),
)


@settings(deadline=None)
@given(bounds=bounds, ready=sizes, seen=st.lists(looks, max_size=30))
def test_a_budget_stays_within_none_and_all_and_comes_back_in_calm(
    bounds: Bounds, ready: int, seen: list[dict[str, int]]
) -> None:
    bench = Bench(bounds=bounds, held=ready)
    for changes in seen:
        orders = bench.look(**changes)  # type: ignore[arg-type]  # numbers and booleans
        assert 0 <= orders.budget_bytes <= bounds.budget_bytes
        assert orders.quantum_share in (0.5, 1.0)
    calm = {"held": ready, "kv": 0, "kept": 0, "spare": 0, "available": 1 << 40, "idle": True}
    for _ in range(25):
        orders = bench.look(after_s=1.0, **calm)
    assert orders == Orders(False, False, 1.0, bounds.budget_bytes, wants_recycle=False)


@settings(deadline=None)
@given(bounds=bounds, ready=sizes, seen=st.lists(looks, max_size=30))
def test_no_measure_is_taken_before_the_milder_ones(
    bounds: Bounds, ready: int, seen: list[dict[str, int]]
) -> None:
    bench = Bench(bounds=bounds, held=ready)
    before = bench.look(held=ready)
    for changes in seen:
        orders = bench.look(**changes)  # type: ignore[arg-type]  # numbers and booleans
        if orders.quantum_share < 1.0:
            assert not orders.keeps_prefixes
            assert not before.keeps_prefixes
        if orders.budget_bytes < before.budget_bytes:
            assert orders.quantum_share < 1.0
            assert before.quantum_share < 1.0
        if orders.wants_recycle:
            assert before.collect or before.wants_recycle
            assert bench.idle
        before = orders


@settings(deadline=None)
@given(bounds=bounds, ready=sizes, leak=st.integers(1, 1 << 36), seen=st.lists(looks, max_size=10))
def test_no_leak_over_the_cap_is_ever_a_wedge(
    bounds: Bounds, ready: int, leak: int, seen: list[dict[str, int]]
) -> None:
    """Whatever was before: idle over its cap, a worker asks to be replaced within five looks."""
    bench = Bench(bounds=bounds, held=ready)
    for changes in seen:
        bench.look(**changes)  # type: ignore[arg-type]  # numbers and booleans
    idle = {"held": bench.guard.cap_bytes + leak, "kv": 0, "spare": 0, "available": 1 << 40, "idle": True}
    orders = [bench.look(after_s=0.25, **idle) for _ in range(9)]
    assert all(each.wants_recycle for each in orders[4 if bench.kept else 3 :])
