"""Attention part by part, joined: the same as attention to everything at once, and in bounded memory."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine import joined_attention
from worker.engine.joined_attention import Part, attend_own, attend_shared, join, spread, stack

# Of numbers near 1; in the coarse types scores and outputs are rounded.
CLOSE: Final = 1e-5
BOUNDS: Final = {mx.float32: CLOSE, mx.float16: 5e-3, mx.bfloat16: 4e-2}
NOTHING: Final = float("-inf")
law = settings(max_examples=40, deadline=None, derandomize=True)


class Draws:
    """Random arrays, each another."""

    def __init__(self, seed: int) -> None:
        self._keys: Iterator[mx.array] = iter(mx.random.split(mx.random.key(seed), 16))

    def some(self, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        return mx.random.normal(shape, key=next(self._keys)).astype(dtype)

    def mask(self, *shape: int) -> mx.array:
        """Return what each query sees: about half, and always the first token."""
        seen = mx.random.bernoulli(0.5, shape, key=next(self._keys))
        return seen | (mx.arange(shape[-1]) == 0)


def apart(one: mx.array, other: mx.array) -> float:
    """Return the largest difference; no number is infinitely far from any other."""
    assert one.shape == other.shape
    differences = mx.abs(one.astype(mx.float32) - other.astype(mx.float32))
    return float(mx.where(mx.isnan(differences), float("inf"), differences).max().item())


def whole(
    queries: mx.array,
    pairs: Sequence[Sequence[mx.array]],
    mask: mx.array | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Return mlx's own attention in float32 to pairs of keys and values, one behind the other.

    Those of one row are all rows'; the mask is that of the last pair.
    """
    rows, _, tokens, _ = queries.shape
    whole_rows = [
        [mx.broadcast_to(array, (rows, *array.shape[1:])).astype(mx.float32) for array in pair]
        for pair in pairs
    ]
    keys, values = (mx.concatenate(list(arrays), axis=2) for arrays in zip(*whole_rows, strict=True))
    if mask is not None:
        own = mx.broadcast_to(mask, (rows, 1, tokens, mask.shape[-1]))
        before = mx.ones((rows, 1, tokens, keys.shape[2] - mask.shape[-1]), dtype=mx.bool_)
        mask = mx.concatenate([before, own], axis=-1)
    return mx.fast.scaled_dot_product_attention(
        queries.astype(mx.float32),
        keys,
        values,
        scale=0.4,
        mask=mask,
        sinks=None if sinks is None else sinks.astype(mx.float32),
    )


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    kv_heads: int
    group: int
    tokens: int
    widths: tuple[int, int]


SIZES: Final = st.builds(
    Size,
    rows=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from((1, 2, 4)),
    tokens=st.sampled_from((1, 2, 7)),
    widths=st.sampled_from(((8, 8), (6, 10), (16, 4), (1, 1))),
)


@pytest.mark.parametrize("dtype", BOUNDS)
@law
@given(
    size=SIZES,
    runs=st.lists(st.sampled_from((1, 2, 5, 40)), max_size=3),
    own=st.sampled_from((1, 3, 33)),
    masked=st.sampled_from((None, "rows", "tokens", "all")),
    has_sinks=st.booleans(),
    tile_bytes=st.sampled_from((1, 400, 3000, 32 << 20)),
    seed=st.integers(0, 99),
)
def test_parts_joined_are_attention_to_everything(
    dtype: mx.Dtype,
    size: Size,
    runs: list[int],
    own: int,
    masked: str | None,
    has_sinks: bool,
    tile_bytes: int,
    seed: int,
) -> None:
    draw = Draws(seed)
    rows, kv_heads, tokens, heads = size.rows, size.kv_heads, size.tokens, size.kv_heads * size.group
    queries = draw.some(rows, heads, tokens, size.widths[0], dtype=dtype)
    pairs = [
        tuple(draw.some(of_rows, kv_heads, count, width, dtype=dtype) for width in size.widths)
        for of_rows, count in [*((1, run) for run in runs), (rows, own)]
    ]
    shape = {"rows": (rows, 1, 1, own), "tokens": (tokens, own), "all": (rows, 1, tokens, own)}
    mask = draw.mask(*shape[masked]) if masked else None
    sinks = draw.some(heads, dtype=dtype) if has_sinks else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_attention, "SCORES_BYTES", tile_bytes)
        parts = [attend_shared(queries, *pair, scale=0.4) for pair in pairs[:-1]]
        parts.append(attend_own(queries, *pairs[-1], scale=0.4, mask=mask))
    ours = join(parts, dtype, sinks)
    assert ours.dtype == dtype
    assert {part.output.dtype for part in parts} | {part.weight.dtype for part in parts} == {mx.float32}
    assert {part.weight.shape for part in parts} == {(rows, heads, tokens, 1)}
    assert apart(ours, whole(queries, pairs, mask, sinks)) < BOUNDS[dtype]


