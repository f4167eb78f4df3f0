"""Drawing tokens: one vectorised call for the whole batch, each row with its own parameters and noise.

A row's token is the one with the highest sum of logit / temperature and Gumbel noise, which draws from
the softmax (Gumbel 1954; Maddison et al., "A* Sampling", 2014). The noise of a token id hashes the row's key
and the id, so a row's token depends on its own logits, parameters and key only. The last bits of logits
differ between batches; they turn a draw only where the two highest sums are equal to those bits. (Inverting a
cumulative distribution, which needs one number a row, turns on them far more often: every token of a
vocabulary moves every boundary after it.)

Rows are taken in four kinds, and only a row that asks for sorting pays for it:

greedy   the most likely token
plain    temperature and min_p
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
_SERIES_BELOW: Final = 0.02
_BELOW_ONE: Final = 1 - 2.0**-24

NoiseKey = tuple[int, int]


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
    log_min_p: mx.array
    any_unlimited: bool

    @classmethod
    def of(cls, rows: Sequence[Sampling], vocabulary: int) -> "_Parameters":
        def column(values: list[float]) -> mx.array:
            return mx.array(values, dtype=mx.float32)[:, None]

        return cls(
            temperature=column([row.temperature for row in rows]),
            top_k=mx.array([row.top_k or vocabulary for row in rows], dtype=mx.int32)[:, None],
            top_p=column([row.top_p for row in rows]),
            log_min_p=mx.log(column([row.min_p for row in rows])),
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
        self._rows = tuple(rows)
        self._vocabulary = vocabulary
        kinds = [kind_of(row, vocabulary) for row in rows]
        self._members = {kind: [i for i, k in enumerate(kinds) if k == kind] for kind in _KINDS}
        self._parameters = {
            kind: _Parameters.of([rows[i] for i in members], vocabulary)
            for kind, members in self._members.items()
            if members and kind != "greedy"
        }
        order = [i for kind in _KINDS for i in self._members[kind]]
        self._back = mx.argsort(mx.array(order, dtype=mx.int32))
        self.needs_noise = any(kind != "greedy" for kind in kinds)
        self.may_need_redraw = any(
            kind == "narrow" and not 0 < row.top_k < vocabulary for kind, row in zip(kinds, rows, strict=True)
        )

    def draw(self, logits: mx.array, keys: list[NoiseKey]) -> Draw:
        """Draw a token for each row. `logits` (rows, vocabulary); `keys` one of shared.sampling a row."""
        logits = logits.astype(mx.float32)
        noise = mx.array(keys, dtype=mx.uint32)
        draws = [self._draw_kind(kind, logits, noise) for kind in _KINDS if self._members[kind]]
        if len(draws) == 1:
            return draws[0]
        tokens = mx.concatenate([draw.tokens for draw in draws])[self._back]
        if not self.may_need_redraw:
            return Draw(tokens, None)
        return Draw(tokens, mx.concatenate([_covered(draw) for draw in draws])[self._back])

    def redraw(self, logits: mx.array, keys: list[NoiseKey], draw: Draw) -> mx.array:
        """Return the tokens, with those of rows that were not covered drawn by a full sort."""
        assert draw.covered is not None
        noise = mx.array(keys, dtype=mx.uint32)
        parameters = _Parameters.of(self._rows, self._vocabulary)
        exact = _draw_sorted(logits.astype(mx.float32), parameters, noise, self._vocabulary)
        return mx.where(draw.covered, draw.tokens, exact.tokens)

    def _draw_kind(self, kind: str, logits: mx.array, noise: mx.array) -> Draw:
        members = self._members[kind]
        if len(members) < logits.shape[0]:
            chosen = mx.array(members, dtype=mx.int32)
            logits, noise = logits[chosen], noise[chosen]
        if kind == "greedy":
            return Draw(mx.argmax(logits, axis=-1).astype(mx.int32), None)
        parameters = self._parameters[kind]
        if kind == "plain":
            return Draw(_draw_plain(logits, parameters, noise), None)
        width = NARROW if kind == "narrow" else self._vocabulary
        draw = _draw_sorted(logits, parameters, noise, min(width, self._vocabulary))
        return draw if kind == "narrow" and self.may_need_redraw else Draw(draw.tokens, None)


def _covered(draw: Draw) -> mx.array:
    return mx.ones(draw.tokens.shape, dtype=mx.bool_) if draw.covered is None else draw.covered


def _scaled(logits: mx.array, highest: mx.array, temperature: mx.array) -> mx.array:
    """Return log probabilities but for a constant: the most likely token's is 0."""
    return (logits - highest) / temperature


