"""What a forward pass takes beside the caches, from probes of it, and how long a chunk may be by that. Pure.

Tokens and context are in tokens, all else in bytes. Nothing is assumed of a family's code but that more
tokens, or more context, take no less: where scores are materialised, bytes grow with tokens x context; where
they aren't, or where a window ends, they don't, and the probes show it.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Self

from shared.limits import TOP_LOGPROBS_MAX
from shared.sampling import LogitBias, Sampling
from worker.engine.row_kinds import history_bytes, sampler_bytes
from worker.plan import CHUNK_TOKENS_MAX, CHUNK_TOKENS_MIN, ChunkBound

# For what a pass takes more than the one that was probed: an allocator's rounding, a device's running ahead.
_MARGIN: Final = 1.15
# What grows by less than this from one context to the next doesn't grow.
_FLAT: Final = 1.05
# Of what weights leave free, a chunk may use this share; a longer one gains little.
_CHUNK_SHARE: Final = 0.25
_LOGIT_BYTES: Final = 4
# A row whose draw takes the most: it asks for everything.
_DEAREST: Final = Sampling(
    top_p=0.5,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    logit_bias=(LogitBias(0, 1.0),),
    top_logprobs=TOP_LOGPROBS_MAX,
    grammar='start: ""',
)


@dataclass(frozen=True, slots=True)
class Probe:
    """A forward pass of `tokens` behind `context` took `nbytes` beside the caches."""

    tokens: int
    context: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Bytes of a forward pass: a grid of probes, `grid[i][j]` of `tokens[j]` behind `contexts[i]`.

    Rows may be shorter than `tokens`. Between two probes it is at most what the line between them says,
    beyond them what was seen goes on. It never falls as tokens or context grow.
    """

    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    grid: tuple[tuple[float, ...], ...]

    @classmethod
    def through(cls, probes: Iterable[Probe]) -> Self:
        """Draw it through probes, behind each context of the same numbers of tokens; the largest may lack."""
        seen = {(probe.context, probe.tokens): probe.nbytes for probe in probes}
        contexts = tuple(sorted({context for context, _ in seen}))
        tokens = tuple(sorted({tokens for _, tokens in seen}))
        rows: list[tuple[float, ...]] = []
        for context in contexts:
            row = [seen[context, each] for each in tokens if (context, each) in seen]
            if rows:
                row = list(map(max, row, rows[-1]))
            rows.append(tuple(accumulate(row, max)))
        return cls(tokens, contexts, tuple(rows))

    def nbytes(self, tokens: int, context: int) -> float:
        """Return what a pass of so many tokens behind a context takes.

        Of rows that are padded together it is no more than this of all their tokens behind no context.
        """
        if len(self.contexts) == 1:
            # As many tokens behind nothing as have as many pairs of tokens of which one attends to the other.
            return self._at(0, math.sqrt(tokens * (tokens + context)))
        columns = list(accumulate((self._at(row, tokens) for row in range(len(self.contexts))), max))
        if context > self.contexts[-1]:
            return columns[-1] + (context - self.contexts[-1]) * self._slope(tokens)
        upper = max(1, bisect_left(self.contexts, context))
        return _between(self.contexts[upper - 1 : upper + 1], columns[upper - 1 : upper + 1], context)

    def _slope(self, tokens: int) -> float:
        """Return bytes a token of context, beyond the last one that was probed, for a number of tokens.

        What grows with context may be hidden behind what doesn't up to some length. Where that may be so, the
        last context counts as if all that was seen there grew with it.
        """
        slopes = list(accumulate(map(self._slope_at, range(len(self.grid[-1]))), max))
        if tokens <= self.tokens[0] or len(slopes) == 1:
            return slopes[0]
        upper = min(len(slopes) - 1, bisect_left(self.tokens, tokens))
        return _between(self.tokens[upper - 1 : upper + 1], slopes[upper - 1 : upper + 1], tokens)

    def _slope_at(self, column: int) -> float:
        values = [row[column] for row in self.grid]
        slopes = [
            (after - before) / (upper - lower)
            for (lower, before), (upper, after) in pairwise(zip(self.contexts, values, strict=True))
        ]
        is_straight = len(slopes) > 1 and (
            slopes[-1] <= slopes[-2] * _MARGIN or values[-1] <= values[-2] * _FLAT
        )
        return slopes[-1] if is_straight else values[-1] / self.contexts[-1]

    def _at(self, row: int, tokens: float) -> float:
        """Return bytes behind one of the contexts that were probed."""
        nbytes = self.grid[row]
        knots = self.tokens[: len(nbytes)]
        if tokens <= knots[0] or len(knots) == 1:
            return nbytes[0] * max(1.0, tokens / knots[0])
        first, least = knots[0], nbytes[0]
        # What each token beyond the first knot takes: it grows with the tokens that each attends to.
        rates = [(each - least) / (knot - first) for knot, each in zip(knots[1:], nbytes[1:], strict=True)]
        if tokens > knots[-1]:
            rate = rates[-1] + (tokens - knots[-1]) * self._rate_slope(row, rates)
            return least + (tokens - first) * rate
        upper = bisect_left(knots, tokens)
        if upper == 1:
            return least + (tokens - first) * rates[0]
        ends = knots[upper - 1 : upper + 1]
        if rates[upper - 1] <= rates[upper - 2]:
            return _between(ends, nbytes[upper - 1 : upper + 1], tokens)
        return least + (tokens - first) * _between(ends, rates[upper - 2 : upper], tokens)

    def _rate_slope(self, row: int, rates: Seq[float]) -> float:
        """Return how much more a token takes for each one beyond the last knot of a row.

        It attends to the tokens before it in its chunk as it does to context. Where nothing longer was
        probed, what it took more for those before counts too.
        """
        last, within = len(rates), 0.0
        if last > 1 and len(self.grid[0]) == len(self.grid[row]):
            within = (rates[-1] - rates[-2]) / (self.tokens[last] - self.tokens[last - 1])
        return max(0.0, within, *(self._pair_bytes(upper) for upper in range(1, len(self.contexts))))

    def _pair_bytes(self, upper: int) -> float:
        """Return bytes for each pair of a token and one of context, between a context and the one below.

        0 where these are so close that what the probes are off by would be taken for it.
        """
        above, below = self.grid[upper], self.grid[upper - 1][: len(self.grid[upper])]
        more_tokens = self.tokens[len(above) - 1] - self.tokens[0]
        more_context = self.contexts[upper] - self.contexts[upper - 1]
        if not 0 < more_tokens <= more_context:
            return 0.0
        return (above[-1] - above[0] - below[-1] + below[0]) / (more_tokens * more_context)


