"""Loading a model, and finding out by trying it what it costs and how its rows run side by side."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import CacheList, make_prompt_cache
from mlx_lm.utils import load_model

from shared.errors import ModelError
from shared.model_facts import ModelFacts, room_tokens
from shared.model_folder import ModelFolder
from worker.death import speaks_of_memory
from worker.engine.grouping import PlaceCosts
from worker.engine.hooks import Way
from worker.engine.joined_attention import SCORES_BYTES
from worker.engine.kinds import KeysValues, Kind
from worker.engine.output_head import OutputHead
from worker.engine.probes import Prober, Room, Speed
from worker.engine.row_batch import Layout
from worker.engine.row_caches import (
    TOKENS_STEP,
    RowCosts,
    UnknownKindError,
    grow_by,
    kind_names,
    kinds_of,
    quantise,
    row_costs,
)
from worker.engine.side_by_side import Remembered, SideBySide
from worker.engine.trial import Together, Trial
from worker.engine.working_set import Demand, Reserve, WorkingSet, reserve
from worker.findings import FindingsFile

WARM_UP_TOKENS: Final = 64
_EVAL_BYTES: Final = 256 << 20
# What probes may take where nobody says what is free.
_PROBES_BYTES: Final = 2 << 30
# How often scores of attention to what rows share are there at a time.
_SCORES: Final = 4
# How finely room for tokens is allocated in a group.
PAD_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that has answered once. `layout` is how its rows are kept, None where one row runs at a time.

    `way` is how its attention is done for several groups, and `together` says which prompts may be
    prefilled as one batch. `head` makes logits of one token a row, None where that can't be told from the
    rest of the model. Keys and values are quantised to `kv_bits`, 0 for not.

    A prefill takes about as long as a decode step, which reads the weights once, and something a token.
    `working_set` is what a forward pass takes beside the caches, and `layer_share` the share of all caches
    that is copied, or unpacked, at a time.
    """

    model: Callable[..., mx.array]
    facts: ModelFacts
    layout: Layout | None
    way: Way | None
    together: Together
    head: OutputHead | None
    prefill_ms_per_token: float
    decode_ms_per_step: float
    working_set: WorkingSet
    layer_share: float

    @property
    def arrays(self) -> int:
        """How many arrays the weights are in."""
        return len(_weights(self.model))

    def reserve(self, slots: int, free_bytes: int) -> Reserve:
        """Return what to set aside of the bytes that weights leave, and how long chunks may be by that."""
        rows = slots if self.facts.batches else 1
        shared_bytes = _SCORES * SCORES_BYTES if self.facts.shares_from else 0
        demand = Demand(
            rows, self.facts.context_tokens, self.facts.vocabulary, self.layer_share, shared_bytes
        )
        return reserve(self.working_set, demand, free_bytes)

    def new_caches(self, tokens: int) -> list[Any]:
        """Make empty caches for a row, or rows, of so many tokens that are prefilled, one a layer.

        They have the room that a group of them needs, allocated once however many chunks they come in.
        """
        return _new_caches(self.model, tokens, self.facts.kv_pad_tokens, self.facts.kv_bits)


def load(
    folder: ModelFolder,
    context_tokens: int | None,
    on_progress: Callable[[], None],
    kv_bits: int = 0,
    *,
    limit_bytes: int | None = None,
    share_tokens: int = 0,
    findings: FindingsFile | None = None,
) -> LoadedModel:
    """Load the weights and warm up; ModelError in words if the folder can't be served.

    `on_progress` is called again and again while it takes time. The thread that loads must run the steps.
    With all that is loaded no more than `limit_bytes` are taken to find out what prefill takes. Rows share
    beginnings of `share_tokens` or more; 0: nothing that was computed is used again. What `findings` hold of
    this model isn't tried again.
    """
    try:
        model, _config = load_model(Path(folder.path), lazy=True)
        on_progress()
        _read_weights(model, on_progress)
        return warm_up(
            model,
            folder,
            context_tokens,
            on_progress,
            kv_bits,
            limit_bytes=limit_bytes,
            share_tokens=share_tokens,
            findings=findings,
        )
    except ModelError:
        raise
    except Exception as problem:
        if speaks_of_memory(repr(problem)):
            raise  # a death like any other for want of memory, not a model that can't be served
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


