"""What one turn of the loop does, and how long its parts take: chunks are sized in milliseconds."""

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Final

from shared.limits import CONTEXT_TOKENS_MAX
from worker.sequence import Sequence

_ALPHA: Final = 0.25
CHUNK_TOKENS_MIN: Final = 16
CHUNK_TOKENS_MAX: Final = 2048
_GROUP_SPREAD: Final = 1.25
_RATE_SHARE_MIN: Final = 0.125


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill the next `tokens` of a sequence, from `start` on."""

    sequence: Sequence
    start: int
    tokens: int

    @property
    def ids(self) -> tuple[int, ...]:
        return self.sequence.ids[self.start : self.start + self.tokens]

    @property
    def end(self) -> int:
        return self.start + self.tokens

    @property
    def brings_token(self) -> bool:
        """Whether the last id is among these, so that the answer's next token comes of them."""
        return self.end == len(self.sequence.ids)

    @property
    def is_whole_prefill(self) -> bool:
        """Whether this one chunk is all the prefill that its sequence needs behind what was there."""
        return self.start == self.sequence.cached and self.end >= len(self.sequence.ids) - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn: free these, prefill these chunks, then decode these rows (newly prefilled ones included).

    A row may end by the token that its prefill brings. Then it isn't decoded: see `Scheduler.still_in`.
    """

    dropped: tuple[Sequence, ...]
    chunks: tuple[Chunk, ...]
    rows: tuple[Sequence, ...]
    expected_ms: float

    @property
    def idle(self) -> bool:
        return not self.chunks and not self.rows


@dataclass(frozen=True, slots=True)
class ChunkBound:
    """The longest chunk, in tokens, that memory is set aside for: `longest[i]` behind up to `contexts[i]`.

    Contexts rise from 0, and what is beyond the last one is bounded as behind that.
    """

    contexts: tuple[int, ...] = (0,)
    longest: tuple[int, ...] = (CHUNK_TOKENS_MAX,)

    def tokens_for(self, context: int) -> int:
        """Return the longest chunk behind a context."""
        return self.longest[min(bisect_left(self.contexts, context), len(self.longest) - 1)]

    @property
    def together(self) -> int:
        """How many tokens prompts that are prefilled as one batch may have, padding and all."""
        return self.longest[0]


UNBOUNDED: Final = ChunkBound()


@dataclass(slots=True)
class StepTimes:
    """Measured times, as moving averages: decode by number of rows, prefill by context.

    Prefill costs `prefill_fixed_ms` a turn (the weights are read once, however few tokens there are) and
    something a token. That gets more as the context grows, so it is kept per power of two of the context; a
    bucket that was never seen takes the nearest smaller one's value. What the warm-up measured is the start.
    """

    prefill_ms_per_token: float
    decode_ms_per_step: float
    prefill_fixed_ms: float = 0.0
    _decode: dict[int, float] = field(default_factory=dict)
    _prefill: dict[int, float] = field(default_factory=dict)

    def decode_ms(self, rows: int) -> float:
        if not rows:
            return 0.0
        if not self._decode:
            return self.decode_ms_per_step
        return self._decode[min(self._decode, key=lambda seen: abs(seen - rows))]

    def prefill_ms(self, tokens: int, context: int) -> float:
        """Return the time of a chunk whose last token is at `context`, beside the turn's fixed cost."""
        return tokens * self._rate(context.bit_length())

    def cost_ms(self, chunk: Chunk) -> float:
        """Return the time of a chunk, beside the turn's fixed cost."""
        return self.prefill_ms(chunk.tokens, chunk.end)

    def shares_ms(self, chunks: Seq[Chunk], elapsed_ms: float) -> list[float]:
        """Share the time that chunks took together, by what each should have cost."""
        costs = [self.cost_ms(chunk) for chunk in chunks]
        return [elapsed_ms * cost / sum(costs) for cost in costs]

    def tokens_for(self, budget_ms: float, context: int) -> int:
        """Return the longest chunk behind `context` that fits in a time, within small and large bounds.

        A chunk costs what the bucket of its end says, so the buckets are gone through upward.
        """
        reached = 0
        for bucket in range(context.bit_length(), CONTEXT_TOKENS_MAX.bit_length() + 1):
            inside = (1 << bucket) - 1 - context
            reached = max(reached, min(inside, int(budget_ms / self._rate(bucket))))
            if reached < inside:
                break
        return min(CHUNK_TOKENS_MAX, max(CHUNK_TOKENS_MIN, reached))

    def _rate(self, bucket: int) -> float:
        smaller = [seen for seen in self._prefill if seen <= bucket]
        return self._prefill[max(smaller)] if smaller else self.prefill_ms_per_token

    def decoded(self, rows: int, elapsed_ms: float) -> None:
        """Learn from a decode step."""
        self._decode[rows] = _blend(self._decode.get(rows, self.decode_ms(rows)), elapsed_ms)

    def prefilled(self, chunks: Seq[Chunk], elapsed_ms: float) -> None:
        """Learn from chunks that were prefilled in one turn; of very few tokens there is nothing to learn."""
        tokens = sum(chunk.tokens for chunk in chunks)
        if tokens < CHUNK_TOKENS_MIN:
            return
        bucket = max(chunk.end for chunk in chunks).bit_length()
        rate = _blend(self._rate(bucket), max(0.0, elapsed_ms - self.prefill_fixed_ms) / tokens)
        self._prefill[bucket] = max(rate, _RATE_SHARE_MIN * self.prefill_ms_per_token)


def similar_lengths(chunks: Seq[Chunk], tokens_max: int, *, exact: bool = False) -> list[list[Chunk]]:
    """Sort chunks into groups whose longest is at most _GROUP_SPREAD times their shortest, or `exact`ly that.

    Padded to the longest, a group of more than one has at most `tokens_max` tokens.
    """
    spread = 1.0 if exact else _GROUP_SPREAD
    groups: list[list[Chunk]] = []
    for chunk in sorted(chunks, key=lambda each: each.tokens):
        fits = groups and (len(groups[-1]) + 1) * chunk.tokens <= tokens_max
        if fits and chunk.tokens <= spread * groups[-1][0].tokens:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def _blend(old: float, new: float) -> float:
    """Move toward a measurement, which counts for at most double or half: a stall isn't the new speed."""
    return old + _ALPHA * (min(2 * old, max(old / 2, new)) - old)
