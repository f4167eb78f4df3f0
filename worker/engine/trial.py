"""Finds out by trying how a model's rows can decode side by side, and whether its prompts can be padded.

Whatever a family's code does with offsets, masks and caches: what agrees with each row alone, up to rounding,
is used, and what doesn't isn't. So a family's claim to batch is true.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx

from worker.engine.grouping import Row
from worker.engine.hooks import Hooks, Way, callers, hookable, restore
from worker.engine.kinds import KeysValues
from worker.engine.row_batch import Layout, RowBatch
from worker.engine.row_caches import Prefilled

# Two rows that share a group, one that stands alone, and one whose prompt is a single token.
_PROMPTS: Final = ((3, 4, 5, 6, 7, 8, 9), (11, 12, 13), (3, 9), (5,))
_AGREEMENT: Final = 1e-3
_AGREEMENT_ROUNDED: Final = 0.25
# So little room that the longest prompt has a group of its own.
_PAD_TOKENS: Final = 4
# What stands in slots that nobody may see: large, so that whoever looks at it is found out.
_GARBAGE: Final = 30.0
_REFUSALS: Final = (ValueError, TypeError, AttributeError, LookupError, RuntimeError, AssertionError)

NewCaches = Callable[[int], list[Any]]


@dataclass(frozen=True, slots=True)
class Trial:
    """A model, what makes caches for a row of so many tokens, and the layout that is tried."""

    model: Any
    new_caches: NewCaches
    layout: Layout

    def _batch(self, *, by_rows: bool = False) -> RowBatch:
        costs = dataclasses.replace(self.layout.costs, pad_tokens=_PAD_TOKENS)
        return RowBatch(Layout(self.layout.layers, costs, by_rows, self.layout.packed), bytes_max=0)

    def way(self) -> Way | None:
        """Put the first way in place that agrees, and return it; None if none does."""
        restore(self.model)
        alone = mx.stack([self._alone(ids) for ids in _PROMPTS])  # before anything is changed
        hooks = Hooks()
        for way in Way:
            self._put_in_place(hooks, way)
            if self._agrees(way, alone):
                return way
            hooks.remove()
        return None

    def pads_prompts(self) -> bool:
        """Whether prompts of different lengths can be prefilled as one batch, padded on the right."""
        one, other = _PROMPTS[0], _PROMPTS[1]
        alone = [self._alone(ids) for ids in (one, other)]
        caches = self.new_caches(len(one))
        ids = [one[:-1], other[:-1] + (0,) * (len(one) - len(other))]
        try:
            prefill_together(self.model, caches, ids, [len(one) - 1, len(other) - 1])
            batch = self._batch(by_rows=self.layout.by_rows)
            rows: dict[Row, Prefilled] = {
                ids: Prefilled(caches, row, len(ids) - 1, padded=True, is_last_use=False)
                for row, ids in enumerate((one, other))
            }
            batch.change((), rows, 0)
            return self._close(self._together(batch), mx.stack(alone))
        except _REFUSALS:
            return False

    def _put_in_place(self, hooks: Hooks, way: Way) -> None:
        if way is Way.HOOKED:
            hooks.hook(hookable(self.model))
        else:
            caches = self.new_caches(len(_PROMPTS[0]))
            hooks.split(callers(caches, lambda: self._run(_PROMPTS[0], caches)))

    def _agrees(self, way: Way, alone: mx.array) -> bool:
        batch = self._batch(by_rows=way is Way.BY_ROWS)
        joining: dict[Row, Prefilled] = {}
        for ids in _PROMPTS:
            caches = self.new_caches(len(ids))
            self._run(ids[:-1], caches)
            joining[ids] = Prefilled(caches, 0, len(ids) - 1)
        try:
            batch.change((), joining, 0)
            batch.spoil_unused(_GARBAGE)
            return self._close(self._together(batch), alone)
        except _REFUSALS:
            return False

    def _alone(self, ids: Sequence[int]) -> mx.array:
        """Return the logits of a prompt's last token, float32 (vocabulary,), as the row alone has them."""
        caches = self.new_caches(len(ids))
        self._run(ids[:-1], caches)
        logits: mx.array = self.model(mx.array([ids[-1:]]), cache=caches)[0, -1]
        mx.eval(logits)
        return logits

    def _together(self, batch: RowBatch) -> mx.array:
        """Return the logits of the rows' last tokens, (rows, vocabulary), in the order of _PROMPTS."""
        batch.begin_step(0)
        inputs = mx.array([ids[-1:] for ids in batch.rows])  # type: ignore[index]  # the rows are prompts here
        logits: mx.array = self.model(inputs, cache=batch.layers)[:, -1]
        order = [batch.rows.index(ids) for ids in _PROMPTS if ids in batch.rows]
        return logits[mx.array(order)]

    def _close(self, one: mx.array, other: mx.array) -> bool:
        """Whether logits are the same but for rounding, which is coarse in any type but float32."""
        kinds = [kind for layer in self.layout.layers for kind in layer if isinstance(kind, KeysValues)]
        is_fine = all(kind.dtype == mx.float32 and not kind.bits for kind in kinds)
        allowed = _AGREEMENT if is_fine and one.dtype == mx.float32 else _AGREEMENT_ROUNDED
        one, other = one.astype(mx.float32), other.astype(mx.float32)
        difference = mx.linalg.norm(one - other, axis=-1) / mx.maximum(mx.linalg.norm(other, axis=-1), 1e-6)
        return bool((difference <= allowed).all().item())

    def _run(self, ids: Sequence[int], caches: list[Any]) -> None:
        if ids:
            self.model(mx.array([ids]), cache=caches)
            mx.eval([cache.state for cache in caches])


def prefill_together(model: Any, caches: list[Any], ids: list[Any], lengths: list[int]) -> None:
    """Prefill prompts, padded on the right to one length, as one batch; states stop at each row's own end."""
    states = [part for part in Prefilled(caches, 0).parts if hasattr(part, "prepare")]
    if len(set(lengths)) > 1:
        for part in states:
            part.prepare(lengths=lengths)
    model(mx.array(ids), cache=caches)
    for part in states:
        part.finalize()
