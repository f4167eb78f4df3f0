"""Rows that prefill behind a beginning which stands elsewhere: the same logits, keys and values as ever."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache

from tests.worker.tiny_models import build
from worker.engine.attending import MaskWish
from worker.engine.hooks import Hooks, hookable
from worker.engine.kinds import KeysValues, Planes
from worker.engine.prefixed_cache import PrefixedCache
from worker.engine.quantised import QuantisedRowCache
from worker.engine.row_caches import kinds_of, parts_of, planes_of, quantise

# Relative to the largest number, in float32.
CLOSE: Final = 1e-4
CAUSAL: Final = MaskWish(None)


def apart(one: mx.array, other: mx.array) -> float:
    """Return the largest difference, relative to the largest number; no number is infinitely far from any."""
    assert one.shape == other.shape
    differences = mx.abs(one.astype(mx.float32) - other.astype(mx.float32))
    largest = mx.maximum(mx.abs(other.astype(mx.float32)).max(), 1e-6)
    return float((mx.where(mx.isnan(differences), float("inf"), differences).max() / largest).item())


def draws(seed: int) -> Callable[..., mx.array]:
    keys: Iterator[mx.array] = iter(mx.random.split(mx.random.key(seed), 64))
    return lambda *shape: mx.random.normal(shape, key=next(keys))


def cut(planes: Planes, start: int, end: int) -> Planes:
    return [plane[:, :, start:end] for plane in planes]


# --- the cache ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    bits=st.sampled_from((0, 4, 8)),
    widths=st.sampled_from(((32, 32), (64, 32))),
    rows=st.integers(1, 3),
    runs=st.lists(st.integers(0, 9), max_size=3),
    kept=st.integers(0, 4),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    room=st.sampled_from((1, 4, 50)),
    has_sinks=st.booleans(),
)
def test_every_chunk_sees_what_is_stored_before_it_and_itself(
    bits: int,
    widths: tuple[int, int],
    rows: int,
    runs: list[int],
    kept: int,
    chunks: list[int],
    room: int,
    has_sinks: bool,
) -> None:
    draw, kind = draws(sum(runs) + sum(chunks)), KeysValues(2, *widths, mx.float32, bits=bits)
    base = [kind.encode(*(draw(1, 2, run, width) for width in widths)) for run in runs if run]
    cache = PrefixedCache(kind, lambda: base, sum(runs), rows, room)
    stored = [mx.broadcast_to(plane, (rows, *plane.shape[1:])) for plane in kind.empty(1, 0)]
    for planes in [*base, kind.encode(*(draw(1, 2, kept, width) for width in widths))][
        : None if kept else -1
    ]:
        stored = _longer(stored, planes, rows)
    if kept:
        cache.put(cut(stored, sum(runs), sum(runs) + kept))
    sinks = draw(4) if has_sinks else None
    for tokens in chunks:
        keys, values = (draw(rows, 2, tokens, width) for width in widths)
        queries = draw(rows, 4, tokens, widths[0])
        assert cache.update_and_fetch(keys, values) == (cache, cache)
        stored = _longer(stored, kind.encode(keys, values), rows)
        seen = stored[0].shape[2]
        mask = mx.arange(seen) <= mx.arange(seen - tokens, seen)[:, None]
        theirs = mx.fast.scaled_dot_product_attention(
            queries, *kind.decode(stored), scale=0.2, mask=mask, sinks=sinks
        )
        assert apart(cache.attend(queries, 0.2, cache.make_mask(tokens), sinks), theirs) < CLOSE
        assert (cache.offset, cache.size(), cache.own_tokens) == (seen, seen, seen - sum(runs))
    for ours, theirs in zip(
        cut(cache.planes, 0, cache.own_tokens), cut(stored, sum(runs), seen), strict=True
    ):
        assert mx.array_equal(ours, theirs).item()


def _longer(stored: Planes, planes: Planes, rows: int) -> Planes:
    """Return planes with tokens behind them, those of one row for all rows."""
    return [
        mx.concatenate([before, mx.broadcast_to(new, (rows, *new.shape[1:]))], axis=2)
        for before, new in zip(stored, planes, strict=True)
    ]


def one_of(rows: int = 2, room: int = 4, base_tokens: int = 3) -> PrefixedCache:
    kind, draw = KeysValues(2, 8, 8, mx.float32), draws(1)
    base = [draw(1, 2, base_tokens, 8), draw(1, 2, base_tokens, 8)]
    return PrefixedCache(kind, lambda: [base], base_tokens, rows, room)


def test_a_model_that_asks_for_no_mask_has_its_tokens_see_each_other() -> None:
    cache, draw = one_of(), draws(2)
    keys, values, queries = draw(2, 2, 3, 8), draw(2, 2, 3, 8), draw(2, 2, 3, 8)
    cache.update_and_fetch(keys, values)
    whole = _longer(_longer(cut(cache.planes, 0, 0), cache._base()[0], 2), [keys, values], 2)
    theirs = mx.fast.scaled_dot_product_attention(queries, *whole, scale=1.0, mask=None)
    assert apart(cache.attend(queries, 1.0, None, None), theirs) < CLOSE
    assert apart(cache.attend(queries, 1.0, CAUSAL, None), theirs) > 100 * CLOSE


def test_room_is_taken_at_once_and_only_the_rows_own_counts() -> None:
    cache, token = one_of(rows=2, room=4), mx.zeros((2, 2, 1, 8))
    assert (cache.nbytes, cache.state, cache.own_tokens, cache.offset) == (0, [], 0, 3)
    slots = []
    for _ in range(9):
        cache.update_and_fetch(token, token)
        slots.append(cache.planes[0].shape[2])
        assert cache.nbytes == slots[-1] * 2 * cache.kind.bytes_per_token
    assert slots == [4, 4, 4, 4, 8, 8, 8, 8, 12]
    assert cache.state is cache.planes


def test_a_chunk_larger_than_the_room_fits_exactly() -> None:
    cache, tokens = one_of(rows=2, room=4), mx.ones((2, 2, 7, 8))
    cache.update_and_fetch(tokens, tokens)
    assert cache.planes[0].shape == (2, 2, 7, 8)


def test_what_is_put_first_may_come_in_pieces_longer_than_what_is_wanted() -> None:
    cache, planes = one_of(), [draws(3)(2, 2, 5, 8)] * 2
    cache.put(planes, 4)
    cache.put(cut(planes, 4, 5))
    assert cache.own_tokens == 5
    assert mx.array_equal(cut(cache.planes, 0, 5)[0], planes[0]).item()


def test_the_beginning_is_asked_for_each_time_it_is_read() -> None:
    """Its arrays may have moved in between, and nobody is to hold on to the old ones."""
    places: list[Sequence[Planes]] = []
    kind, draw = KeysValues(1, 8, 8, mx.float32), draws(4)
    cache = PrefixedCache(kind, lambda: places[-1], 2, 1, 4)
    token = draw(1, 1, 1, 8)
    cache.update_and_fetch(token, token)
    outputs = []
    for _ in range(2):
        places.append([[draw(1, 1, 2, 8), draw(1, 1, 2, 8)]])
        outputs.append(cache.attend(token, 1.0, CAUSAL, None))
    assert apart(*outputs) > CLOSE


def test_a_cache_is_empty_where_nothing_stands_before_or_in_it() -> None:
    kind = KeysValues(1, 8, 8, mx.float32)
    cache = PrefixedCache(kind, list, 0, 1, 4)
    assert cache.empty()
    assert not one_of().empty()
    token = draws(5)(1, 1, 1, 8)
    cache.update_and_fetch(token, token)
    assert not cache.empty()
    assert apart(cache.attend(token, 1.0, CAUSAL, None), token) < CLOSE


def test_a_window_is_refused_in_words() -> None:
    with pytest.raises(NotImplementedError, match="a layer with a window has no beginning in common"):
        one_of().make_mask(3, return_array=True, window_size=8)
    with pytest.raises(AssertionError, match="window"):
        PrefixedCache(KeysValues(1, 8, 8, mx.float32, span=8), list, 0, 1, 4)


# --- models -------------------------------------------------------------------------------------------------

# What keeps everything in all its layers, and what has windows, states or sinks beside such layers.
FULL: Final[dict[str, dict[str, Any]]] = {
    "llama": {},
    "qwen3": {},
    "qwen3_moe": {},
    "mixtral": {},
    "phi3": {},
    "minimax": {},
    "glm4_moe": {},
    "ministral3": {"layer_types": ["full_attention"] * 3},
}
MIXED: Final = ("gemma3_text", "gemma3n", "gpt_oss", "llama4", "qwen3_5", "falcon_h1", "baichuan_m1")
# A window and more of it, so that what is mixed with windows has gone round.
BEGINNING: Final = tuple((7 * place + 3) % 300 for place in range(32))
ENDINGS: Final = ((5, 9, 14, 3, 77, 250, 31, 8, 120, 6, 41), (11,), (44, 201, 3, 18))


def plain_run(model: Any, ids: Sequence[int], bits: int = 0) -> tuple[mx.array, list[Any]]:
    """Return the logits of all tokens, (tokens, vocabulary), and the caches that hold them."""
    caches = quantise(list(make_prompt_cache(model)), bits)
    logits: mx.array = model(mx.array([ids]), cache=caches)[0]
    mx.eval(logits)
    return logits, caches


def behind_beginning(model: Any, rows: int, bits: int = 0) -> list[Any]:
    """Return caches behind BEGINNING, which stands in two runs; what isn't kept whole stays as it is."""
    _, caches = plain_run(model, BEGINNING, bits)
    return [_behind(cache, kinds, rows) for cache, kinds in zip(caches, kinds_of(caches), strict=True)]


