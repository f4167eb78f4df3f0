"""Loading: which families truly batch, what they cost, and folders that can't be served."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ModelError
from shared.model_folder import ModelFolder
from tests.worker.tiny_families import WINDOW
from tests.worker.tiny_models import CONTEXT, FAMILIES, VOCABULARY, load_saved, save, tiny
from worker.engine import model as worker_model
from worker.engine.kinds import KeysValues, State
from worker.engine.model import load


@pytest.mark.parametrize("family", FAMILIES)
def test_families_that_batch_have_a_layout_and_others_say_why_not(family: str) -> None:
    loaded = tiny(family)
    assert loaded.facts.batches == (loaded.layout is not None) == (loaded.way is not None)
    assert (loaded.facts.why_not == "") == loaded.facts.batches


@pytest.mark.parametrize(
    ("family", "caches"),
    [
        ("llama", "attention"),
        ("gemma3_text", "window, attention"),
        ("mamba2", "state"),
        ("qwen3_5", "state, attention"),
        ("baichuan_m1", "state, attention, window"),
    ],
)
def test_the_kinds_of_a_familys_caches_are_named(family: str, caches: str) -> None:
    assert tiny(family).facts.caches == caches


def test_latent_attention_caches_keys_and_values_of_different_widths() -> None:
    layout = tiny("deepseek_v3").layout
    assert layout is not None
    kinds = [kind for layer in layout.layers for kind in layer if isinstance(kind, KeysValues)]
    assert [(kind.heads, kind.key_width, kind.value_width, kind.span) for kind in kinds] == [
        (1, 16, 4, None)
    ] * 2


def test_windows_and_states_are_in_the_layout_layer_by_layer() -> None:
    windows, states = tiny("gemma3_text").layout, tiny("qwen3_5").layout
    assert windows is not None
    assert states is not None
    spans = [kind.span for layer in windows.layers for kind in layer if isinstance(kind, KeysValues)]
    assert spans == [WINDOW, WINDOW, None]
    assert [type(layer[0]) for layer in states.layers] == [State, KeysValues, State, KeysValues]


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
    def breaks(_model: Any, _tokens: int, _kv_bits: int) -> list[Any]:
        raise RuntimeError("shapes don't fit")

    monkeypatch.setattr(worker_model, "_prefill", breaks)
    with pytest.raises(ModelError, match="shapes don't fit"):
        load_saved(save(tmp_path, "llama"))
