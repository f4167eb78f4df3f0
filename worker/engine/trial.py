"""Finds out by trying how a model's rows can decode side by side, and how its prompts prefill together.

Whatever a family's code does with offsets, masks and caches: what agrees with each row alone, up to rounding,
is used, and what doesn't isn't. So a family's claim to batch is true.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, cast

import mlx.core as mx

from worker.death import speaks_of_memory
from worker.engine.grouping import Row
from worker.engine.hooks import Hooks, Way, callers, hookable, restore
from worker.engine.kinds import KeysValues
from worker.engine.row_batch import Layout, RowBatch
from worker.engine.row_caches import Prefilled

# Two rows that share a group, one that stands alone, and one whose prompt is a single token.
_PROMPTS: Final = ((3, 4, 5, 6, 7, 8, 9), (11, 12, 13), (3, 9), (5,))
_SAME_LENGTH: Final = (12, 3, 10, 4, 11, 5, 9)
# In float32. Where rounding is coarse it is measured: by how much a row differs from itself, cut otherwise.
_AGREEMENT: Final = 1e-3
_ROUNDED_LEAST: Final = 0.03
_ROUNDED_MOST: Final = 0.25
_ROUNDED_FACTOR: Final = 4.0
# So little room that the longest prompt has a group of its own.
_PAD_TOKENS: Final = 4
# What stands in slots that nobody may see: large, so that whoever looks at it is found out.
GARBAGE: Final = 30.0
# Logits beyond this are no numbers but marks of what must not be drawn.
_NUMBER_MAX: Final = 1e30
REFUSALS: Final = (
    *(ValueError, TypeError, AttributeError, LookupError, RuntimeError),
    *(AssertionError, ArithmeticError, NameError),
)
# Attention modules of which it is known that they don't look at how many slots a group has; a short prompt
# wouldn't show it. Any other is called row by row.
_SPLITS: Final = frozenset(
    f"mlx_lm.models.{name}"
    for name in (
        *("bailing_moe_v3", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"),
        *("kimi_linear", "longcat_flash", "mistral4"),
    )
)


def refused(problem: Exception) -> None:
    """Take note that a family can't do something. Want of memory says nothing of it, and is raised again."""
    if speaks_of_memory(repr(problem)):
        raise problem


NewCaches = Callable[[int], list[Any]]
Ids = tuple[int, ...]


class Together(Enum):
    """Which prompts may be prefilled as one batch."""

    PADDED = "of any lengths, padded on the right"
    EQUAL = "of one length"
    NEVER = "none"