def _behind(cache: Any, kinds: list[Any], rows: int) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(
            *(_behind(part, [kind], rows) for part, kind in zip(cache.caches, kinds, strict=True))
        )
    if type(cache) not in (KVCache, QuantisedRowCache):
        return cache
    runs = [cut(planes_of(cache), 0, 20), cut(planes_of(cache), 20, len(BEGINNING))]
    return PrefixedCache(kinds[0], lambda: runs, len(BEGINNING), rows, room=8)


def run_in_chunks(model: Any, caches: list[Any], ids: mx.array, chunks: Sequence[int]) -> mx.array:
    """Return the logits of all tokens, (rows, tokens, vocabulary)."""
    ends = list(itertools.accumulate(chunks))
    assert ends[-1] == ids.shape[1]
    outputs = []
    for end, tokens in zip(ends, chunks, strict=True):
        outputs.append(model(ids[:, end - tokens : end], cache=caches))
        mx.eval(outputs[-1], [cache.state for cache in caches])
    return mx.concatenate(outputs, axis=1)


@pytest.mark.parametrize("family", FULL)
def test_rows_behind_a_beginning_prefill_as_each_does_alone(family: str) -> None:
    model, _ = build(family, **FULL[family])
    alone = [plain_run(model, BEGINNING + ending) for ending in ENDINGS]
    Hooks().hook(hookable(model))
    longest = max(map(len, ENDINGS))
    padded = mx.array([ending + ending[:1] * (longest - len(ending)) for ending in ENDINGS])
    for chunks in ((longest,), (1, 4, longest - 5)):
        caches = behind_beginning(model, len(ENDINGS))
        logits = run_in_chunks(model, caches, padded, chunks)
        for row, (ending, (expected, whole)) in enumerate(zip(ENDINGS, alone, strict=True)):
            assert apart(logits[row, : len(ending)], expected[len(BEGINNING) :]) < CLOSE
            for ours, theirs in zip(caches, whole, strict=True):
                mine = [plane[row : row + 1] for plane in cut(ours.planes, 0, len(ending))]
                own = cut(planes_of(theirs), len(BEGINNING), len(BEGINNING) + len(ending))
                assert max(map(apart, mine, own)) < CLOSE