def test_a_weight_is_the_logarithm_of_the_sum_of_exponentials() -> None:
    draw = Draws(1)
    queries, keys, values = draw.some(2, 2, 3, 8), draw.some(2, 2, 5, 8), draw.some(2, 2, 5, 8)
    scores = (queries @ keys.swapaxes(-1, -2)) * 0.4
    expected = mx.log(mx.exp(scores).sum(axis=-1, keepdims=True))
    assert apart(attend_own(queries, keys, values, 0.4, None).weight, expected) < CLOSE


@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_weight_is_as_fine_as_float32_whatever_the_type(dtype: mx.Dtype) -> None:
    zeros = mx.zeros((1, 2, 1000, 4), dtype=dtype)
    part = attend_shared(zeros[:, :, :1], zeros, zeros, 1.0)
    assert apart(part.weight, mx.full((1, 2, 1, 1), math.log(1000))) < CLOSE


@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_query_that_sees_nothing_of_a_part_gets_nothing_of_it(dtype: mx.Dtype) -> None:
    draw = Draws(2)
    queries = draw.some(2, 4, 2, 8, dtype=dtype)
    keys, values = draw.some(2, 2, 5, 8, dtype=dtype), draw.some(2, 2, 5, 8, dtype=dtype)
    sees = mx.array([[True, False], [False, True]])[:, None, :, None]
    part = attend_own(queries, keys, values, 0.4, mx.broadcast_to(sees, (2, 1, 2, 5)))
    assert mx.array_equal(mx.isfinite(part.weight), mx.broadcast_to(sees, part.weight.shape)).item()
    assert mx.array_equal(part.output != 0, mx.broadcast_to(sees, part.output.shape)).item()
    assert apart(join([part], dtype), part.output.astype(dtype)) == 0
    everything = attend_own(queries, keys, values, 0.4, None)
    unseen = Part(mx.where(sees, 0.0, part.output), mx.full(part.weight.shape, NOTHING))
    assert apart(join([unseen, everything], dtype), everything.output.astype(dtype)) == 0
    nobody = join([unseen, unseen], dtype)
    assert apart(nobody, mx.zeros(nobody.shape)) == 0


@pytest.mark.parametrize("dtype", BOUNDS)
def test_large_scores_and_values_stay_numbers(dtype: mx.Dtype) -> None:
    """Scores of thousands, whose exponentials no type holds; values whose sum float16 doesn't."""
    keys = mx.full((1, 1, 400, 4), 40.0, dtype=dtype)
    values = mx.full((1, 1, 400, 4), 1000.0, dtype=dtype)
    for sign in (-1.0, 1.0):
        queries = mx.full((3, 1, 1, 4), 40.0 * sign, dtype=dtype)
        parts = [attend_shared(queries, keys, values, 1.0)]
        parts.append(attend_own(queries[:1], keys, values, 1.0, None))
        both = join([parts[0], stack([parts[1]] * 3)], dtype)
        assert apart(both, mx.full(both.shape, 1000.0)) < 10


@law
@given(count=st.integers(1, 500), each=st.integers(1, 2000), tile_bytes=st.sampled_from((1, 64, 1000, 10**6)))
def test_two_tiles_fit_within_the_bound_and_all_cover_everything(
    count: int, each: int, tile_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_attention, "SCORES_BYTES", tile_bytes)
        cuts = joined_attention._cuts(count, each)
    assert [place for cut in cuts for place in range(cut.start, cut.stop)] == list(range(count))
    sizes = [cut.stop - cut.start for cut in cuts]
    assert (len(cuts) == 1) == (count * each <= tile_bytes or count == 1)
    assert len(cuts) == 1 or max(sizes) == 1 or 2 * max(sizes) * each <= tile_bytes


