"""What the worker will measure of a model when it loads it, without its weights: costs, kinds, passes.

The worker finds these by running the model. Here the same functions look at the same caches of the same
classes, but before anything is computed: their shapes and types are known as soon as a pass is drawn. So a
plan and a worker can't disagree about bytes of weights and of rows. Two things a graph doesn't say: whether
rows side by side agree with each row alone, which the worker tries, and what a pass really takes.
"""

import dataclasses
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from shared.errors import ModelError
from shared.model_facts import ModelFacts
from shared.model_folder import context_tokens, said_of_text
from worker.engine.estimate_build import Built, Told, build
from worker.engine.estimate_graph import Passes
from worker.engine.joined_attention import SCORES_BYTES
from worker.engine.model import (
    PAD_TOKENS,
    WARM_UP_TOKENS,
    LoadedModel,
    filled,
    layout_of,
    share_of_a_layer,
)
from worker.engine.row_batch import Layout
from worker.engine.row_caches import (
    TOKENS_STEP,
    RowCosts,
    UnknownKindError,
    kind_names,
    kinds_of,
    row_costs,
)
from worker.engine.trial import Together
from worker.engine.working_set import WorkingSet

# Weights of a folder and of its index that differ by less are the same: files have headers.
_SAME_SHARE: Final = 0.01
_NO_PASSES: Final = WorkingSet((1,), (0,), ((0.0,),))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A model as it will be loaded. `weights_from` says where the bytes of its weights are known from.

    `loaded` has the facts; what of them a plan may vary is the longest context: see `at`.
    """

    loaded: LoadedModel
    layers: int
    weights_from: str
    notes: tuple[str, ...]

    @property
    def facts(self) -> ModelFacts:
        return self.loaded.facts

    def at(self, context: int) -> LoadedModel:
        """Return the model as it is with `context_tokens = context`, bounded by its own."""
        context = min(context, self.facts.context_tokens)
        facts = dataclasses.replace(self.facts, context_tokens=context)
        share = share_of_a_layer(self.loaded.layout, self.layers, context)
        return dataclasses.replace(self.loaded, facts=facts, layer_share=share)


def estimate(
    told: Told, kv_bits: int = 0, *, share_tokens: int = 0, as_metal: bool = False, with_passes: bool = True
) -> Estimate:
    """Estimate a model; ModelError in words if it can't be. Nothing is computed, and no weights are read.

    With `as_metal` passes attend as Metal would on a machine that has none. Without passes the model has all
    its facts, but what is to be set aside isn't known.
    """
    built = build(told)
    try:
        found = _estimate(told, built, kv_bits, share_tokens)
        return _with_passes(found, as_metal=as_metal) if with_passes else found
    except ModelError:
        raise
    except Exception as problem:
        # A family's code may fail at a config in any way.
        version = importlib.metadata.version("mlx-lm")
        raise ModelError(f"{told.name}: mlx-lm {version} can't run it: {problem!r}") from problem


def _estimate(told: Told, built: Built, kv_bits: int, share_tokens: int) -> Estimate:
    model = built.model
    caches, vocabulary = _traced(model, kv_bits, told.name)
    costs = row_costs(caches, WARM_UP_TOKENS + 1, lambda tokens: filled(model, tokens, kv_bits))
    layout, why_not = _layout(caches, costs)
    weights_bytes, weights_from, notes = _weights(told, built)
    facts = ModelFacts(
        fingerprint="",
        family=str(told.config.get("model_type", "unknown")),
        context_tokens=context_tokens(said_of_text(told.config, Path(told.name)), Path(told.name)),
        vocabulary=vocabulary,
        weights_bytes=weights_bytes,
        kv_bytes_per_token=costs.kv_bytes_per_token,
        kv_pad_tokens=TOKENS_STEP if layout is None else PAD_TOKENS,
        window_tokens=costs.window_tokens,
        window_bytes_per_token=costs.window_bytes_per_token,
        fixed_bytes_per_row=costs.fixed_bytes,
        batches=layout is not None,
        why_not=why_not,
        caches=kind_names(caches),
        kv_bits=kv_bits,
        shares_from=share_tokens if layout is not None else 0,
    )
    loaded = LoadedModel(model, facts, layout, None, Together.NEVER, None, 0.0, 0.0, _NO_PASSES, 1.0)
    return Estimate(loaded, len(caches), weights_from, (*built.notes, *notes))


def _with_passes(found: Estimate, *, as_metal: bool) -> Estimate:
    passes = Passes(found.loaded.model, found.loaded.new_caches, as_metal)
    working_set, caveat = _passes(passes, found.facts.context_tokens)
    loaded = dataclasses.replace(found.loaded, working_set=working_set)
    return dataclasses.replace(found, loaded=loaded, notes=(*found.notes, *caveat))


def _traced(model: Any, kv_bits: int, name: str) -> tuple[list[Any], int]:
    """Return caches as the worker's first runs leave them, and the width of the logits."""
    caches = filled(model, WARM_UP_TOKENS, kv_bits)
    logits = model(mx.array([[1]]), cache=caches)
    if kv_bits and "quantised" not in kind_names(caches):
        raise ModelError(
            f"{name} with kv_bits = {kv_bits}: its caches ({kind_names(caches)}) are none that can be"
            " quantised"
        )
    return caches, int(logits.shape[-1])


def _layout(caches: list[Any], costs: RowCosts) -> tuple[Layout | None, str]:
    """Return how rows are kept side by side, or None and why they aren't."""
    try:
        return layout_of(caches, kinds_of(caches), costs, by_rows=False), ""
    except UnknownKindError as problem:
        return None, str(problem)


def _weights(told: Told, built: Built) -> tuple[int, str, tuple[str, ...]]:
    """Return the bytes of the weights, where they are known from, and what to know of it.

    An index tells the files' size. What mlx-lm makes of them may be less, where it leaves parts out, and
    more, where it unpacks; the larger figure is the careful one.
    """
    weights_bytes = built.weights_bytes
    if told.folder is not None:
        return weights_bytes, "the headers of its files", ()
    if told.index_bytes <= weights_bytes * (1 - _SAME_SHARE) or not told.index_bytes:
        note = "its index tells fewer bytes than mlx-lm makes of them" if told.index_bytes else ""
        return weights_bytes, "config.json", (note,) if note else ()
    far = told.index_bytes > weights_bytes * (1 + _SAME_SHARE)
    note = "its index tells more bytes than mlx-lm's classes have: parts may be left out when it is loaded"
    return told.index_bytes, "its index", (note,) if far else ()


def _passes(passes: Passes, context: int) -> tuple[WorkingSet, tuple[str, ...]]:
    """Return what passes take; where a graph can't be had, a guess, and a word about it."""
    try:
        return passes.working_set(context), ()
    except (ValueError, RuntimeError) as problem:
        guess = WorkingSet((1,), (0,), ((float(SCORES_BYTES),),))
        return guess, (f"what its passes take is a guess: {problem}",)