@pytest.mark.parametrize("family", MIXED)
@pytest.mark.parametrize("chunks", [(11,), (1, 6, 4)])
def test_layers_that_keep_all_agree_beside_windows_and_states(family: str, chunks: tuple[int, ...]) -> None:
    model, _ = build(family)
    expected, _ = plain_run(model, BEGINNING + ENDINGS[0])
    Hooks().hook(hookable(model))
    caches = behind_beginning(model, 1)
    assert any(isinstance(part, PrefixedCache) for cache in caches for part in parts_of(cache))
    logits = run_in_chunks(model, caches, mx.array(ENDINGS[:1]), chunks)
    assert apart(logits[0], expected[len(BEGINNING) :]) < CLOSE


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_rows_prefill_as_each_does_alone(bits: int) -> None:
    """A number at the edge of two steps may fall to the other one, so this is near and not the same."""
    model, _ = build("llama", head_dim=32)
    expected, _ = plain_run(model, BEGINNING + ENDINGS[0], bits)
    unquantised, _ = plain_run(model, BEGINNING + ENDINGS[0])
    Hooks().hook(hookable(model))
    logits = run_in_chunks(model, behind_beginning(model, 1, bits), mx.array(ENDINGS[:1]), (1, 6, 4))
    near = apart(logits[0], expected[len(BEGINNING) :])
    assert near < 3e-3
    assert apart(unquantised[len(BEGINNING) :], expected[len(BEGINNING) :]) > 4 * near
