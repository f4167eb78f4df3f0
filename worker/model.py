"""Loading a model, and finding out by trying it what it costs and whether its family truly batches."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache
from mlx_lm.utils import load_model

from shared.errors import ModelError
from shared.model_facts import ModelFacts
from shared.model_folder import ModelFolder
from worker.cache_kinds import TOKENS_STEP, grow_by, padded, row_costs
from worker.padded import ROWS_STEP, LayerShape, PaddedBatch, Prefilled
from worker.plan import CHUNK_TOKENS_MAX

_WARM_UP_TOKENS: Final = 64
_EVAL_BYTES: Final = 256 << 20
_AGREEMENT: Final = {"float32": 1e-3}
_AGREEMENT_ROUNDED: Final = 0.1


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that has answered once. `shapes` are its layers' caches, or None where it doesn't batch.

    A prefill takes about as long as a decode step, which reads the weights once, and something a token.
    `prefill_bytes` is what the largest chunk takes beside its caches, in proportion to what was measured.
    """

    model: Callable[..., mx.array]
    facts: ModelFacts
    shapes: list[LayerShape] | None
    prefill_ms_per_token: float
    decode_ms_per_step: float
    prefill_bytes: int

    @property
    def arrays(self) -> int:
        """How many arrays the weights are in."""
        return len(_weights(self.model))

    def new_caches(self, tokens: int) -> list[Any]:
        """Make empty caches for one row, one a layer.

        They have room for the `tokens` that are prefilled, allocated once however many chunks they come in.
        A family that batches decodes elsewhere and needs no more; any other goes on in these caches.
        """
        caches = list(make_prompt_cache(self.model))
        grow_by(caches, max(1, tokens) if self.facts.batches else padded(tokens + 1, TOKENS_STEP))
        return caches


def load(folder: ModelFolder, context_tokens: int | None, on_progress: Callable[[], None]) -> LoadedModel:
    """Load the weights and warm up; ModelError in words if the folder can't be served.

    `on_progress` is called again and again while it takes time. The thread that loads must run the steps.
    """
    try:
        model, _config = load_model(Path(folder.path), lazy=True)
        on_progress()
        _read_weights(model, on_progress)
        return _warm_up(model, folder, context_tokens, on_progress)
    except Exception as problem:
        # What is wrong with a folder may show anywhere up to its first answer, as any kind of error.
        raise ModelError(f"{folder.path}: mlx-lm can't run it: {problem!r}") from problem


def _weights(model: Any) -> list[mx.array]:
    return [array for _name, array in cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))]


def _read_weights(model: Any, on_progress: Callable[[], None]) -> None:
    """Read the weights in pieces, so that a slow disk shows as progress and a stuck one doesn't."""
    piece: list[mx.array] = []
    for array in _weights(model):
        piece.append(array)
        if sum(each.nbytes for each in piece) >= _EVAL_BYTES:
            mx.eval(piece)
            piece = []
            on_progress()
    mx.eval(piece)
    on_progress()


def _warm_up(
    model: Any, folder: ModelFolder, context_tokens: int | None, on_progress: Callable[[], None]
) -> LoadedModel:
    probe = _ids(_WARM_UP_TOKENS)
    _prefill(model, probe)
    on_progress()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    started = time.perf_counter()
    caches = _prefill(model, probe)
    prefill_ms = 1000 * (time.perf_counter() - started)
    prefill_bytes = max(0, mx.get_peak_memory() - before) * CHUNK_TOKENS_MAX // _WARM_UP_TOKENS
    on_progress()
    started = time.perf_counter()
    logits = model(mx.array([[1]]), cache=caches)
    mx.eval(logits)
    decode_ms = 1000 * (time.perf_counter() - started)
    on_progress()
    shapes, why_not = _classify(model, caches)
    if shapes is not None and not _batch_agrees(model, shapes):
        shapes, why_not = None, "a batch of two gives other logits than each row alone"
    on_progress()
    costs = row_costs(caches, len(probe) + 1, lambda tokens: _prefill(model, _ids(tokens)))
    facts = ModelFacts(
        fingerprint=folder.fingerprint,
        family=folder.family,
        context_tokens=min(folder.context_tokens, context_tokens or folder.context_tokens),
        vocabulary=int(logits.shape[-1]),
        weights_bytes=sum(array.nbytes for array in _weights(model)),
        kv_bytes_per_token=costs.kv_bytes_per_token,
        kv_pad_tokens=TOKENS_STEP,
        kv_pad_rows=ROWS_STEP if shapes is not None else 1,
        window_tokens=costs.window_tokens,
        window_bytes_per_token=costs.window_bytes_per_token,
        fixed_bytes_per_row=costs.fixed_bytes,
        batches=shapes is not None,
        why_not=why_not,
    )
    per_token_ms = max(prefill_ms - decode_ms, prefill_ms / 4) / len(probe)
    return LoadedModel(model, facts, shapes, per_token_ms, decode_ms, prefill_bytes)


def _ids(tokens: int) -> list[int]:
    return [1 + i % 7 for i in range(tokens)]


def _prefill(model: Any, ids: list[int]) -> list[Any]:
    caches = list(make_prompt_cache(model))
    model(mx.array([ids]), cache=caches)
    mx.eval([cache.state for cache in caches])
    return caches


def _classify(model: Any, caches: list[Any]) -> tuple[list[LayerShape] | None, str]:
    """Return the layers' shapes if every layer is plain attention, else None and why."""
    others = sorted({type(cache).__name__ for cache in caches if type(cache) is not KVCache})
    if others:
        return None, f"its layers use {', '.join(others)}, which this engine runs one row at a time"
    if len(caches) != len(model.layers):
        return None, "its caches aren't one a layer"
    return [_shape_of(cache) for cache in caches], ""


def _shape_of(cache: Any) -> LayerShape:
    return LayerShape(
        heads=cache.keys.shape[1],
        key_width=cache.keys.shape[3],
        value_width=cache.values.shape[3],
        dtype=cache.keys.dtype,
    )


def _batch_agrees(model: Any, shapes: list[LayerShape]) -> bool:
    """Run two rows of different lengths together and alone: the logits must be the same but for rounding.

    This is what makes a family's claim to batch true, whatever its code does with offsets and masks.
    """
    prompts = ([3, 4, 5, 6, 7, 8, 9], [11, 12])
    batch = PaddedBatch(shapes, bytes_max=1 << 60)
    alone = []
    for ids in prompts:
        caches = _prefill(model, ids[:-1])
        batch.join(Prefilled(caches, 0), len(ids) - 1)
        alone.append(model(mx.array([ids[-1:]]), cache=caches)[0, -1])
    batch.begin_step(elsewhere_bytes=0)
    try:
        together = model(mx.array([ids[-1:] for ids in prompts]), cache=batch.layers)[:, -1]
        mx.eval(together, alone)
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError):
        return False
    return _close(together.astype(mx.float32), mx.stack(alone).astype(mx.float32), shapes[0].dtype)


def _close(one: mx.array, other: mx.array, dtype: mx.Dtype) -> bool:
    allowed = _AGREEMENT.get(str(dtype).rsplit(".", 1)[-1], _AGREEMENT_ROUNDED)
    difference = mx.linalg.norm(one - other, axis=-1) / mx.maximum(mx.linalg.norm(other, axis=-1), 1e-6)
    return bool((difference <= allowed).all().item())
