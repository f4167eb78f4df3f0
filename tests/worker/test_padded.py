"""The padded cache of a decode batch: whatever the membership, each row keeps its own keys and values."""

from dataclasses import dataclass, field
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache

from shared.model_facts import ModelFacts
from worker.cache_kinds import TOKENS_STEP
from worker.padded import ROWS_STEP, LayerShape, PaddedBatch, Prefilled
from worker.solo_row import SoloRow

# Keys and values of different widths, as multi-head latent attention has them.
SHAPES: Final = [LayerShape(2, 3, 5, mx.float32), LayerShape(1, 4, 2, mx.float32)]
BYTES_PER_TOKEN: Final = sum(4 * shape.heads * (shape.key_width + shape.value_width) for shape in SHAPES)
FACTS: Final = ModelFacts(
    "f", "llama", 4096, 300, 1, BYTES_PER_TOKEN, TOKENS_STEP, ROWS_STEP, 0, 0, 0, batches=True, why_not=""
)


@dataclass
class Row:
    """What a row should hold: for each layer a list of keys and a list of values, a token each."""

    keys: list[list[Any]] = field(default_factory=lambda: [[] for _ in SHAPES])
    values: list[list[Any]] = field(default_factory=lambda: [[] for _ in SHAPES])

    @property
    def length(self) -> int:
        return len(self.keys[0])


class Both:
    """A padded batch and plain lists beside it, changed alike; `check` compares them."""

    def __init__(self, bytes_max: int) -> None:
        self.batch = PaddedBatch(SHAPES, bytes_max)
        self.rows: list[Row] = []
        self.numbers = np.random.default_rng(0)

    def numbers_of(self, *shape: int) -> Any:
        return self.numbers.standard_normal(shape).astype(np.float32)

    def join(self, length: int, beside: int) -> None:
        """Prefill a row together with `beside` others, of which it is the last, and let it join."""
        row, caches = Row(), []
        for layer, shape in enumerate(SHAPES):
            cache = KVCache()
            if length:
                keys = self.numbers_of(beside + 1, shape.heads, length + beside, shape.key_width)
                values = self.numbers_of(beside + 1, shape.heads, length + beside, shape.value_width)
                cache.update_and_fetch(mx.array(keys), mx.array(values))
                row.keys[layer] = list(keys[-1, :, :length].swapaxes(0, 1))
                row.values[layer] = list(values[-1, :, :length].swapaxes(0, 1))
            caches.append(cache)
        self.batch.join(Prefilled(caches, beside), length)
        self.rows.append(row)

    def leave(self, place: int) -> None:
        self.batch.leave(place)
        self.rows[place] = self.rows[-1]
        self.rows.pop()

    def step(self) -> None:
        """Decode one token a row, and check what each layer is shown."""
        self.batch.begin_step(elsewhere_bytes=0)
        for layer, (cache, shape) in enumerate(zip(self.batch.layers, SHAPES, strict=True)):
            keys = self.numbers_of(len(self.rows), shape.heads, 1, shape.key_width)
            values = self.numbers_of(len(self.rows), shape.heads, 1, shape.value_width)
            assert cache.offset.tolist() == [row.length for row in self.rows] or layer
            shown = cache.update_and_fetch(mx.array(keys), mx.array(values))
            for row, new_keys, new_values in zip(self.rows, keys, values, strict=True):
                row.keys[layer].append(new_keys[:, 0])
                row.values[layer].append(new_values[:, 0])
            self.compare(layer, shown)
        self.check_mask()
        self.batch.end_step()

    def compare(self, layer: int, shown: tuple[mx.array, mx.array]) -> None:
        keys, values = (np.array(array).swapaxes(1, 2) for array in shown)
        for place, row in enumerate(self.rows):
            length = len(row.keys[layer])
            assert np.array_equal(keys[place, :length], np.stack(row.keys[layer]))
            assert np.array_equal(values[place, :length], np.stack(row.values[layer]))

    def check_mask(self) -> None:
        """A row sees its own tokens, the new one among them, and nothing of the padding."""
        longest = max(row.length for row in self.rows)
        mask = self.batch.layers[0].make_mask(1, return_array=True)
        assert mask.shape == (len(self.rows), 1, 1, longest)
        assert mask[:, 0, 0].sum(axis=-1).tolist() == [row.length for row in self.rows]
        assert bool(mask[:, 0, 0, 0].all().item())

    def roll_back(self) -> None:
        self.batch.roll_back()
        for row in self.rows:
            for tokens in (*row.keys, *row.values):
                tokens.pop()


def joined(lengths: list[int], bytes_max: int = 0) -> Both:
    both = Both(bytes_max)
    for length in lengths:
        both.join(length, beside=0)
    return both


