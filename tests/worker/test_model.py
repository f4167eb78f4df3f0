"""Loading: which families truly batch, what they cost, and folders that can't be served."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, make_prompt_cache

from shared.errors import ModelError
from shared.model_folder import ModelFolder
from tests.worker.tiny_models import CONTEXT, FAMILIES, VOCABULARY, build, load_saved, save, tiny
from worker import model as worker_model
from worker.model import load

BATCHING = ("llama", "qwen3", "deepseek_v3")


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_plain_attention_batch_and_others_say_why_not(family: str) -> None:
    facts = tiny(family).facts
    assert facts.batches == (family in BATCHING)
    assert (facts.why_not == "") == facts.batches
    assert (tiny(family).shapes is None) != facts.batches


@pytest.mark.parametrize(("family", "cache"), [("mamba2", "ArraysCache"), ("gemma3_text", "RotatingKVCache")])
def test_a_family_that_is_clamped_names_the_cache_that_keeps_it(family: str, cache: str) -> None:
    assert cache in tiny(family).facts.why_not


def test_latent_attention_caches_keys_and_values_of_different_widths() -> None:
    shapes = tiny("deepseek_v3").shapes
    assert shapes is not None
    assert [(shape.heads, shape.key_width, shape.value_width) for shape in shapes] == [(1, 16, 4)] * 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_facts_are_those_of_the_folder_and_the_weights(family: str, tmp_path: Path) -> None:
    folder = save(tmp_path, family)
    facts = load_saved(folder).facts
    assert (facts.fingerprint, facts.family) == (folder.fingerprint, family)
    assert (facts.vocabulary, facts.context_tokens) == (VOCABULARY, CONTEXT)
    assert facts.weights_bytes == pytest.approx(folder.weights_bytes, rel=0.05)


@pytest.mark.parametrize(("cap", "context"), [(None, CONTEXT), (64, 64), (CONTEXT + 1, CONTEXT)])
def test_a_configured_context_only_lowers_the_models(cap: int | None, context: int, tmp_path: Path) -> None:
    assert load_saved(save(tmp_path, "llama"), context_tokens=cap).facts.context_tokens == context


def test_bytes_a_token_are_what_the_caches_take() -> None:
    """Two layers of two heads, keys and values 8 wide, four bytes a number."""
    assert tiny("llama").facts.kv_bytes_per_token == 2 * 2 * (8 + 8) * 4
    assert tiny("llama").facts.fixed_bytes_per_row == 0
    assert tiny("deepseek_v3").facts.kv_bytes_per_token == 2 * 1 * (16 + 4) * 4


def test_state_that_does_not_grow_is_told_as_such() -> None:
    facts = tiny("mamba2").facts
    assert (facts.kv_bytes_per_token, facts.window_tokens, facts.window_bytes_per_token) == (0, 0, 0)
    assert facts.fixed_bytes_per_row > 0


def test_layers_with_a_window_are_told_apart_from_those_that_keep_everything() -> None:
    """Two of three layers have a window; two heads, keys and values 8 wide, four bytes a number."""
    facts = tiny("gemma3_text").facts
    layer = 2 * (8 + 8) * 4
    assert (facts.kv_bytes_per_token, facts.window_bytes_per_token) == (layer, 2 * layer)
    assert (facts.window_tokens, facts.fixed_bytes_per_row) == (24, 0)


def test_a_layer_of_several_caches_is_told_by_its_parts() -> None:
    """One layer keeps everything, one a window, and both the last key and value before a convolution."""
    facts = tiny("baichuan_m1").facts
    layer = 2 * (8 + 8) * 4
    assert (facts.kv_bytes_per_token, facts.window_bytes_per_token) == (layer, layer)
    assert (facts.window_tokens, facts.fixed_bytes_per_row) == (24, 2 * layer)


def test_loading_says_again_and_again_that_it_moves(tmp_path: Path) -> None:
    told: list[None] = []
    load(save(tmp_path, "llama"), None, on_progress=lambda: told.append(None))
    assert len(told) >= 4


def test_weights_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        told: list[None] = []
        load(ModelFolder.read(tmp_path), None, on_progress=lambda: told.append(None))
        return len(told)

    save(tmp_path, "llama")
    in_one_piece = count()
    monkeypatch.setattr(worker_model, "_EVAL_BYTES", 1)
    assert count() > in_one_piece + 10


# --- a claim to batch is tried out ------------------------------------------------------------------------


class Claims(nn.Module):
    """Caches as plain attention does, and answers by `answer(keys so far, offset)`; rows are its numbers."""

    def __init__(self, answer: Callable[[mx.array, Any, Any], mx.array]) -> None:
        super().__init__()
        self.layers = [self]
        self._answer = answer

    def __call__(self, ids: mx.array, cache: list[Any]) -> mx.array:
        mask = create_attention_mask(ids, cache[0])
        offset = cache[0].offset
        numbers = ids[:, None, :, None].astype(mx.float32)
        keys, _ = cache[0].update_and_fetch(numbers, numbers)
        answer = self._answer(keys, mask, offset)
        return mx.broadcast_to(answer[:, None, None], (*ids.shape, 30)) * mx.arange(30)


def seen_sum(keys: mx.array, mask: Any) -> mx.array:
    """Add up what a row sees: all of it, where its mask hides nothing."""
    hidden = mask is None or isinstance(mask, str)
    return (keys[:, 0, :, 0] if hidden else mx.where(mask[:, 0, 0], keys[:, 0, :, 0], 0.0)).sum(axis=-1)


def honest(keys: mx.array, mask: Any, offset: Any) -> mx.array:
    return seen_sum(keys, mask) + mx.array(offset)


def ignores_offsets(keys: mx.array, mask: Any, offset: Any) -> mx.array:
    longest = offset if isinstance(offset, int) else int(offset.max().item())
    return seen_sum(keys, mask) + mx.array([float(longest)])


def ignores_masks(keys: mx.array, mask: Any, offset: Any) -> mx.array:
    return seen_sum(keys, None) + keys.shape[2]


def takes_whole_numbers_only(keys: mx.array, mask: Any, offset: Any) -> mx.array:
    return seen_sum(keys, mask) + mx.array([float(list(range(offset + 1))[-1])])


def does_not_broadcast(keys: mx.array, mask: Any, offset: Any) -> mx.array:
    return seen_sum(keys, mask) + mx.zeros((3,) if keys.shape[0] == 2 else (1,))


@pytest.mark.parametrize(
    ("answer", "agrees"),
    [
        (honest, True),
        (ignores_offsets, False),
        (ignores_masks, False),
        (takes_whole_numbers_only, False),
        (does_not_broadcast, False),
    ],
)
def test_a_claim_to_batch_is_believed_only_if_two_rows_answer_as_each_alone(
    answer: Callable[..., mx.array], agrees: bool
) -> None:
    stub = Claims(answer)
    caches = list(make_prompt_cache(stub))
    assert [type(cache) for cache in caches] == [KVCache]
    stub(mx.array([[1, 2, 3]]), cache=caches)
    shapes, why_not = worker_model._classify(stub, caches)
    assert (shapes is None, why_not) == (False, "")
    assert worker_model._batch_agrees(stub, shapes) is agrees


def test_a_family_whose_claim_is_false_is_clamped_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_model, "_batch_agrees", lambda _model, _shapes: False)
    loaded = load_saved(save(tmp_path, "llama"))
    assert (loaded.shapes, loaded.facts.batches, loaded.facts.kv_pad_rows) == (None, False, 1)
    assert "a batch of two gives other logits" in loaded.facts.why_not
    assert loaded.facts.kv_bytes_per_token == tiny("llama").facts.kv_bytes_per_token


def test_caches_that_are_not_one_a_layer_are_not_batched() -> None:
    model, _ = build("llama")
    caches = [*make_prompt_cache(model), KVCache()]
    assert worker_model._classify(model, caches) == (None, "its caches aren't one a layer")


# --- folders that can't be served -------------------------------------------------------------------------


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def spoil_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no weights at all")


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def rename_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "other.safetensors")


def change_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **changes}), "utf-8")

    change.__name__ = f"change_config({', '.join(changes)})"
    return change


@pytest.mark.parametrize(
    "spoil",
    [
        cut_weights,
        spoil_weights,
        empty_weights,
        rename_weights,
        change_config(model_type="no_such_family"),
        change_config(hidden_size=64),
        change_config(num_hidden_layers=5),
        change_config(num_attention_heads=0),
        change_config(rope_scaling={"rope_type": "unheard_of"}),
        change_config(model_file="code.py"),
    ],
    ids=lambda spoil: spoil.__name__,
)
def test_a_broken_folder_is_told_in_words(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    save(tmp_path, "llama")
    spoil(tmp_path)
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_saved(ModelFolder.read(tmp_path))


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_told_in_words(missing: str, tmp_path: Path) -> None:
    save(tmp_path, "llama")
    (tmp_path / missing).unlink()
    with pytest.raises(ModelError, match=r"no (model\*\.safetensors|config\.json|tokenizer\.json)"):
        ModelFolder.read(tmp_path)


def test_a_model_that_breaks_at_its_first_answer_is_a_broken_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_model: Any, _ids: list[int]) -> list[Any]:
        raise RuntimeError("shapes don't fit")

    monkeypatch.setattr(worker_model, "_prefill", breaks)
    with pytest.raises(ModelError, match="shapes don't fit"):
        load_saved(save(tmp_path, "llama"))