def _draw_plain(logits: mx.array, rows: _Parameters, noise: mx.array) -> mx.array:
    scaled = _scaled(logits, logits.max(axis=-1, keepdims=True), rows.temperature)
    ids = mx.arange(logits.shape[-1], dtype=mx.uint32)[None]
    return _winner(mx.where(scaled >= rows.log_min_p, scaled, -mx.inf), ids, noise).astype(mx.int32)


def _draw_sorted(logits: mx.array, rows: _Parameters, noise: mx.array, width: int) -> Draw:
    """Draw among the `width` most likely tokens, kept by top_k, then top_p, then min_p.

    top_p keeps the tokens before which less than top_p of the mass lies; the mass is that of the top_k
    tokens, or of the whole vocabulary where top_k doesn't limit.
    """
    vocabulary = logits.shape[-1]
    likely = _most_likely(logits, width)
    chosen = mx.take_along_axis(logits, likely, axis=-1)
    highest = chosen[:, :1]
    scaled = _scaled(chosen, highest, rows.temperature)
    weights = mx.where(mx.arange(width)[None] < rows.top_k, mx.exp(scaled), 0.0)
    limited = rows.top_k <= width
    mass = weights.sum(axis=-1, keepdims=True)
    if rows.any_unlimited and width < vocabulary:
        everything = mx.exp(_scaled(logits, highest, rows.temperature)).sum(axis=-1, keepdims=True)
        mass = mx.where(limited, mass, everything)
    cumulative = mx.cumsum(weights, axis=-1)
    wanted = rows.top_p * mass
    kept = (cumulative - weights < wanted) & (weights > 0) & (scaled >= rows.log_min_p)
    covered = limited | (cumulative[:, -1:] >= wanted) | (width == vocabulary)
    place = _winner(mx.where(kept, scaled, -mx.inf), likely.astype(mx.uint32), noise)
    tokens = mx.take_along_axis(likely, place[:, None], axis=-1)
    return Draw(tokens[:, 0].astype(mx.int32), covered[:, 0])


def _most_likely(logits: mx.array, width: int) -> mx.array:
    """Return the ids of the `width` highest logits, highest first."""
    if width == logits.shape[-1]:
        return mx.argsort(-logits, axis=-1)
    likely = mx.argpartition(-logits, kth=width - 1, axis=-1)[:, :width]
    order = mx.argsort(-mx.take_along_axis(logits, likely, axis=-1), axis=-1)
    return mx.take_along_axis(likely, order, axis=-1)


def _winner(scaled: mx.array, ids: mx.array, noise: mx.array) -> mx.array:
    """Return where scaled + Gumbel noise is highest; -log of an exponential number is a Gumbel number."""
    return mx.argmax(scaled - mx.log(_exponential(ids, noise)), axis=-1)


def _exponential(ids: mx.array, noise: mx.array) -> mx.array:
    """Return exponential numbers, float32, hashed from ids (1 or rows, n) and keys, uint32 (rows, 2).

    The smallest ones decide, so they keep their full precision: below _SERIES_BELOW, -log(1 - w) is a series.
    """
    hashed = _mixed(_mixed(ids ^ noise[:, :1]) + noise[:, 1:])
    # Float32 rounds the largest hashes up to 1, whose exponential number would be infinite: no token could
    # bear it, however likely.
    w = mx.minimum((hashed.astype(mx.float32) + 0.5) * 2.0**-32, _BELOW_ONE)
    return mx.where(w < _SERIES_BELOW, w * (1 + w * (0.5 + w / 3)), -mx.log(1 - w))


def _mixed(x: mx.array) -> mx.array:
    """Mix the bits of uint32 numbers (Wellons' "lowbias32", a bijection with nearly ideal avalanche)."""
    x = (x ^ (x >> 16)) * mx.array(0x7FEB352D, dtype=mx.uint32)
    x = (x ^ (x >> 15)) * mx.array(0x846CA68B, dtype=mx.uint32)
    return x ^ (x >> 16)