def warm_up(
    model: Any,
    folder: ModelFolder,
    context_tokens: int | None,
    on_progress: Callable[[], None],
    kv_bits: int = 0,
    *,
    limit_bytes: int | None = None,
    share_tokens: int = 0,
    findings: FindingsFile | None = None,
) -> LoadedModel:
    """Run a model whose weights are in memory, and learn its costs and how its rows run side by side."""
    context_tokens = min(folder.context_tokens, context_tokens or folder.context_tokens)
    caches, speed, vocabulary = _first_runs(model, folder, on_progress, kv_bits)
    names = kind_names(caches)
    costs = row_costs(caches, WARM_UP_TOKENS + 1, lambda tokens: _prefill(model, tokens, kv_bits))
    known: dict[tuple[tuple[int, ...], bool], mx.array] = {}
    remembered = Remembered.of(findings or FindingsFile(), f"{folder.fingerprint}/{kv_bits}")
    side_by_side = SideBySide.found(
        _layout(caches, costs),
        lambda layout: Trial(
            model,
            lambda tokens: _new_caches(model, tokens, PAD_TOKENS, kv_bits),
            layout,
            vocabulary,
            on_progress,
            known,
        ),
        remembered.findings,
    )
    layout = side_by_side.layout
    on_progress()
    facts = ModelFacts(
        fingerprint=folder.fingerprint,
        family=folder.family,
        context_tokens=context_tokens,
        vocabulary=vocabulary,
        weights_bytes=sum(array.nbytes for array in _weights(model)),
        kv_bytes_per_token=costs.kv_bytes_per_token,
        kv_pad_tokens=TOKENS_STEP if layout is None else PAD_TOKENS,
        window_tokens=costs.window_tokens,
        window_bytes_per_token=costs.window_bytes_per_token,
        fixed_bytes_per_row=costs.fixed_bytes,
        batches=layout is not None,
        why_not=side_by_side.why_not,
        caches=names,
        kv_bits=kv_bits,
        reuse=side_by_side.reuse if share_tokens else "none",
        shares_from=share_tokens if side_by_side.shares else 0,
        why_not_shared=side_by_side.why_not_shared if share_tokens else "nothing of prompts is kept",
    )
    free_bytes = _PROBES_BYTES if limit_bytes is None else limit_bytes - mx.get_active_memory()
    working_set = remembered.working_set(context_tokens, free_bytes) or _probed(
        model, facts, speed, free_bytes, on_progress
    )
    remembered.keep(side_by_side, context_tokens, free_bytes, working_set)
    return LoadedModel(
        model,
        facts,
        layout,
        side_by_side.way,
        side_by_side.together,
        side_by_side.head,
        prefill_ms_per_token=speed.ms_per_token,
        decode_ms_per_step=speed.fixed_ms,
        working_set=working_set,
        layer_share=share_of_a_layer(layout, len(caches), context_tokens),
    )


def _probed(
    model: Any, facts: ModelFacts, speed: Speed, free_bytes: int, on_progress: Callable[[], None]
) -> WorkingSet:
    """Return what forward passes take beside the caches, probed within so many bytes."""
    bytes_per_token = facts.kv_bytes_per_token + facts.window_bytes_per_token
    prober = Prober(
        model, lambda tokens: _new_caches(model, tokens, facts.kv_pad_tokens, facts.kv_bits), on_progress
    )
    room = Room(facts.context_tokens, facts.window_tokens, bytes_per_token, free_bytes)
    return prober.working_set(speed, room)


