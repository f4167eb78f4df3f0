"""Log probabilities of drawn tokens and of the most likely ones, of the rows that ask for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import mlx.core as mx

from shared.limits import LOGPROB_MIN
from shared.messages import RowLogprobs
from shared.sampling import Sampling
from worker.engine.row_picks import RowPick

_SIGN: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class DrawnLogprobs:
    """A step's log probabilities on the device, of the rows at `places`, float32 (rows that ask,).

    `top_ids`, int32, and `top_logprobs`, float32, are (rows that ask for alternatives, most asked for); these
    rows come first, and use of theirs only as many as they asked for.
    """

    places: tuple[int, ...]
    asked: tuple[int, ...]
    chosen: mx.array
    top_ids: mx.array | None
    top_logprobs: mx.array | None

    @property
    def arrays(self) -> list[mx.array]:
        return [array for array in (self.chosen, self.top_ids, self.top_logprobs) if array is not None]

    def read(self) -> tuple[RowLogprobs, ...]:
        """Wait for them; return each asking row's, with as many alternatives as it asked for."""
        chosen = cast("list[float]", self.chosen.tolist())
        ids: list[list[int]] = [] if self.top_ids is None else cast("list[list[int]]", self.top_ids.tolist())
        tops: list[list[float]] = []
        if self.top_logprobs is not None:
            tops = cast("list[list[float]]", self.top_logprobs.tolist())
        without: list[list[Any]] = [[]] * (len(chosen) - len(ids))
        rows = zip(self.places, self.asked, chosen, [*ids, *without], [*tops, *without], strict=True)
        return tuple(
            RowLogprobs(place, logprob, tuple(row_ids[:asked]), tuple(row_tops[:asked]))
            for place, asked, logprob, row_ids, row_tops in rows
        )


@dataclass(frozen=True, slots=True)
class LogprobWishes:
    """Which rows of a batch ask for log probabilities, and for how many alternatives; most first."""

    pick: RowPick
    asked: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[Sampling]) -> Self | None:
        """Return what is wished for, or None where no row asks."""
        asking = [place for place, row in enumerate(rows) if row.wants_logprobs]
        asking.sort(key=lambda place: -rows[place].top_logprobs)
        if not asking:
            return None
        return cls(RowPick.of(asking, len(rows)), tuple(rows[place].top_logprobs for place in asking))

    def granted(self, logits: mx.array, tokens: mx.array) -> DrawnLogprobs:
        """Return the log probabilities in float32 logits (rows, vocabulary) of tokens, int32 (rows,)."""
        logits = self.pick.from_(logits)
        mass = mx.logsumexp(logits, axis=-1, keepdims=True)
        token = self.pick.from_(tokens)[:, None]
        chosen = _clipped(mx.take_along_axis(logits, token, axis=-1) - mass)[:, 0]
        topped = sum(asked > 0 for asked in self.asked)
        if not topped:
            return DrawnLogprobs(self.pick.places, self.asked, chosen, None, None)
        likeliest = logits[:topped]
        ids = most_likely(likeliest, min(self.asked[0], logits.shape[-1]))
        top = _clipped(mx.take_along_axis(likeliest, ids, axis=-1) - mass[:topped])
        return DrawnLogprobs(self.pick.places, self.asked, chosen, ids, top)


def most_likely(logits: mx.array, width: int) -> mx.array:
    """Return the ids of the `width` highest logits, highest first and of equal ones the lower id first.

    A float's bits, with the lower ones turned where it is positive, are a number that falls as it rises; the
    id below them makes all numbers different, so that any way to partition finds the same tokens.
    """
    bits = (logits + 0.0).view(mx.uint32)  # which makes -0 the 0 that it is equal to
    falling = mx.where(bits < _SIGN, bits ^ (_SIGN - 1), bits).astype(mx.uint64)
    ranks = (falling << 32) | mx.arange(logits.shape[-1], dtype=mx.uint64)
    if width < logits.shape[-1]:
        ranks = mx.partition(ranks, kth=width - 1, axis=-1)[:, :width]
    return mx.sort(ranks, axis=-1).astype(mx.uint32).astype(mx.int32)


def _clipped(logprobs: mx.array) -> mx.array:
    """Clip to [LOGPROB_MIN, 0]; what is no number has the probability zero, too."""
    return mx.where(logprobs > LOGPROB_MIN, mx.minimum(logprobs, 0.0), LOGPROB_MIN)