deeds = st.one_of(
    st.tuples(st.just("join"), st.sampled_from((0, 1, 3, 100, 254, 255, 256, 300, 520)), st.integers(0, 2)),
    st.tuples(st.just("leave"), st.integers(0, 99), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("again"), st.just(0), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(schedule=st.lists(deeds, min_size=3, max_size=14), bytes_max=st.sampled_from((0, 1 << 40)))
def test_rows_keep_their_keys_and_values_whoever_joins_and_leaves(
    schedule: list[tuple[str, int, int]], bytes_max: int
) -> None:
    both = Both(bytes_max)
    for deed, number, beside in schedule:
        if deed == "join" and len(both.rows) < 9:
            both.join(number, beside)
        elif deed == "leave" and both.rows:
            both.leave(number % len(both.rows))
        elif deed == "again" and both.rows:
            both.step()
            both.roll_back()
            both.step()
        elif both.rows:
            for _ in range(number if deed == "step" else 1):
                both.step()
    if both.rows:
        both.step()


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 800), min_size=1, max_size=9))
def test_a_batch_takes_no_more_bytes_than_the_facts_say(lengths: list[int]) -> None:
    both = joined(lengths)
    both.step()
    places = -(-len(lengths) // ROWS_STEP) * ROWS_STEP
    tokens = -(-(max(lengths) + 1) // TOKENS_STEP) * TOKENS_STEP
    assert both.batch.nbytes == places * tokens * BYTES_PER_TOKEN
    assert both.batch.nbytes <= FACTS.batch_bytes(lengths)


@pytest.mark.parametrize("prefilling", range(9))
@pytest.mark.parametrize("decoding", range(9))
def test_rows_that_prefill_have_room_beside_the_batch_in_what_the_facts_say(
    decoding: int, prefilling: int
) -> None:
    """They hold caches of their own, however many they are; the batch has places for those that decode."""
    both = joined([300] * decoding)
    if decoding:
        both.batch.begin_step(elsewhere_bytes=0)
    beside = prefilling * 300 * BYTES_PER_TOKEN
    assert both.batch.nbytes + beside <= FACTS.batch_bytes([300] * (decoding + prefilling))


def test_a_batch_grows_by_whole_steps_when_a_row_outgrows_it() -> None:
    both = joined([TOKENS_STEP - 2])
    both.step()
    one_step = both.batch.nbytes
    both.step()
    assert both.batch.nbytes == one_step
    both.step()
    assert both.batch.nbytes == 2 * one_step


def shrink(bytes_max: int, elsewhere_bytes: int = 0) -> tuple[int, int]:
    """Return a batch's bytes before and after one step of rows is no longer needed."""
    both = joined([3] * (ROWS_STEP + 1), bytes_max)
    both.step()
    before = both.batch.nbytes
    both.leave(0)
    both.batch.begin_step(elsewhere_bytes)
    return before, both.batch.nbytes


def test_room_is_kept_for_one_step_more_while_there_is_memory() -> None:
    before, after = shrink(bytes_max=1 << 40)
    assert after == before


def test_room_is_given_back_at_once_where_memory_is_short() -> None:
    before, after = shrink(bytes_max=0)
    assert after == before // 2


def test_what_others_hold_counts_when_room_is_kept() -> None:
    before, after = shrink(bytes_max=1 << 20, elsewhere_bytes=(1 << 20) - 1)
    assert after == before // 2


def test_room_for_many_rows_is_given_back_even_where_there_is_memory() -> None:
    both = joined([3] * (3 * ROWS_STEP), bytes_max=1 << 40)
    both.step()
    for _ in range(3 * ROWS_STEP - 1):
        both.leave(0)
    both.step()
    assert both.batch.nbytes == ROWS_STEP * TOKENS_STEP * BYTES_PER_TOKEN


def test_an_empty_batch_gives_everything_back_and_can_be_filled_again() -> None:
    both = joined([5])
    both.step()
    both.leave(0)
    both.batch.release()
    assert both.batch.nbytes == 0
    both.join(7, beside=0)
    both.step()


def test_a_batch_with_rows_is_not_released() -> None:
    both = joined([5])
    with pytest.raises(AssertionError, match="rows are left"):
        both.batch.release()


def test_a_window_is_refused() -> None:
    both = joined([5])
    with pytest.raises(NotImplementedError):
        both.batch.layers[0].make_mask(1, window_size=128)


def test_a_single_row_keeps_its_own_caches_and_gives_them_up() -> None:
    cache = KVCache()
    cache.update_and_fetch(mx.zeros((1, 2, 5, 3)), mx.zeros((1, 2, 5, 3)))
    solo = SoloRow()
    solo.join(Prefilled([cache], 0), 5)
    solo.begin_step(elsewhere_bytes=0)
    solo.end_step()
    assert (solo.lengths, solo.layers, solo.nbytes) == ([6], [cache], cache.nbytes)
    with pytest.raises(AssertionError, match="one row"):
        solo.join(Prefilled([cache], 0), 5)
    solo.leave(0)
    assert (solo.lengths, solo.layers, solo.nbytes) == ([], [], 0)


def test_a_single_rows_state_cannot_be_rolled_back() -> None:
    assert not SoloRow.can_roll_back
    with pytest.raises(AssertionError, match="rolled back"):
        SoloRow().roll_back()
