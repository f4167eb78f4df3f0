"""Some rows of an array, picked once and gathered at every step; all of them, in order, cost nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class RowPick:
    """Rows by their places, in this order. `index` is int32 (picked,), or None for every row in order."""

    places: tuple[int, ...]
    index: mx.array | None

    @classmethod
    def of(cls, places: Sequence[int], count: int) -> Self:
        """Pick these rows out of `count`."""
        whole = list(places) == list(range(count))
        return cls(tuple(places), None if whole else mx.array(list(places), dtype=mx.int32))

    def from_(self, rows: mx.array) -> mx.array:
        return rows if self.index is None else rows[self.index]


@dataclass(frozen=True, slots=True)
class MixedPick:
    """Rows of which some were changed: first those that were not, then those that were."""

    places: tuple[int, ...]
    plain: RowPick
    changed: RowPick

    @classmethod
    def of(cls, places: Sequence[int], count: int, changed: Sequence[int]) -> Self:
        """Pick these of `count` rows, of which those in `changed` have a changed form, in that order."""
        plain = [place for place in places if place not in changed]
        altered = [at for at, place in enumerate(changed) if place in places]
        order = (*plain, *(changed[at] for at in altered))
        return cls(order, RowPick.of(plain, count), RowPick.of(altered, len(changed)))

    def from_(self, rows: mx.array, changed: mx.array | None) -> mx.array:
        """Return the picked rows, in the order of `places`."""
        parts = [self.plain.from_(rows)] if self.plain.places else []
        if self.changed.places:
            assert changed is not None
            parts.append(self.changed.from_(changed))
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)
