"""The ways a token is drawn from a row of logits that is ready for it, each vectorised over rows.

greedy   the most likely token
plain    temperature and min_p
narrow   top_p, or a top_k of at most NARROW: the NARROW most likely tokens, sorted
broad    a top_k of at most BROAD, or a top_p that was found to reach farther: the BROAD most likely ones
wide     beyond that: a full sort

A row whose top_p reaches beyond the tokens that were sorted is not covered, and says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import mlx.core as mx

from shared.sampling import Sampling
from worker.engine.noise import with_noise


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens of rows of one kind, int32 (rows,). `covered` is bool (rows,), or None where all surely are."""

    tokens: mx.array
    covered: mx.array | None


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of rows of one kind, each float32 or int32 (rows, 1)."""

    temperature: mx.array
    top_k: mx.array
    top_p: mx.array
    log_min_p: mx.array
    any_unlimited: bool

    @classmethod
    def of(cls, rows: Sequence[Sampling], vocabulary: int) -> Self:
        def column(values: list[float]) -> mx.array:
            return mx.array(values, dtype=mx.float32)[:, None]

        return cls(
            temperature=column([row.temperature for row in rows]),
            top_k=mx.array([row.top_k or vocabulary for row in rows], dtype=mx.int32)[:, None],
            top_p=column([row.top_p for row in rows]),
            log_min_p=mx.log(column([row.min_p for row in rows])),
            any_unlimited=not all(0 < row.top_k < vocabulary for row in rows),
        )


def draw_greedy(logits: mx.array) -> Drawn:
    return Drawn(mx.argmax(logits, axis=-1).astype(mx.int32), None)


def draw_plain(logits: mx.array, rows: Parameters, noise: mx.array) -> Drawn:
    highest = logits.max(axis=-1, keepdims=True)
    ids = mx.arange(logits.shape[-1], dtype=mx.uint32)[None]
    scores = _plain_scores(logits, highest, [rows.temperature, rows.log_min_p], ids, noise)
    return Drawn(mx.argmax(scores, axis=-1).astype(mx.int32), None)


def draw_sorted(logits: mx.array, rows: Parameters, noise: mx.array, width: int) -> Drawn:
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
    scores = _sorted_scores(kept, scaled, likely.astype(mx.uint32), noise)
    place = mx.argmax(scores, axis=-1)
    tokens = mx.take_along_axis(likely, place[:, None], axis=-1)[:, 0].astype(mx.int32)
    if width == vocabulary or not rows.any_unlimited:
        return Drawn(tokens, None)
    return Drawn(tokens, (limited | (cumulative[:, -1:] >= wanted))[:, 0])


@mx.compile
def _plain_scores(
    logits: mx.array, highest: mx.array, limits: list[mx.array], ids: mx.array, noise: mx.array
) -> mx.array:
    temperature, log_min_p = limits
    scaled = _scaled(logits, highest, temperature)
    return with_noise(mx.where(scaled >= log_min_p, scaled, -mx.inf), ids, noise)


@mx.compile
def _sorted_scores(kept: mx.array, scaled: mx.array, ids: mx.array, noise: mx.array) -> mx.array:
    return with_noise(mx.where(kept, scaled, -mx.inf), ids, noise)


def _scaled(logits: mx.array, highest: mx.array, temperature: mx.array) -> mx.array:
    """Return log probabilities but for a constant: the most likely token's is 0."""
    return (logits - highest) / temperature


def _most_likely(logits: mx.array, width: int) -> mx.array:
    """Return the ids of the `width` highest logits, highest first."""
    if width == logits.shape[-1]:
        return mx.argsort(-logits, axis=-1)
    likely = mx.argpartition(-logits, kth=width - 1, axis=-1)[:, :width]
    order = mx.argsort(-mx.take_along_axis(logits, likely, axis=-1), axis=-1)
    return mx.take_along_axis(likely, order, axis=-1)
