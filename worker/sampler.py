"""Drawing tokens: one vectorised call for the whole batch, each row with its own parameters and noise.

A token is drawn by inverting the cumulative distribution at the row's uniform number, so a row's token
depends on its own logits, parameters and number only, never on its neighbours. Rows are taken in four kinds,
and only a row that asks for sorting pays for it:

greedy   the most likely token
plain    temperature and min_p: the distribution in vocabulary order, no sort
narrow   top_p, or a top_k of at most NARROW: the NARROW most likely tokens, sorted
wide     a larger top_k: a full sort

A narrow row whose top_p reaches beyond its NARROW tokens is not covered. `Draw.covered` says so, and `redraw`
gives the exact answer by a full sort; that is rare (flat distributions), and the caller pays one more step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from shared.sampling import Sampling

NARROW: Final = 512

_KINDS: Final = ("greedy", "plain", "narrow", "wide")


@dataclass(frozen=True, slots=True)
class Draw:
    """A step's tokens, int32 (rows,). `covered` is bool (rows,), or None where every row surely is."""

    tokens: mx.array
    covered: mx.array | None


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters of rows of one kind, each float32 or int32 (rows, 1)."""

    temperature: mx.array
    top_k: mx.array
    top_p: mx.array
    min_p: mx.array
    any_unlimited: bool

    @classmethod
    def of(cls, rows: Sequence[Sampling], vocabulary: int) -> "_Parameters":
        def column(values: list[float]) -> mx.array:
            return mx.array(values, dtype=mx.float32)[:, None]

        return cls(
            temperature=column([row.temperature for row in rows]),
            top_k=mx.array([row.top_k or vocabulary for row in rows], dtype=mx.int32)[:, None],
            top_p=column([row.top_p for row in rows]),
            min_p=column([row.min_p for row in rows]),
            any_unlimited=not all(0 < row.top_k < vocabulary for row in rows),
        )


def kind_of(row: Sampling, vocabulary: int) -> str:
    """Return which of the four ways a row's tokens are drawn."""
    if row.greedy:
        return "greedy"
    limited = 0 < row.top_k < vocabulary
    if limited and row.top_k > NARROW:
        return "wide"
    return "narrow" if limited or row.top_p < 1 else "plain"


class BatchSampler:
    """Draws for a fixed list of rows; made anew when the membership of the batch changes."""

    def __init__(self, rows: Sequence[Sampling], vocabulary: int) -> None:
        self._vocabulary = vocabulary
        kinds = [kind_of(row, vocabulary) for row in rows]
        self._members = {kind: [i for i, k in enumerate(kinds) if k == kind] for kind in _KINDS}
        self._parameters = {
            kind: _Parameters.of([rows[i] for i in members], vocabulary)
            for kind, members in self._members.items()
            if members and kind != "greedy"
        }
        self._all = _Parameters.of(rows, vocabulary)
        order = [i for kind in _KINDS for i in self._members[kind]]
        self._back = mx.argsort(mx.array(order, dtype=mx.int32))
        self.needs_noise = any(kind != "greedy" for kind in kinds)
        self.may_need_redraw = any(
            kind == "narrow" and row.top_k == 0 for kind, row in zip(kinds, rows, strict=True)
        )

    def draw(self, logits: mx.array, noise: list[float]) -> Draw:
        """Draw a token for each row. `logits` (rows, vocabulary); `noise` one number of [0, 1) a row."""
        logits = logits.astype(mx.float32)
        numbers = mx.array(noise, dtype=mx.float32)[:, None]
        draws = [self._draw_kind(kind, logits, numbers) for kind in _KINDS if self._members[kind]]
        if len(draws) == 1:
            return draws[0]
        tokens = mx.concatenate([draw.tokens for draw in draws])[self._back]
        if not self.may_need_redraw:
            return Draw(tokens, None)
        sure = [
            mx.ones(draw.tokens.shape, dtype=mx.bool_) if draw.covered is None else draw.covered
            for draw in draws
        ]
        return Draw(tokens, mx.concatenate(sure)[self._back])

    def redraw(self, logits: mx.array, noise: list[float], draw: Draw) -> mx.array:
        """Return the tokens, with those of rows that were not covered drawn by a full sort."""
        assert draw.covered is not None
        numbers = mx.array(noise, dtype=mx.float32)[:, None]
        exact = _draw_sorted(logits.astype(mx.float32), self._all, numbers, self._vocabulary)
        return mx.where(draw.covered, draw.tokens, exact.tokens)

    def _draw_kind(self, kind: str, logits: mx.array, numbers: mx.array) -> Draw:
        members = self._members[kind]
        if len(members) < logits.shape[0]:
            chosen = mx.array(members, dtype=mx.int32)
            logits, numbers = logits[chosen], numbers[chosen]
        if kind == "greedy":
            return Draw(mx.argmax(logits, axis=-1).astype(mx.int32), None)
        parameters = self._parameters[kind]
        if kind == "plain":
            return Draw(_draw_plain(logits, parameters, numbers), None)
        width = NARROW if kind == "narrow" else self._vocabulary
        draw = _draw_sorted(logits, parameters, numbers, min(width, self._vocabulary))
        return draw if kind == "narrow" and self.may_need_redraw else Draw(draw.tokens, None)


