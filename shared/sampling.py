"""Sampling parameters, checked once, and the noise that a token is drawn with."""

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import Annotated, Final

from shared.limits import (
    GRAMMAR_CHARS_MAX,
    LOGIT_BIAS_MAX,
    LOGIT_BIASES_MAX,
    PENALTY_MAX,
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    SEED_MAX,
    SEED_MIN,
    TEMPERATURE_MAX,
    TOP_LOGPROBS_MAX,
    VOCABULARY_MAX,
    CharsMax,
)

GREEDY_BELOW: Final = 1e-5
_NOISE_INPUT: Final = struct.Struct("<qQQ")
_NOISE_KEY: Final = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Add `bias` to a token's logit."""

    token: int
    bias: float


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from the logits.

    Applied in this order: logit biases, repetition penalty, presence and frequency penalty, grammar,
    temperature, top_k, top_p, min_p. Temperature 0 takes the most likely token after the grammar and ignores
    the rest.
    `top_k` 0 means no limit. `choice` tells apart the n answers to one prompt, which share a seed.

    The repetition penalty divides a positive logit and multiplies another one, of every token of prompt and
    answer so far (Keskar et al., "CTRL", 2019). The other two are subtracted for tokens of the answer so far
    only: presence once, frequency for each time. So what they do follows from the ids alone.

    `top_logprobs` says how many alternatives to a token are wanted with their log probabilities; 0 the
    token's own only, -1 none. They are the model's own, before any of the above.

    `grammar` is a grammar of the whole answer as llguidance reads it, "" for none: only tokens that it allows
    at their place are drawn, and one that ends the answer only where the grammar may end.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[LogitBias, ...] = ()
    top_logprobs: int = -1
    grammar: Annotated[str, CharsMax(GRAMMAR_CHARS_MAX)] = ""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ValueError(problem)

    def _problems(self) -> list[str]:
        numbers = (
            *(self.temperature, self.top_p, self.min_p),
            *(self.repetition_penalty, self.presence_penalty, self.frequency_penalty),
            *(each.bias for each in self.logit_bias),
        )
        biased = [each.token for each in self.logit_bias]
        penalties = (self.presence_penalty, self.frequency_penalty)
        checks = (
            (all(math.isfinite(number) for number in numbers), "sampling parameters must be finite"),
            (0 <= self.temperature <= TEMPERATURE_MAX, f"temperature must be in [0, {TEMPERATURE_MAX}]"),
            (0 < self.top_p <= 1, "top_p must be in (0, 1]"),
            (0 <= self.top_k <= VOCABULARY_MAX, f"top_k must be in [0, {VOCABULARY_MAX}]"),
            (0 <= self.min_p <= 1, "min_p must be in [0, 1]"),
            (SEED_MIN <= self.seed <= SEED_MAX, "seed must be a signed 64-bit integer"),
            (0 <= self.choice < 1 << 32, "choice must be a small natural number"),
            (
                REPETITION_PENALTY_MIN <= self.repetition_penalty <= REPETITION_PENALTY_MAX,
                f"repetition_penalty must be in [{REPETITION_PENALTY_MIN}, {REPETITION_PENALTY_MAX}]",
            ),
            (
                max(map(abs, penalties)) <= PENALTY_MAX,
                f"penalties must be in [-{PENALTY_MAX}, {PENALTY_MAX}]",
            ),
            (len(biased) <= LOGIT_BIASES_MAX, f"logit_bias must name at most {LOGIT_BIASES_MAX} tokens"),
            (len(set(biased)) == len(biased), "logit_bias must name a token once"),
            (all(0 <= token < VOCABULARY_MAX for token in biased), "logit_bias: id out of range"),
            (
                all(abs(each.bias) <= LOGIT_BIAS_MAX for each in self.logit_bias),
                f"logit_bias must be in [-{LOGIT_BIAS_MAX}, {LOGIT_BIAS_MAX}]",
            ),
            (len(self.grammar) <= GRAMMAR_CHARS_MAX, f"grammar: more than {GRAMMAR_CHARS_MAX} characters"),
            (_can_be_sent(self.grammar), "grammar: has half of a surrogate pair, which no text has"),
            (
                -1 <= self.top_logprobs <= TOP_LOGPROBS_MAX,
                f"top_logprobs must be in [-1, {TOP_LOGPROBS_MAX}]",
            ),
        )
        return [problem for holds, problem in checks if not holds]

    @property
    def greedy(self) -> bool:
        """So cold that only the most likely token can be drawn; also guards the division by temperature."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether what was said before changes the logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def wants_logprobs(self) -> bool:
        return self.top_logprobs >= 0


def _can_be_sent(text: str) -> bool:
    """Whether a text has an encoding: a JSON string can name characters that don't exist."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in set(text))


def noise_key(seed: int, choice: int, position: int) -> tuple[int, int]:
    """Return the key of one token's noise: two unsigned 32-bit integers.

    It is a function of its arguments alone (a position, not a stream), so a token can be drawn again after a
    death, in another batch, and meet the same noise. The mixing is BLAKE2b's, so that seed 1 at position 2
    and seed 2 at position 1 have nothing in common.
    """
    digest = hashlib.blake2b(_NOISE_INPUT.pack(seed, choice, position), digest_size=8).digest()
    low, high = _NOISE_KEY.unpack(digest)
    return low, high