def taken_by(part: Part, before: int) -> int:
    mx.eval(part.output, part.weight)
    return mx.get_peak_memory() - before


@pytest.mark.parametrize(
    ("rows", "heads", "tokens", "is_shared"),
    [(4, 4, 512, True), (4, 4, 512, False), (256, 32, 1, True), (256, 32, 1, False)],
)
def test_many_scores_take_little_memory(
    monkeypatch: pytest.MonkeyPatch, rows: int, heads: int, tokens: int, is_shared: bool
) -> None:
    """All scores would be 64 MiB. A tile is half a MiB, and what is made of it several; two run."""
    monkeypatch.setattr(joined_attention, "SCORES_BYTES", 1 << 20)
    draw = Draws(3)
    queries = draw.some(rows, heads, tokens, 1)
    keys, values = (draw.some(1 if is_shared else rows, 1, 2048, 1) for _ in range(2))
    mx.eval(queries, keys, values)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    if is_shared:
        part = attend_shared(queries, keys, values, 0.4)
    else:
        part = attend_own(queries, keys, values, 0.4, None)
    assert taken_by(part, before) < 4 << 20


def test_what_rows_share_is_not_copied_for_each_of_them() -> None:
    draw = Draws(4)
    queries = draw.some(64, 2, 1, 128)
    keys, values = draw.some(1, 1, 2048, 128), draw.some(1, 1, 2048, 128)
    mx.eval(queries, keys, values)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    assert taken_by(attend_shared(queries, keys, values, 0.4), before) < 8 * keys.nbytes


@law
@given(places=st.permutations([0, 1, 2, -1, -1]), seed=st.integers(0, 99))
def test_a_part_of_some_rows_is_laid_out_over_all(places: list[int], seed: int) -> None:
    draw = Draws(seed)
    queries, own = draw.some(5, 4, 2, 8), (draw.some(5, 2, 3, 8), draw.some(5, 2, 3, 8))
    shared = (draw.some(1, 2, 9, 8), draw.some(1, 2, 9, 8))
    asking = mx.stack([queries[places.index(row)] for row in range(3)])
    laid_out = spread(attend_shared(asking, *shared, scale=0.4), mx.array(places, dtype=mx.int32))
    ours = join([laid_out, attend_own(queries, *own, scale=0.4, mask=None)], mx.float32)
    for row, place in enumerate(places):
        mine = [array[row : row + 1] for array in own]
        expected = whole(queries[row : row + 1], [shared, mine] if place >= 0 else [mine])
        assert apart(ours[row : row + 1], expected) < CLOSE


def test_a_row_without_a_part_hears_nothing_of_a_broken_one() -> None:
    """A row that is no number any more takes no other with it."""
    broken = Part(mx.full((1, 2, 1, 4), float("nan")), mx.zeros((1, 2, 1, 1)))
    own = Part(mx.ones((2, 2, 1, 4)), mx.zeros((2, 2, 1, 1)))
    joined = join([spread(broken, mx.array([0, -1], dtype=mx.int32)), own], mx.float32)
    assert mx.isnan(joined[0]).all().item()
    assert apart(joined[1], mx.ones((2, 1, 4))) == 0


def test_parts_of_several_rows_stand_behind_each_other() -> None:
    draw = Draws(5)
    queries = draw.some(3, 2, 1, 8)
    keys, values = draw.some(3, 2, 4, 8), draw.some(3, 2, 4, 8)
    cuts = [slice(0, 2), slice(2, 3)]
    ours = stack([attend_own(queries[cut], keys[cut], values[cut], 0.4, None) for cut in cuts])
    assert apart(join([ours], mx.float32), whole(queries, [(keys, values)])) < CLOSE
    assert stack([ours]) is ours


def test_a_sink_takes_its_share_of_a_lone_part() -> None:
    part = Part(mx.ones((1, 2, 1, 4)), mx.zeros((1, 2, 1, 1)))
    joined = join([part], mx.float32, sinks=mx.array([0.0, NOTHING]))
    assert apart(joined[0, :, 0], mx.array([[0.5] * 4, [1.0] * 4])) < CLOSE
