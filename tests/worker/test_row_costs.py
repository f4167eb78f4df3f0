"""What a row costs by the facts, beside what the engine holds of one: too low dies, too high refuses."""

from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ChunkedKVCache, ConcatenateKVCache, KVCache, RotatingKVCache

from tests.worker.tiny_models import FAMILIES, clamped, greedy_alone, load_saved, save, tiny
from tests.worker.workbench import Workbench
from worker.engine.model import LoadedModel
from worker.engine.row_caches import TOKENS_STEP, grow_by, row_costs, trim_windows

LENGTHS: Final = (25, 256, 600)
QUANTA_MS: Final = (100.0, 1000.0)  # a millisecond a token: chunks of 100 tokens, or all at once
TOKENS: Final = 40
# The wide window is larger than a step and no multiple of one, and chunks both shorter and longer than it.
WIDE_WINDOW: Final = 290


def peak_bytes(loaded: LoadedModel, length: int, quantum_ms: float) -> int:
    """Return the most that the engine holds of one row; the workbench checks memory in each turn, too."""
    bench = Workbench(loaded, quantum_ms=quantum_ms, kv_bytes_max=0)
    bench.submit("a", [1 + place % 7 for place in range(length)], TOKENS)
    held = []
    while "a" not in bench.ends:
        bench.turn()
        held.append(bench.engine.kv_bytes)
    return max(held)


def assert_tight(loaded: LoadedModel, length: int, quantum_ms: float) -> None:
    """An answer's last token is never written, for which one step of padding may be counted."""
    facts = loaded.facts
    measured = peak_bytes(loaded, length, quantum_ms)
    counted = facts.batch_bytes([length + TOKENS])
    step_bytes = facts.kv_pad_tokens * (facts.kv_bytes_per_token + facts.window_bytes_per_token)
    assert measured <= counted, "too low dies"
    assert counted <= measured + step_bytes, "too high refuses"


@pytest.mark.parametrize("quantum_ms", QUANTA_MS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("family", [*(family for family in FAMILIES if family != "qwen3"), "llama4"])
def test_a_row_holds_what_the_facts_say_and_little_less(family: str, length: int, quantum_ms: float) -> None:
    assert_tight(tiny(family), length, quantum_ms)


@pytest.mark.parametrize("quantum_ms", QUANTA_MS)
@pytest.mark.parametrize("length", LENGTHS)
def test_so_does_a_row_of_plain_caches_that_runs_alone(length: int, quantum_ms: float) -> None:
    assert_tight(clamped(tiny("llama")), length, quantum_ms)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("wide")
    return load_saved(save(folder, "gemma3_text", sliding_window=WIDE_WINDOW))


@pytest.mark.parametrize("quantum_ms", QUANTA_MS)
@pytest.mark.parametrize("length", LENGTHS)
def test_so_does_a_row_whose_window_is_wide(wide: LoadedModel, length: int, quantum_ms: float) -> None:
    assert_tight(wide, length, quantum_ms)


@pytest.mark.parametrize("length", [280, 290, 291, 600])
@pytest.mark.parametrize("quantum_ms", QUANTA_MS)
def test_a_window_that_is_cut_after_each_chunk_changes_no_answer(
    wide: LoadedModel, length: int, quantum_ms: float
) -> None:
    prompt = tuple((3 * place + place // 7) % 300 for place in range(length))
    tokens = Workbench(wide, quantum_ms=quantum_ms).answer(prompt, TOKENS)
    greedy_alone(wide.model, prompt, TOKENS).assert_same(tokens)


@pytest.mark.parametrize("family", [*(family for family in FAMILIES if family != "qwen3"), "llama4"])
def test_rows_together_hold_what_the_facts_say_of_each(family: str) -> None:
    """Where no memory may be wasted; each holds its answer's tokens but the last."""
    loaded, lengths = tiny(family), (3, 40, 41, 230)
    bench = Workbench(loaded, slots=len(lengths), kv_bytes_max=0)
    for length in lengths:
        bench.submit(str(length), [1 + place % 7 for place in range(length)], TOKENS)
    held = []
    while len(bench.ends) < len(lengths):
        bench.turn()
        held.append(bench.engine.kv_bytes)
    bench.run()
    assert max(held) == loaded.facts.batch_bytes([length + TOKENS - 1 for length in lengths])


# --- kinds of caches ----------------------------------------------------------------------------------------


def filled(cache: Any, tokens: int) -> Any:
    """Let a cache take so many tokens of two heads, keys and values three and five wide: 64 bytes each."""
    cache.update_and_fetch(mx.zeros((1, 2, tokens, 3)), mx.zeros((1, 2, tokens, 5)))
    return cache


@pytest.mark.parametrize("tokens", [65, 256])
def test_a_line_is_drawn_for_kinds_that_are_not_known(tokens: int) -> None:
    kind = ConcatenateKVCache
    costs = row_costs([filled(kind(), tokens)], tokens, lambda longer: [filled(kind(), longer)])
    assert (costs.kv_bytes_per_token, costs.fixed_bytes) == (64, 64 * TOKENS_STEP)


def test_a_chunk_counts_as_a_window() -> None:
    costs = row_costs([filled(ChunkedKVCache(700), 9)], 9, lambda _: [])
    assert (costs.window_tokens, costs.window_bytes_per_token, costs.kv_bytes_per_token) == (700, 64, 0)


def test_chunks_take_no_more_room_than_they_keep_however_long_a_row_is() -> None:
    cache = ChunkedKVCache(10)
    grow_by([cache], 100_000)
    for tokens in (4, 4, 9, 1, 30):
        filled(cache, tokens)
        trim_windows([cache])
        assert cache.keys.shape[2] == cache.values.shape[2] == 10


def test_windows_of_different_sizes_all_count_as_the_largest() -> None:
    caches = [filled(RotatingKVCache(size), 9) for size in (8, 700, 64)]
    costs = row_costs(caches, 9, lambda _: [])
    assert (costs.window_tokens, costs.window_bytes_per_token) == (700, 3 * 64)


def test_a_layer_that_shares_anothers_keys_costs_nothing() -> None:
    costs = row_costs([filled(KVCache(), 9), KVCache(), RotatingKVCache(8)], 9, lambda _: [])
    assert (costs.kv_bytes_per_token, costs.window_bytes_per_token, costs.fixed_bytes) == (64, 0, 0)


def test_a_cut_window_gives_its_memory_back() -> None:
    cache = RotatingKVCache(16)
    cache.update_and_fetch(mx.zeros((1, 1, 50_000, 8)), mx.zeros((1, 1, 50_000, 8)))
    mx.eval(cache.state)
    before = mx.get_active_memory()
    trim_windows([cache])
    mx.eval(cache.state)
    assert cache.keys.shape[2] == cache.values.shape[2] == 16
    assert before - mx.get_active_memory() >= 2 * 49_000 * 8 * 4