def _between(ends: Seq[int], values: Seq[float], place: float) -> float:
    (low, high), (below, above) = ends, values
    return below + (above - below) * (place - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a worker asks of its memory: rows, their longest context, and the width of their logits.

    `layer_share` is the share of all caches that one layer has, as it is in memory while it is copied, or
    unpacked, for all rows at a time. `shared_bytes` is what attention to what rows share takes beside.
    """

    slots: int
    context_tokens: int
    vocabulary: int
    layer_share: float
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reserve:
    """Bytes that are set aside beside weights and caches; with them no chunk exceeds `bound`."""

    nbytes: int
    bound: ChunkBound


def reserve(working_set: WorkingSet, demand: Demand, free_bytes: int) -> Reserve:
    """Set aside what any forward pass takes, of what weights leave free.

    Enough for the longest chunk behind no context, but no more than a share of what is free, unless the
    shortest chunk behind the longest context needs it. While a chunk runs, the logits of the step before may
    be alive; a step itself draws from logits of all rows. One layer of the caches is there twice for a
    moment where groups change, and unpacked where it is quantised.
    """
    chunk_bytes = _chunk_bytes(working_set, demand, free_bytes)
    logits_bytes = demand.slots * demand.vocabulary * _LOGIT_BYTES
    # Where scores are made, a step makes those of a token a row: of rows at their longest, if so many fit.
    step_bytes = _with_margin(working_set, demand.slots, demand.context_tokens)
    share_bytes = int(_CHUNK_SHARE * free_bytes)
    pass_bytes = max(chunk_bytes, min(step_bytes, share_bytes)) + min(demand.shared_bytes, share_bytes)
    draw_bytes = demand.slots * sampler_bytes([_DEAREST], demand.vocabulary)
    # Histories of the step that was read and of the one before it live on while a chunk runs.
    kept_bytes = logits_bytes + 2 * demand.slots * history_bytes(_DEAREST, demand.vocabulary)
    passes_bytes = max(pass_bytes + kept_bytes, draw_bytes)
    layer_bytes = int(max(0, free_bytes - passes_bytes) * demand.layer_share / (1 + demand.layer_share))
    return Reserve(passes_bytes + layer_bytes, bound(working_set, demand.context_tokens, chunk_bytes))


def _chunk_bytes(working_set: WorkingSet, demand: Demand, free_bytes: int) -> int:
    """Return what chunks may take."""
    shortest = _with_margin(working_set, CHUNK_TOKENS_MIN, demand.context_tokens)
    longest = _with_margin(working_set, min(CHUNK_TOKENS_MAX, demand.context_tokens), 0)
    return max(shortest, min(longest, int(_CHUNK_SHARE * free_bytes)))


def bound(working_set: WorkingSet, context_tokens: int, chunk_bytes: int) -> ChunkBound:
    """Return the longest chunk behind each context that takes no more than so many bytes."""
    longest: list[int] = []
    contexts: list[int] = []
    while not contexts or contexts[-1] < context_tokens:
        context = contexts[-1] + max(CHUNK_TOKENS_MIN, contexts[-1] // 8) if contexts else 0
        contexts.append(context)
        longest.append(_longest(working_set, context, chunk_bytes))
    return ChunkBound(tuple(contexts), tuple(longest))


def _longest(working_set: WorkingSet, context: int, chunk_bytes: int) -> int:
    fits = range(CHUNK_TOKENS_MIN + 1, CHUNK_TOKENS_MAX + 1)
    # The first that doesn't fit, less one; the shortest chunk is cut whatever it takes.
    beyond = bisect_left(
        fits, True, key=lambda tokens: _with_margin(working_set, tokens, context) > chunk_bytes
    )
    return CHUNK_TOKENS_MIN + beyond


def _with_margin(working_set: WorkingSet, tokens: int, context: int) -> int:
    return int(_MARGIN * working_set.nbytes(tokens, context))
