"""The caches of rows that decode: whatever the membership, each row keeps its own tokens and states."""

from typing import Final

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.rows_beside_lists import AMPLE, LAYERS, PAD, PLAIN, SPAN, WINDOW, Both, layout_of
from worker.engine.kinds import KeysValues, Kind
from worker.engine.layers import MaskWish

LENGTHS: Final = (0, 1, 2, SPAN - 1, SPAN, SPAN + 1, 2 * SPAN, 3 * SPAN + 2, 31, 40)
deeds = st.one_of(
    st.tuples(st.just("join"), st.sampled_from(LENGTHS), st.sampled_from((1, 3, SPAN, 1000))),
    st.tuples(st.just("join together"), st.sampled_from(LENGTHS), st.integers(1, 3)),
    st.tuples(st.just("leave"), st.integers(0, 99), st.integers(1, 3)),
    st.tuples(st.just("exchange"), st.integers(0, 99), st.sampled_from(LENGTHS)),
    st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
    st.tuples(st.just("again"), st.integers(1, 3), st.just(0)),
)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    schedule=st.lists(deeds, min_size=4, max_size=12),
    bytes_max=st.sampled_from((0, AMPLE)),
    by_rows=st.sampled_from((False, False, True)),
)
@pytest.mark.parametrize("layers", LAYERS.values(), ids=list(LAYERS))
def test_rows_keep_what_is_theirs_whoever_joins_and_leaves(
    layers: tuple[tuple[Kind, ...], ...], schedule: list[tuple[str, int, int]], bytes_max: int, by_rows: bool
) -> None:
    both = Both(layout_of(layers, by_rows=by_rows), bytes_max)
    for deed, number, detail in schedule:
        carry_out(both, deed, number, detail)
    if both.rows:
        both.step()


def carry_out(both: Both, deed: str, number: int, detail: int) -> None:
    present = list(both.rows)
    turned = present[number % len(present) :] + present[: number % len(present)] if present else []
    match deed:
        case "join" if len(present) < 9:
            both.join(number, detail)
        case "join together" if len(present) < 9:
            lengths = [max(0, number - place) for place in range(detail)]
            both.change((), list(zip(*both.together(lengths), strict=True)))
        case "leave" if present:
            both.change(turned[:detail], [])
        case "exchange" if present:
            both.change(turned[:1], [both.alone(detail, 5)])
        case "again" if present:
            for _ in range(number):
                both.step()
                both.roll_back()
                both.step()
        case _ if present:
            for _ in range(number):
                both.step()


@pytest.mark.parametrize("layers", LAYERS.values(), ids=list(LAYERS))
def test_rows_that_grow_far_keep_what_is_theirs(layers: tuple[tuple[Kind, ...], ...]) -> None:
    """Across several windows, and from where they share a group to where they don't and back."""
    both = Both(layout_of(layers), bytes_max=0)
    for length in (0, 3, SPAN, 30):
        both.join(length, chunk=5)
    for _ in range(3 * SPAN):
        both.step()


def test_a_window_that_a_model_asks_for_hides_what_is_older() -> None:
    both = Both(layout_of(LAYERS["windows"]))
    for length in (2, 9, 15):
        both.join(length)
    both.batch.begin_step(0)
    for kind in (WINDOW, PLAIN):
        for view in both.batch.views:
            mask = view.mask(kind, 3)
            assert mask is not None
            for place, length in enumerate(view.lengths):
                slots = view.visible(kind)
                seen = {position % (kind.span or AMPLE) for position in range(max(0, length - 2), length + 1)}
                assert {slot for slot in range(slots) if mask[place, 0, 0, slot].item()} == seen


def test_a_mask_is_made_only_where_rows_see_different_slots() -> None:
    both = Both(layout_of(LAYERS["windows"]))
    both.change((), [both.alone(9, 100), both.alone(9, 100)])
    both.batch.begin_step(0)
    [view] = both.batch.views
    assert view.mask(PLAIN, None) is None
    assert view.mask(WINDOW, None) is None
    assert view.mask(PLAIN, 5) is not None
    assert view.mask(PLAIN, 5) is view.mask(PLAIN, 5)


def test_what_stands_in_unused_places_changes_nothing() -> None:
    both = Both(layout_of(LAYERS["several in a layer"]), bytes_max=0)
    for length in (0, 3, 3, 20):
        both.join(length)
    both.batch.spoil_unused(1e9)
    for _ in range(PAD + 1):
        both.step()


@pytest.mark.parametrize("window", [None, 3])
def test_attention_gives_each_row_what_plain_attention_gives_it(window: int | None) -> None:
    both = Both(layout_of(((KeysValues(1, 4, 4, mx.float32),),)), bytes_max=0)
    for length in (0, 3, 3, 20):
        both.join(length)
    both.batch.begin_step(0)
    rows = [both.rows[name] for name in both.batch.rows]
    [cache] = both.batch.layers
    both.write_and_compare(0, both.kinds[0], cache, rows)
    queries = mx.array(both.numbers_of(len(rows), 2, 1, 4))
    ours = cache.attend(queries, 0.5, MaskWish(window), None)
    assert len(both.batch.views) > 1
    for place, row in enumerate(rows):
        keys, values = (
            mx.array(np.stack([token[part] for token in row.tokens[0][-(window or 0) :]], axis=1)[None])
            for part in (0, 1)
        )
        theirs = mx.fast.scaled_dot_product_attention(queries[place : place + 1], keys, values, scale=0.5)
        assert mx.allclose(ours[place : place + 1], theirs, atol=1e-5).item()


def test_offsets_are_plain_numbers_where_each_row_is_called_alone() -> None:
    both = Both(layout_of(LAYERS["plain"], by_rows=True))
    both.join(5)
    both.batch.begin_step(0)
    assert both.batch.layers[0].offset == 5
    assert isinstance(both.batch.layers[0].offset, int)
