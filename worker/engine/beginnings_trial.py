"""Finds out by trying whether what a model has computed of a prompt can be used again, and be shared.

Like the rest of the trial: what agrees with a row alone is used, and what doesn't isn't, whatever a family's
code does with its caches.
"""

from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from shared.model_facts import Reuse
from worker.engine.grouping import Row
from worker.engine.hooks import Way
from worker.engine.kinds import State
from worker.engine.restored import put_behind, restore
from worker.engine.row_caches import Prefilled
from worker.engine.slabs import Slab, Snapshot, source_of
from worker.engine.trial import GARBAGE, REFUSALS, Ids, Trial, refused
from worker.prefixes.blocks import Run

_BEGINNING: Final = (3, 4, 5, 6, 7, 8, 9, 11, 12)
# One in the same group as another, one longer, one that is a single token behind the beginning.
_ENDS: Final = ((13, 2), (5, 12, 4), (9, 3, 4, 11, 6, 8, 2, 7), (10,))


@dataclass(frozen=True, slots=True)
class _Block:
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Stands in for a lease of the store."""

    slab: Slab
    blocks: tuple[_Block, ...]

    @property
    def tokens(self) -> int:
        return self.slab.tokens

    def runs(self) -> list[Run]:
        return [Run(self.slab, 0, self.slab.tokens)]

    def release(self) -> None:
        """Nothing is held by it."""


@dataclass(frozen=True, slots=True)
class BeginningsTrial:
    """A model whose attention is done in this way."""

    trial: Trial
    way: Way

    def reuse(self) -> Reuse:
        """Return what of a prompt can be used again."""
        self.trial.on_progress()
        try:
            if not self._is_restored():
                return "none"
        except REFUSALS as problem:
            refused(problem)
            return "none"  # what a family can't do is what is to be found out here
        return "any" if self._is_cuttable else "checkpoints"

    def why_not_shared(self) -> str:
        """Return why rows can't hold what they have in common once, or nothing if they can."""
        if self.way is not Way.HOOKED:
            return "its attention modules do more with keys and values than attend to them"
        if any(kind.span is not None for kind in self._kinds):
            return "its layers have windows"
        self.trial.on_progress()
        try:
            return "" if self._is_shared() else "rows behind one beginning give other logits than each alone"
        except REFUSALS as problem:
            refused(problem)
            return f"attention behind a beginning can't be done apart: {type(problem).__name__}"

    @property
    def _kinds(self) -> list[Any]:
        return self.trial.layout.keys_values

    @property
    def _is_cuttable(self) -> bool:
        kinds = [kind for layer in self.trial.layout.layers for kind in layer]
        return not any(isinstance(kind, State) or kind.span is not None for kind in kinds)

    def _prompts(self) -> list[Ids]:
        return [self.trial.ids_of((*_BEGINNING, *end)) for end in _ENDS]

    def _beginning(self) -> tuple[Slab, Snapshot]:
        caches = self.trial.new_caches(len(_BEGINNING))
        self.trial.run(self.trial.ids_of(_BEGINNING), caches)
        source = source_of(Prefilled(caches, 0, len(_BEGINNING)), self._kinds)
        return source.slab(0, source.length), source.snapshot()

    def _is_restored(self) -> bool:
        """Whether a row goes on from what was kept as it does from what it has computed itself."""
        slab, snapshot = self._beginning()
        prompts = self._prompts()
        restored = []
        for ids in prompts:
            caches = self.trial.new_caches(len(ids))
            parts = Prefilled(caches, 0).parts
            is_cuttable = self._is_cuttable
            run = Run(slab, 0, slab.tokens)
            restore(parts, self._kinds, [run], slab.tokens, None if is_cuttable else snapshot)
            self.trial.run(ids[slab.tokens : -1], caches)
            restored.append(self.trial.model(mx.array([ids[-1:]]), cache=caches)[0, -1])
        return self.trial.agree(mx.stack(restored), mx.stack([self.trial.alone(ids) for ids in prompts]))

    def _is_shared(self) -> bool:
        """Whether rows that prefill and decode behind one beginning do so as each does alone."""
        slab, snapshot = self._beginning()
        whole = _Beginning(slab, (_Block(0, 4), _Block(4, slab.tokens)))
        prompts = self._prompts()
        batch = self.trial.batch(by_rows=False)
        joining: dict[Row, Prefilled] = {}
        for row, ids in enumerate(prompts):
            caches = put_behind(self.trial.new_caches(len(ids)), self._kinds, whole, 1, len(ids))
            restore(Prefilled(caches, 0).parts, self._kinds, [], slab.tokens, snapshot)
            self.trial.run(ids[slab.tokens : -1], caches)
            joining[row] = Prefilled(caches, 0, len(ids) - 1, base=whole, first=slab.tokens)
        # One more that has nothing in common with them, and one whose beginning is its own as well.
        for ids in (self.trial.ids_of((2, 7, 3)), prompts[1]):
            caches = self.trial.new_caches(len(ids))
            self.trial.run(ids[:-1], caches)
            joining[len(prompts)] = Prefilled(caches, 0, len(ids) - 1)
            prompts.append(ids)
        batch.change((), joining, 0)
        batch.spoil_unused(GARBAGE)
        alone = mx.stack([self.trial.alone(ids) for ids in prompts])
        return self.trial.agree(self.trial.next_logits(batch, prompts), alone)
