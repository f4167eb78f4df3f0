"""Layer caches that attend by themselves: what a hooked model hands on in place of keys, values and mask."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class MaskWish:
    """Stands for the mask that a model asked its cache for; who attends makes its own."""

    window: int | None


class Attending(ABC):
    """A cache that returned itself as keys and as values; attention is done where the token arrives."""

    @abstractmethod
    def attend(
        self, queries: mx.array, scale: float, mask: MaskWish | None, sinks: mx.array | None
    ) -> mx.array:
        """Return attention's output, (rows, heads, tokens, width), for queries shaped alike."""
