"""What is kept of prompts goes first when memory is short, and comes back once there is room for it."""

from typing import Final

import pytest

from shared.readings import PrefixReading
from tests.worker.test_memory_guard import CARD, FULL, GIB, READY, Bench
from tests.worker.turned_loop import Turned, submit
from worker.memory_guard import CLEAR_INTERVAL_S, GROWTH_SHARE, Bounds, Orders

LIMIT: Final = 24 * GIB


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_is_kept_of_prompts_goes_before_everything_else(bench: Bench) -> None:
    over = {"held": LIMIT + 3 * GIB, "kv": 6 * GIB, "kept": 2 * GIB, "spare": GIB}
    looks = [bench.look(**over), bench.look(kept=0, held=LIMIT + GIB, spare=2 * GIB)]
    assert looks[0] == Orders(False, False, 1.0, FULL, wants_recycle=False, keeps_prefixes=False)
    assert looks[1] == Orders(True, False, 1.0, FULL, wants_recycle=False, keeps_prefixes=False)
    assert bench.look(spare=0).quantum_share == 0.5
    assert bench.look().budget_bytes == 5 * GIB


def test_where_giving_that_up_was_enough_nothing_else_is_touched(bench: Bench) -> None:
    bench.look(held=LIMIT + GIB, kv=6 * GIB, kept=2 * GIB)
    for _ in range(5):
        orders = bench.look(held=LIMIT - GIB // 4, kept=0)
        assert orders == Orders(False, False, 1.0, FULL, wants_recycle=False, keeps_prefixes=False)


def test_what_was_given_up_leaves_the_spare_buffers_in_the_next_look_however_full_it_still_is(
    bench: Bench,
) -> None:
    bench.look(held=LIMIT + GIB, kv=6 * GIB, kept=2 * GIB, spare=GIB)
    assert bench.look(held=LIMIT - GIB // 4, kept=0, spare=3 * GIB).clear_cache


def test_what_cannot_be_given_up_at_once_does_not_stop_the_other_measures(bench: Bench) -> None:
    shares = [
        bench.look(held=LIMIT + GIB, kv=6 * GIB, kept=2 * GIB, after_s=CLEAR_INTERVAL_S).quantum_share
        for _ in range(4)
    ]
    assert shares == [1.0, 1.0, 0.5, 0.5]


def test_spare_buffers_alone_give_up_nothing_of_prompts(bench: Bench) -> None:
    for _ in range(5):
        orders = bench.look(held=LIMIT - GIB, spare=2 * GIB, kept=GIB, after_s=CLEAR_INTERVAL_S)
        assert (orders.clear_cache, orders.keeps_prefixes) == (True, True)


def test_beginnings_are_kept_again_once_all_that_was_given_up_would_fit(bench: Bench) -> None:
    bench.look(held=LIMIT + GIB, kv=6 * GIB, kept=4 * GIB)
    assert not bench.look(held=LIMIT - 3 * GIB, kept=0).keeps_prefixes, "it would be tight again at once"
    assert bench.look(held=LIMIT - 5 * GIB, kv=4 * GIB).keeps_prefixes


def test_what_has_to_fit_shrinks_with_time_as_the_budget_grows(bench: Bench) -> None:
    bench.look(held=LIMIT + GIB, kv=6 * GIB, kept=4 * GIB)
    missing = 2 * GIB
    in_time_s = missing / (GROWTH_SHARE * FULL)
    calm = {"held": LIMIT - 2 * GIB - bench.guard.cap_bytes // 50, "kept": 0}
    assert not bench.look(after_s=0.9 * in_time_s, **calm).keeps_prefixes
    assert bench.look(after_s=0.2 * in_time_s, **calm).keeps_prefixes


def test_a_worker_that_is_full_again_at_once_gives_up_no_more_than_every_few_seconds(bench: Bench) -> None:
    """Kept again, it fills at once, and as long as others hold what they hold it is over its cap again."""
    others = LIMIT - 2 * GIB
    given_up, kept = 0, 4 * GIB
    for _ in range(600):
        orders = bench.look(held=others + kept, kv=6 * GIB, kept=kept, after_s=0.1)
        given_up += bool(kept) and not orders.keeps_prefixes
        kept = 4 * GIB if orders.keeps_prefixes else 0
    assert 1 < given_up <= 60 / 4


def test_other_programs_need_no_less_room_than_was_given_up(bench: Bench) -> None:
    short = {"held": READY + 4 * GIB, "kept": 4 * GIB, "available": GIB}
    assert not bench.look(**short).keeps_prefixes
    calm = {"held": READY, "kept": 0}
    assert not bench.look(available=6 * GIB, **calm).keeps_prefixes
    assert not bench.look(available=None).keeps_prefixes, "nothing is known"
    assert bench.look(available=8 * GIB).keeps_prefixes


def test_what_is_kept_is_no_leak(bench: Bench) -> None:
    """An idle worker whose cache has all the room there is needn't be replaced, nor is its budget smaller."""
    held = {"held": LIMIT - GIB, "kept": FULL - 3 * GIB, "kv": 0, "idle": True}
    for _ in range(5):
        orders = bench.look(after_s=1.0, **held)
        assert orders == Orders(False, False, 1.0, FULL, wants_recycle=False, keeps_prefixes=True)


def test_the_budget_grows_into_what_is_kept_which_gives_way_to_rows(bench: Bench) -> None:
    for _ in range(3):
        bench.look(held=LIMIT + GIB, kv=8 * GIB)
    orders = bench.look(held=LIMIT - GIB, kv=2 * GIB, kept=7 * GIB, after_s=100.0)
    assert orders.budget_bytes == FULL


def test_where_nothing_is_kept_a_shortage_takes_no_look_more() -> None:
    bench = Bench(bounds=CARD)
    over = {"held": 20 * GIB, "kv": 8 * GIB}
    assert [bench.look(**over).quantum_share for _ in range(2)] == [1.0, 0.5]
    assert bench.look(held=READY).keeps_prefixes


# --- its hands --------------------------------------------------------------------------------------------


def test_the_engine_gives_up_what_it_keeps_and_keeps_again() -> None:
    turned = Turned(bounds=Bounds(LIMIT, FULL))
    turned.ping()
    turned.turn(submit("a", max_tokens=90))
    assert turned.engine.keeps == []
    turned.engine.prefixes = PrefixReading(kept_bytes=GIB)
    reading = turned.memory.reading
    turned.memory.reading = type(reading)(LIMIT + 1, 7, 0, 0)
    turned.turn()
    assert (turned.engine.keeps, turned.memory.given_back) == ([False], [])
    turned.turn()
    assert (turned.engine.keeps, turned.memory.given_back) == ([False], [False])
    turned.memory.reading = reading
    turned.turn(times=2)
    assert turned.engine.keeps == [False, True]