@dataclass(frozen=True, slots=True)
class Trial:
    """A model, what makes caches for a row of so many tokens, and the layout that is tried.

    `known` are logits of prompts alone, and whether they came in pieces: trials of one model may share them.
    """

    model: Any
    new_caches: NewCaches
    layout: Layout
    vocabulary: int
    on_progress: Callable[[], None]
    known: dict[tuple[Ids, bool], mx.array] = dataclasses.field(default_factory=dict)

    def way(self) -> Way | None:
        """Put the first way in place that agrees, and return it; None if none does."""
        restore(self.model)
        prompts = [self.ids_of(ids) for ids in _PROMPTS]
        alone = [self.alone(ids) for ids in prompts]  # before anything is changed
        hooks = Hooks()
        for way in Way:
            self.on_progress()
            try:
                if self._put_in_place(hooks, way) and self._agrees(way, prompts, alone):
                    return way
            except REFUSALS as problem:
                refused(problem)  # what a family can't do is what is to be found out here
            hooks.remove()
        return None

    def put_back(self, way: Way) -> bool:
        """Put a way in place that has agreed before; False if the model's modules won't have it."""
        restore(self.model)
        hooks = Hooks()
        try:
            if self._put_in_place(hooks, way):
                return True
        except REFUSALS as problem:
            refused(problem)  # it is another model than it was
        hooks.remove()
        return False

    def together(self) -> Together:
        """Return which prompts may be prefilled as one batch."""
        for together, ids in ((Together.PADDED, _PROMPTS[1]), (Together.EQUAL, _SAME_LENGTH)):
            self.on_progress()
            try:
                if self._prefills([self.ids_of(_PROMPTS[0]), self.ids_of(ids)]):
                    return together
            except REFUSALS as problem:
                refused(problem)  # likewise
        return Together.NEVER

    def ids_of(self, ids: Ids) -> Ids:
        return tuple(token % self.vocabulary for token in ids)

    def batch(self, *, by_rows: bool) -> RowBatch:
        costs = dataclasses.replace(self.layout.costs, pad_tokens=_PAD_TOKENS)
        return RowBatch(dataclasses.replace(self.layout, costs=costs, by_rows=by_rows), bytes_max=0)

    def _put_in_place(self, hooks: Hooks, way: Way) -> bool:
        """Change the model's modules; False where this way isn't for them."""
        if way is Way.HOOKED:
            hooks.hook(hookable(self.model))
            return True
        ids = self.ids_of(_PROMPTS[0])
        caches = self.new_caches(len(ids))
        modules = callers(caches, lambda: self.run(ids, caches))
        hooks.split(modules)
        names = {module.__class__.__mro__[1].__module__ for module in modules}
        return way is Way.BY_ROWS or names <= _SPLITS

    def _agrees(self, way: Way, prompts: list[Ids], alone: list[mx.array]) -> bool:
        batch = self.batch(by_rows=way is Way.BY_ROWS)
        joining: dict[Row, Prefilled] = {}
        for row, ids in enumerate(prompts):
            caches = self.new_caches(len(ids))
            self.run(ids[:-1], caches)
            joining[row] = Prefilled(caches, 0, len(ids) - 1)
        batch.change((), joining, 0)
        batch.spoil_unused(GARBAGE)
        return self.agree(self.next_logits(batch, prompts), mx.stack(alone))

    def _prefills(self, prompts: list[Ids]) -> bool:
        longest = max(len(ids) - 1 for ids in prompts)
        caches = self.new_caches(longest)
        padded = [ids[:-1] + ids[:1] * (longest + 1 - len(ids)) for ids in prompts]
        prefill_together(self.model, caches, padded, [len(ids) - 1 for ids in prompts])
        batch = self.batch(by_rows=self.layout.by_rows)
        rows: dict[Row, Prefilled] = {
            row: Prefilled(caches, row, len(ids) - 1, padded=True, is_last_use=False)
            for row, ids in enumerate(prompts)
        }
        batch.change((), rows, 0)
        alone = mx.stack([self.alone(ids) for ids in prompts])
        return self.agree(self.next_logits(batch, prompts), alone)

    def alone(self, ids: Ids, *, in_pieces: bool = False) -> mx.array:
        """Return the logits of a prompt's last token, (vocabulary,), as the row alone has them."""
        if (ids, in_pieces) not in self.known:
            self.known[ids, in_pieces] = self._alone(ids, in_pieces=in_pieces)
        return self.known[ids, in_pieces]

    def _alone(self, ids: Ids, *, in_pieces: bool) -> mx.array:
        caches = self.new_caches(len(ids))
        pieces = [(token,) for token in ids[:-1]] if in_pieces else [ids[:-1]]
        for piece in pieces:
            self.run(piece, caches)
        logits: mx.array = self.model(mx.array([ids[-1:]]), cache=caches)[0, -1]
        mx.eval(logits)
        return logits

    def next_logits(self, batch: RowBatch, prompts: list[Ids]) -> mx.array:
        """Return the logits of the prompts' last tokens, (rows, vocabulary); rows are named by number."""
        batch.begin_step(0)
        order = [batch.rows.index(row) for row in range(len(prompts))]
        inputs = mx.array([prompts[order.index(place)][-1:] for place in range(len(prompts))])
        logits: mx.array = self.model(inputs, cache=batch.layers)[:, -1]
        return logits[mx.array(order)]

    def agree(self, one: mx.array, other: mx.array) -> bool:
        """Whether logits are the same but for rounding."""
        kinds = [kind for layer in self.layout.layers for kind in layer if isinstance(kind, KeysValues)]
        is_fine = all(kind.dtype == mx.float32 and not kind.bits for kind in kinds)
        allowed = _AGREEMENT
        if not is_fine or one.dtype != mx.float32:
            ids = self.ids_of(_PROMPTS[0])
            noise = _distance(self.alone(ids)[None], self.alone(ids, in_pieces=True)[None])
            allowed = min(_ROUNDED_MOST, max(_ROUNDED_LEAST, _ROUNDED_FACTOR * noise))
        return _distance(one, other) <= allowed

    def run(self, ids: Sequence[int], caches: list[Any]) -> None:
        if ids:
            self.model(mx.array([ids]), cache=caches)
            mx.eval([cache.state for cache in caches])


def _distance(one: mx.array, other: mx.array) -> float:
    """Return the largest relative distance of two rows of logits, (rows, vocabulary).

    What all tokens of a row have in common changes no draw, and would only make differences look small.
    """
    one, other = one.astype(mx.float32), other.astype(mx.float32)
    usable = mx.abs(other) < _NUMBER_MAX
    if not bool(((mx.abs(one) < _NUMBER_MAX) == usable).all().item()):
        return float("inf")
    one, other = _centred(one, usable), _centred(other, usable)
    apart = mx.linalg.norm(one - other, axis=-1) / mx.maximum(mx.linalg.norm(other, axis=-1), 1e-6)
    return float(cast("float", apart.max().item()))


def _centred(logits: mx.array, usable: mx.array) -> mx.array:
    kept = mx.where(usable, logits, 0.0)
    mean = kept.sum(axis=-1, keepdims=True) / mx.maximum(usable.sum(axis=-1, keepdims=True), 1)
    return mx.where(usable, kept - mean, 0.0)


def prefill_together(model: Any, caches: list[Any], ids: list[Any], lengths: list[int]) -> mx.array:
    """Prefill prompts, padded on the right to one length, as one batch; states stop at each row's own end.

    Return the model's logits, which needn't be evaluated.
    """
    states = [part for part in Prefilled(caches, 0).parts if hasattr(part, "prepare")]
    if len(set(lengths)) > 1:
        for part in states:
            part.prepare(lengths=lengths)
    logits: mx.array = model(mx.array(ids), cache=caches)
    for part in states:
        part.finalize()
    return logits