def _first_runs(
    model: Any, folder: ModelFolder, on_progress: Callable[[], None], kv_bits: int
) -> tuple[list[Any], Speed, int]:
    """Let a model run for the first times; return caches it has filled, its speed, and its vocabulary."""
    _check_quantised(_first_prefill(model, folder, kv_bits), folder, kv_bits)
    on_progress()
    started = time.perf_counter()
    caches = _prefill(model, WARM_UP_TOKENS, kv_bits)
    prefill_ms = 1000 * (time.perf_counter() - started)
    on_progress()
    started = time.perf_counter()
    logits = model(mx.array([[1]]), cache=caches)
    mx.eval(logits)
    decode_ms = 1000 * (time.perf_counter() - started)
    on_progress()
    per_token_ms = max(prefill_ms - decode_ms, prefill_ms / 4) / WARM_UP_TOKENS
    return caches, Speed(decode_ms, per_token_ms), int(logits.shape[-1])


def _first_prefill(model: Any, folder: ModelFolder, kv_bits: int) -> list[Any]:
    try:
        return _prefill(model, WARM_UP_TOKENS, kv_bits)
    except ValueError as problem:
        if not kv_bits:
            raise
        raise ModelError(f"{folder.path} with kv_bits = {kv_bits}: {problem}") from problem


def _check_quantised(caches: list[Any], folder: ModelFolder, kv_bits: int) -> None:
    """Raise ModelError where nothing was quantised that should be."""
    names = kind_names(caches)
    if kv_bits and "quantised" not in names:
        raise ModelError(
            f"{folder.path} with kv_bits = {kv_bits}: its caches ({names}) are none that can be quantised"
        )


def _prefill(model: Any, tokens: int, kv_bits: int) -> list[Any]:
    """Prefill some tokens, in caches that grow as mlx-lm's do."""
    caches = filled(model, tokens, kv_bits)
    mx.eval([cache.state for cache in caches])
    return caches


def filled(model: Any, tokens: int, kv_bits: int) -> list[Any]:
    """Return caches with so many tokens, of which nothing but shapes is known yet."""
    caches = quantise(list(make_prompt_cache(model)), kv_bits)
    grow_by(caches, TOKENS_STEP)
    model(mx.array([[1 + place % 7 for place in range(tokens)]]), cache=caches)
    return caches


def _new_caches(model: Any, tokens: int, pad_tokens: int, kv_bits: int) -> list[Any]:
    caches = quantise(list(make_prompt_cache(model)), kv_bits)
    grow_by(caches, room_tokens(tokens, pad_tokens))
    return caches


def share_of_a_layer(layout: Layout | None, layers: int, context_tokens: int) -> float:
    """Return the largest layer's share of all caches, as it is while it is copied or unpacked.

    Of rows at their longest: there layers that keep everything are far larger than those with a window.
    """
    if layout is None:
        return 1 / layers
    kinds = [kind for layer in layout.layers for kind in layer]
    largest = max(_bytes_of(kind, context_tokens, unpacked=True) for kind in kinds)
    return largest / max(1, sum(_bytes_of(kind, context_tokens, unpacked=False) for kind in kinds))


def _bytes_of(kind: Kind, context_tokens: int, *, unpacked: bool) -> int:
    if not isinstance(kind, KeysValues):
        return kind.nbytes
    plain = kind.heads * (kind.key_width + kind.value_width) * kind.dtype.size
    return kind.slots(context_tokens) * (plain if unpacked else kind.bytes_per_token)


def _layout(caches: list[Any], costs: RowCosts) -> Layout | str:
    """Return how rows would be kept side by side, or why they can't be."""
    try:
        return layout_of(caches, kinds_of(caches), costs, by_rows=False)
    except UnknownKindError as problem:
        return str(problem)


def layout_of(caches: list[Any], layers: list[list[Kind]], costs: RowCosts, *, by_rows: bool) -> Layout:
    place = PlaceCosts(
        costs.kv_bytes_per_token, costs.window_tokens, costs.window_bytes_per_token, PAD_TOKENS
    )
    lists = frozenset(number for number, cache in enumerate(caches) if isinstance(cache, CacheList))
    # Metal's kernels multiply by packed numbers, as mlx-lm has them do. On a CPU, and on CUDA, where it was
    # measured, unpacking first is several times as fast.
    packed = mx.metal.is_available() and mx.default_device() == mx.gpu
    return Layout(tuple(map(tuple, layers)), place, by_rows, packed, lists)
