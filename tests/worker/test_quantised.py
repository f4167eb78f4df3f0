"""Quantised keys and values: the same whatever the chunks, and the same as mlx-lm's own."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from shared.errors import ModelError
from tests.worker.tiny_models import Reference, save
from tests.worker.workbench import Workbench
from worker.engine.kinds import KeysValues, group_size_for
from worker.engine.model import LoadedModel, load
from worker.engine.quantised import QuantisedRowCache, packed_attention
from worker.engine.row_caches import grow_by, quantise

TOKENS: Final = 24
BITS: Final = (8, 4)


def some(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape))).astype(dtype)


# --- the cache ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    step=st.sampled_from((1, 4, 100)),
    bits=st.sampled_from((2, 4, 8)),
    widths=st.sampled_from(((32, 32), (64, 32), (96, 128))),
)
def test_what_is_stored_does_not_depend_on_chunks(
    dtype: mx.Dtype, chunks: list[int], step: int, bits: int, widths: tuple[int, int]
) -> None:
    cache, total = QuantisedRowCache(bits), sum(chunks)
    keys, values = (some(2, 3, total, width, dtype=dtype) for width in widths)
    grow_by([cache], step)
    for end, tokens in zip(itertools.accumulate(chunks), chunks, strict=True):
        new = [array[:, :, end - tokens : end] for array in (keys, values)]
        shown = cache.update_and_fetch(*new)
        assert cache.offset == end
        for ours, whole, width in zip(shown, (keys, values), widths, strict=True):
            size = group_size_for(width)
            packed = mx.quantize(whole[:, :, :end], group_size=size, bits=bits)
            assert ours.dtype == dtype
            assert mx.array_equal(ours, mx.dequantize(*packed, group_size=size, bits=bits)).item()
    assert cache.nbytes == 2 * cache.planes[0].shape[2] * cache.kind_at_rest.bytes_per_token
    assert total <= cache.planes[0].shape[2] <= total + step


def test_room_is_allocated_once_where_the_length_is_known() -> None:
    cache = QuantisedRowCache(8)
    grow_by([cache], 50)
    for _ in range(50):
        cache.update_and_fetch(some(1, 1, 1, 32), some(1, 1, 1, 32))
        assert cache.planes[0].shape[2] == 50


@pytest.mark.parametrize("tokens", [1, 3, 8])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("return_array", [False, True])
def test_its_masks_are_those_of_a_plain_cache(tokens: int, window: int | None, return_array: bool) -> None:
    ours, theirs = QuantisedRowCache(8), KVCache()
    for cache in (ours, theirs):
        cache.update_and_fetch(some(1, 1, 6, 32), some(1, 1, 6, 32))
    one, other = (
        cache.make_mask(tokens, return_array=return_array, window_size=window) for cache in (ours, theirs)
    )
    assert type(one) is type(other)
    assert np.array_equal(np.array(one), np.array(other)) if isinstance(one, mx.array) else one == other


def test_a_cache_is_empty_until_it_is_written() -> None:
    cache = QuantisedRowCache(8)
    assert (cache.empty(), cache.nbytes, cache.state, cache.offset) == (True, 0, [], 0)
    cache.update_and_fetch(some(1, 1, 1, 32), some(1, 1, 1, 32))
    assert not cache.empty()


@pytest.mark.parametrize("width", [80, 16, 100])
def test_a_width_that_cannot_be_quantised_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"{width} numbers can't be quantised"):
        QuantisedRowCache(8).update_and_fetch(some(1, 1, 1, width), some(1, 1, 1, width))


@pytest.mark.parametrize("bits", BITS)
def test_a_kinds_bytes_are_those_of_its_planes(bits: int) -> None:
    kind = KeysValues(3, 64, 96, mx.bfloat16, bits=bits)
    planes = kind.empty(2, 10)
    assert sum(plane.nbytes for plane in planes) == 2 * 10 * kind.bytes_per_token
    assert kind.bytes_per_token == 3 * (64 + 96) * bits // 8 + 3 * (1 + 3) * 2 * 2


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("width", [32, 128])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_to_packed_numbers_is_attention_to_what_they_stand_for(
    bits: int, heads: int, width: int, masked: bool
) -> None:
    kind = KeysValues(2, width, width, mx.float32, bits=bits)
    planes = kind.encode(some(3, 2, 9, width), some(3, 2, 8 + 1, width + 32)[..., 32:])
    queries = some(3, heads, 1, width)
    mask = (mx.arange(9) <= mx.array([[2], [8], [0]]))[:, None, None] if masked else None
    theirs = mx.fast.scaled_dot_product_attention(queries, *kind.decode(planes), scale=0.3, mask=mask)
    ours = packed_attention(queries, planes, kind, 0.3, mask)
    assert kind.can_attend_packed
    assert mx.allclose(ours, theirs, atol=1e-4).item()


def test_packed_numbers_are_attended_to_only_where_keys_and_values_are_alike() -> None:
    """mlx-lm takes both to be as wide as queries are."""
    for widths in ((64, 96), (576, 512)):
        assert not KeysValues(2, *widths, mx.float32, bits=8).can_attend_packed
    assert not KeysValues(2, 64, 64, mx.float32).can_attend_packed


def test_only_caches_that_keep_all_are_quantised() -> None:
    caches: list[Any] = [KVCache(), RotatingKVCache(8)]
    assert quantise(caches, 0) is caches
    assert [type(cache) for cache in quantise(caches, 8)] == [QuantisedRowCache, RotatingKVCache]


# --- a model ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=BITS, ids=["8 bits", "4 bits"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save(tmp_path_factory.mktemp("quantised"), "llama", head_dim=32)
    return load(folder, None, lambda: None, kv_bits=request.param)


def prompt_of(length: int) -> tuple[int, ...]:
    return tuple((7 * place + length) % 300 for place in range(length))


def mlx_lms_own(loaded: LoadedModel, prompt: tuple[int, ...]) -> Reference:
    """Let mlx-lm answer with its own quantised caches, and nothing else in them."""
    caches = [QuantizedKVCache(group_size=32, bits=loaded.facts.kv_bits) for _ in range(2)]
    steps = list(generate_step(mx.array(prompt), loaded.model, max_tokens=TOKENS, prompt_cache=caches))
    return Reference([token for token, _ in steps], [logprobs for _, logprobs in steps])


@pytest.mark.parametrize(("quantum_ms", "packed"), [(16.0, False), (1000.0, False), (1000.0, True)])
def test_rows_answer_as_with_mlx_lms_quantised_caches(
    loaded: LoadedModel, quantum_ms: float, packed: bool
) -> None:
    assert loaded.layout is not None
    layout = dataclasses.replace(loaded.layout, packed=packed)
    bench = Workbench(
        dataclasses.replace(loaded, layout=layout), slots=4, quantum_ms=quantum_ms, kv_bytes_max=0
    )
    lengths = (1, 5, 40, 41, 300)
    for length in lengths:
        bench.submit(str(length), prompt_of(length), TOKENS)
        bench.turn()
    bench.run()
    for length in lengths:
        assert len(bench.answers[str(length)]) == TOKENS
        mlx_lms_own(loaded, prompt_of(length)).assert_same(bench.answers[str(length)])


@pytest.mark.parametrize("cut", [1, 10])
def test_a_resumed_answer_goes_on_as_it_would_have(loaded: LoadedModel, cut: int) -> None:
    whole = Workbench(loaded).answer(prompt_of(40), TOKENS)
    again = Workbench(loaded).answer(prompt_of(40), TOKENS, emitted=whole[:cut], attempt=2)
    assert again == whole


def test_the_facts_say_how_many_bits_and_what_they_cost(loaded: LoadedModel) -> None:
    """Two layers of two heads, keys and values 32 wide, of each a scale and a bias."""
    facts = loaded.facts
    assert (facts.batches, facts.caches) == (True, "quantised attention")
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * (32 * facts.kv_bits // 8 + 4 + 4)


def test_plain_caches_would_answer_otherwise(loaded: LoadedModel) -> None:
    """Else nothing here was shown."""
    plain = [[KVCache() for _ in range(2)], [QuantisedRowCache(loaded.facts.kv_bits) for _ in range(2)]]
    logits = [loaded.model(mx.array([prompt_of(40)]), cache=caches)[0, -1] for caches in plain]
    assert not mx.allclose(*logits, atol=1e-3).item()


def test_heads_of_80_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="80 numbers can't be quantised: 32 must divide it"):
        load(save(tmp_path, "llama", head_dim=80), None, lambda: None, kv_bits=8)
