"""Kinds of layer caches: what is kept of a row, and in which arrays a group of rows keeps it.

keys and values   of all tokens, of the last ones (a sliding window), or of those since the last multiple of a
                  chunk; quantised where that is asked for
state             arrays that don't grow (SSM, convolutions)

A layer has one of them, or several.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

Planes = list[mx.array]
_WORD_BITS: Final = 32
_GROUP_SIZES: Final = (64, 32)


def group_size_for(width: int) -> int:
    """Return how many numbers share a scale; ValueError where a width can't be quantised."""
    for size in _GROUP_SIZES:
        if width % size == 0:
            return size
    raise ValueError(
        f"keys or values of {width} numbers can't be quantised: {_GROUP_SIZES[-1]} must divide it"
    )


@dataclass(frozen=True, slots=True)
class KeysValues:
    """One layer's keys and values: `heads` of these widths for a token.

    `span` is how many tokens are kept, None for all. A token at `position` stands in slot position % span.
    `restarts` says that a token sees those since the last multiple of `span` only, and else the last `span`.
    `bits` is what they are quantised to, 0 for not at all.

    A group keeps them in planes, arrays (places, heads, slots, width): keys and values, or of each the packed
    numbers, the scales and the biases.
    """

    heads: int
    key_width: int
    value_width: int
    dtype: mx.Dtype
    span: int | None = None
    restarts: bool = False
    bits: int = 0

    @property
    def bytes_per_token(self) -> int:
        return sum(self.heads * width * dtype.size for width, dtype in self._planes())

    @property
    def can_attend_packed(self) -> bool:
        """Whether quantised keys and values can be attended to as they are: mlx-lm wants equal widths."""
        return bool(self.bits) and self.key_width == self.value_width

    def slots(self, room: int) -> int:
        """Return how many tokens are kept of a row with room for so many."""
        return room if self.span is None else min(room, self.span)

    def empty(self, places: int, room: int) -> Planes:
        slots = self.slots(room)
        return [mx.zeros((places, self.heads, slots, width), dtype=dtype) for width, dtype in self._planes()]

    def grown(self, planes: Planes, places: int, room: int) -> Planes:
        """Return planes with room for so many more tokens; new ones where there are none."""
        more = self.empty(places, room)
        if not planes:
            return more
        return [mx.concatenate(list(pair), axis=2) for pair in zip(planes, more, strict=True)]

    def encode(self, keys: mx.array, values: mx.array) -> Planes:
        """Turn keys and values, (rows, heads, tokens, width), into planes of that many slots."""
        if not self.bits:
            return [keys, values]
        return [
            plane
            for array in (keys, values)
            for plane in mx.quantize(array, group_size=group_size_for(array.shape[-1]), bits=self.bits)
        ]

    def decode(self, planes: Sequence[mx.array]) -> tuple[mx.array, mx.array]:
        """Turn planes back into keys and values."""
        if not self.bits:
            return planes[0], planes[1]
        return self._unpacked(planes[:3], self.key_width), self._unpacked(planes[3:], self.value_width)

    def _unpacked(self, planes: Sequence[mx.array], width: int) -> mx.array:
        packed, scales, biases = planes
        return mx.dequantize(packed, scales, biases, group_size=group_size_for(width), bits=self.bits)

    def _planes(self) -> list[tuple[int, mx.Dtype]]:
        """Return each plane's width and type."""
        if not self.bits:
            return [(self.key_width, self.dtype), (self.value_width, self.dtype)]
        planes: list[tuple[int, mx.Dtype]] = []
        for width in (self.key_width, self.value_width):
            groups = width // group_size_for(width)
            planes += [
                (width * self.bits // _WORD_BITS, mx.uint32),
                (groups, self.dtype),
                (groups, self.dtype),
            ]
        return planes


@dataclass(frozen=True, slots=True)
class State:
    """Arrays that don't grow: the shape of one row's, without the row, and the type; None is never set."""

    arrays: tuple[tuple[tuple[int, ...], mx.Dtype] | None, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes of one row's arrays."""
        return sum(math.prod(each[0]) * each[1].size for each in self.arrays if each is not None)


Kind = KeysValues | State