def _weights(logits: mx.array, temperature: mx.array) -> mx.array:
    """Return unnormalised probabilities, the most likely token's being 1."""
    return mx.exp((logits - logits.max(axis=-1, keepdims=True)) / temperature)


def _invert(weights: mx.array, numbers: mx.array) -> mx.array:
    """Return the index at which each row's cumulative weight passes its number's share of the total."""
    cumulative = mx.cumsum(weights, axis=-1)
    target = numbers * cumulative[:, -1:]
    return (cumulative <= target).sum(axis=-1).astype(mx.int32)


def _draw_plain(logits: mx.array, rows: _Parameters, numbers: mx.array) -> mx.array:
    weights = _weights(logits, rows.temperature)
    return _invert(mx.where(weights >= rows.min_p, weights, 0.0), numbers)


def _draw_sorted(logits: mx.array, rows: _Parameters, numbers: mx.array, width: int) -> Draw:
    """Draw among the `width` most likely tokens, most likely first: top_k, then top_p, then min_p.

    top_p keeps the tokens before which less than top_p of the mass lies; the mass is that of the top_k
    tokens, or of the whole vocabulary where top_k doesn't limit.
    """
    vocabulary = logits.shape[-1]
    if width < vocabulary:
        likely = mx.argpartition(-logits, kth=width - 1, axis=-1)[:, :width]
        order = mx.argsort(-mx.take_along_axis(logits, likely, axis=-1), axis=-1)
        likely = mx.take_along_axis(likely, order, axis=-1)
    else:
        likely = mx.argsort(-logits, axis=-1)
    weights = _weights(mx.take_along_axis(logits, likely, axis=-1), rows.temperature)
    weights = mx.where(mx.arange(width)[None] < rows.top_k, weights, 0.0)
    limited = rows.top_k <= width
    mass = weights.sum(axis=-1, keepdims=True)
    if rows.any_unlimited:
        mass = mx.where(limited, mass, _weights(logits, rows.temperature).sum(axis=-1, keepdims=True))
    cumulative = mx.cumsum(weights, axis=-1)
    wanted = rows.top_p * mass
    kept = mx.where((cumulative - weights < wanted) & (weights >= rows.min_p), weights, 0.0)
    covered = limited | (cumulative[:, -1:] >= wanted) | (width == vocabulary)
    tokens = mx.take_along_axis(likely, _invert(kept, numbers)[:, None], axis=-1)
    return Draw(tokens[:, 0].astype(mx.int32), covered[:, 0])
