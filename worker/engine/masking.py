"""Masks of grammars on the device: rows that have one are gathered and masked; the others pay nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import mlx.core as mx

from shared.sampling import Sampling
from worker.engine.row_picks import MixedPick, RowPick

_WORD_BITS: Final = 32
# What a token that is allowed has at least: where the model says minus infinity of all of them, one is drawn.
_LOWEST: Final = -1e30


@dataclass(frozen=True, slots=True)
class Masking:
    """The rows of a batch that have a grammar.

    `pick` gathers them, and says by its places in what order their masks come. `altered` are the places of
    all rows that aren't as the model has them: first, those of `unmasked`, which biases or penalties changed
    and nothing else, then the masked ones.
    """

    pick: MixedPick
    unmasked: RowPick
    altered: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[Sampling], changed: Sequence[int]) -> Self | None:
        """Return it for rows of which these are changed, in this order; None where no row has a grammar."""
        masked = [place for place, row in enumerate(rows) if row.grammar]
        if not masked:
            return None
        pick = MixedPick.of(masked, len(rows), changed)
        unmasked = [at for at, place in enumerate(changed) if place not in masked]
        altered = (*(changed[at] for at in unmasked), *pick.places)
        return cls(pick, RowPick.of(unmasked, len(changed)), altered)

    @property
    def places(self) -> tuple[int, ...]:
        return self.pick.places

    def applied(self, logits: mx.array, changed: mx.array | None, masks: mx.array) -> mx.array:
        """Return the altered rows of float32 logits (rows, vocabulary), of which some were changed.

        `masks` is uint32 (rows with a grammar, words): bit `id % 32` of word `id // 32` allows a token.
        """
        masked = _masked(self.pick.from_(logits, changed), masks)
        if changed is None or not self.unmasked.places:
            return masked
        return mx.concatenate([self.unmasked.from_(changed), masked])


@mx.compile
def _masked(logits: mx.array, masks: mx.array) -> mx.array:
    ids = mx.arange(logits.shape[-1], dtype=mx.uint32)
    words = mx.take(masks, ids // _WORD_BITS, axis=-1)
    allowed = (words >> (ids % _WORD_BITS)) & 1
    return mx.where(allowed == 1, mx.maximum(logits, _LOWEST), -mx.inf)
