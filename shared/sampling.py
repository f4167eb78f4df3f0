"""Sampling parameters, checked once, and the noise that a token is drawn with."""

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Final

from shared.limits import SEED_MAX, SEED_MIN, TEMPERATURE_MAX, VOCABULARY_MAX

GREEDY_BELOW: Final = 1e-5
_NOISE_INPUT: Final = struct.Struct("<qQQ")
_NOISE_KEY: Final = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from the logits.

    Applied in this order: temperature, top_k, top_p, min_p. Temperature 0 is greedy and ignores the rest.
    `top_k` 0 means no limit. `choice` tells apart the n answers to one prompt, which share a seed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ValueError(problem)

    def _problems(self) -> list[str]:
        numbers = (self.temperature, self.top_p, self.min_p)
        checks = (
            (all(math.isfinite(number) for number in numbers), "sampling parameters must be finite"),
            (0 <= self.temperature <= TEMPERATURE_MAX, f"temperature must be in [0, {TEMPERATURE_MAX}]"),
            (0 < self.top_p <= 1, "top_p must be in (0, 1]"),
            (0 <= self.top_k <= VOCABULARY_MAX, f"top_k must be in [0, {VOCABULARY_MAX}]"),
            (0 <= self.min_p <= 1, "min_p must be in [0, 1]"),
            (SEED_MIN <= self.seed <= SEED_MAX, "seed must be a signed 64-bit integer"),
            (0 <= self.choice < 1 << 32, "choice must be a small natural number"),
        )
        return [problem for holds, problem in checks if not holds]

    @property
    def greedy(self) -> bool:
        """So cold that only the most likely token can be drawn; also guards the division by temperature."""
        return self.temperature < GREEDY_BELOW


def noise_key(seed: int, choice: int, position: int) -> tuple[int, int]:
    """Return the key of one token's noise: two unsigned 32-bit integers.

    It is a function of its arguments alone (a position, not a stream), so a token can be drawn again after a
    death, in another batch, and meet the same noise. The mixing is BLAKE2b's, so that seed 1 at position 2
    and seed 2 at position 1 have nothing in common.
    """
    digest = hashlib.blake2b(_NOISE_INPUT.pack(seed, choice, position), digest_size=8).digest()
    low, high = _NOISE_KEY.unpack(digest)
    return low, high
