"""What rows that decode take: no more than is said, and copied layer by layer, seldom, or not at all."""

import itertools
import random
from collections.abc import Callable
from typing import Final

import mlx.core as mx
import pytest

from tests.worker.rows_beside_lists import LAYERS, STATES, Both, layout_of
from worker.engine.kinds import KeysValues


def test_a_lone_rows_own_arrays_are_taken_over_as_they_are() -> None:
    both = Both(layout_of(LAYERS["plain"]))
    row, prefilled = both.alone(6, 2)
    assert prefilled.caches[0].keys.shape[2] == both.layout.costs.room(6)
    own = [array for cache in prefilled.caches for array in (cache.keys, cache.values)]
    both.change((), [(row, prefilled)])
    [group] = both.batch._groups
    assert all(ours is theirs for ours, theirs in zip(itertools.chain(*group.planes), own, strict=True))
    assert [cache.keys for cache in prefilled.caches] == [None, None]
    both.step()


def test_arrays_that_others_still_need_are_copied() -> None:
    both = Both(layout_of(LAYERS["plain"]))
    rows, prefilled = both.together([6, 5])
    prefilled[0].is_last_use = False
    both.change((), [(rows[0], prefilled[0])])
    both.step()
    both.change((), [(rows[1], prefilled[1])])
    both.step()


def test_rows_without_room_kept_for_later_take_what_they_would_alone() -> None:
    both = Both(layout_of(LAYERS["windows"]), bytes_max=0)
    costs = both.layout.costs
    for length in (3, 4, 30, 31, 9):
        both.join(length)
    for _ in range(20):
        exact = sum(costs.place_bytes(costs.room(row.length)) for row in both.rows.values())
        both.batch.begin_step(0)
        assert both.batch.nbytes == exact
        both.step()


def test_what_is_held_elsewhere_counts_against_the_limit() -> None:
    both = Both(layout_of(LAYERS["plain"]))
    costs = both.layout.costs
    for length in (6, 2, 7, 1):
        both.join(length)
    assert len(both.batch.shapes) == 1
    exact = sum(costs.place_bytes(costs.room(row.length)) for row in both.rows.values())
    both.batch.bytes_max = exact + 1000
    both.batch.begin_step(1000)
    assert both.batch.nbytes == exact


def test_states_count_against_the_limit() -> None:
    """As a group these rows waste an eighth: less than their states take."""
    both = Both(layout_of(LAYERS["states"]))
    costs = both.layout.costs
    for length in (6, 5, 7, 1):
        both.join(length)
    assert len(both.batch.shapes) == 1
    states = 4 * 2 * STATES.nbytes
    exact = sum(costs.place_bytes(costs.room(row.length)) for row in both.rows.values())
    both.batch.bytes_max = exact + states
    both.batch.begin_step(0)
    assert both.batch.nbytes == exact + states


def test_an_empty_batch_gives_everything_back_and_can_be_filled_again() -> None:
    both = Both(layout_of(LAYERS["several in a layer"]))
    both.join(5)
    both.step()
    with pytest.raises(AssertionError, match="rows are left"):
        both.batch.release()
    both.change(list(both.rows), [])
    both.batch.release()
    assert (both.batch.nbytes, both.batch.arrays, both.batch.rows, both.batch.shapes) == (0, 0, (), [])
    both.join(7)
    both.step()


BIG: Final = KeysValues(4, 64, 64, mx.float32)
BIG_LAYERS: Final = 8
BIG_TOKENS: Final = 1000


def peak_of(deed: Callable[[], None]) -> int:
    """Return the bytes that something takes beyond what was there before, or after if that is more."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    deed()
    return mx.get_peak_memory() - max(before, mx.get_active_memory())


def big(rows: int) -> Both:
    both = Both(layout_of(((BIG,),) * BIG_LAYERS, pad=32))
    both.change((), [both.alone(BIG_TOKENS, BIG_TOKENS) for _ in range(rows)])
    for row in both.rows.values():
        row.tokens.clear()
    return both


LAYER_BYTES: Final = 1024 * BIG.bytes_per_token


def test_rows_that_join_are_copied_layer_by_layer() -> None:
    """Their own caches and the batch's exist together for one layer only, and the batch's old and new one."""
    both = big(2)
    joining = [both.alone(BIG_TOKENS, BIG_TOKENS) for _ in range(4)]
    for row, prefilled in joining:
        row.tokens.clear()
        mx.eval([cache.state for cache in prefilled.caches])
    assert peak_of(lambda: both.change((), joining)) <= 2.2 * 6 * LAYER_BYTES
    assert both.batch.nbytes == 6 * BIG_LAYERS * LAYER_BYTES


def test_rows_that_outgrow_their_arrays_are_copied_layer_by_layer() -> None:
    both = big(4)
    both.batch._lengths = dict.fromkeys(both.batch._lengths, 1024)
    assert peak_of(lambda: both.batch.begin_step(0)) <= 2.2 * 4 * LAYER_BYTES


def test_a_row_that_comes_into_a_free_place_copies_nobody_else() -> None:
    both = big(6)
    both.change([next(iter(both.rows))], [])
    row, prefilled = both.alone(BIG_TOKENS, BIG_TOKENS)
    mx.eval([cache.state for cache in prefilled.caches])
    shapes = both.batch.shapes
    assert peak_of(lambda: both.change((), [(row, prefilled)])) <= 2.2 * LAYER_BYTES
    assert [(shape.places, shape.room) for shape in both.batch.shapes] == [
        (shape.places, shape.room) for shape in shapes
    ]


def test_rows_that_leave_give_their_memory_back() -> None:
    both = big(4)
    numbers = random.Random(1)
    while len(both.rows) > 1:
        both.change([numbers.choice(list(both.rows))], [])
    mx.clear_cache()
    assert both.batch.nbytes == BIG_LAYERS * LAYER_BYTES


def test_a_step_writes_in_place() -> None:
    both = big(4)

    def step() -> None:
        both.batch.begin_step(0)
        for cache in both.batch.layers:
            cache.update_and_fetch(mx.zeros((4, 4, 1, 64)), mx.zeros((4, 4, 1, 64)))
        mx.eval([planes for group in both.batch._groups for planes in group.planes])

    assert peak_of(step) < LAYER_BYTES / 4
