"""When requests come and what they ask: drawn from one seed, so that a run can be had again."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_SENTENCE_WORDS: Final = (7, 13)
_OPENING: Final = "Tell a long story about this:"
_WORDS: Final = (
    "amber", "anchor", "apple", "autumn", "baker", "barley", "basket", "beacon", "bell", "birch",
    "blanket", "boat", "bridge", "bright", "brook", "candle", "carpet", "castle", "cellar", "chapel",
    "cherry", "clear", "cloud", "copper", "corner", "cotton", "cradle", "crow", "dancer", "distant",
    "donkey", "eagle", "early", "engine", "evening", "falcon", "farmer", "feather", "fiddle", "forest",
    "fountain", "garden", "gentle", "glass", "golden", "granite", "harbor", "harvest", "hidden", "hollow",
    "honey", "island", "ivory", "kettle", "ladder", "lantern", "letter", "linen", "little", "lonely",
    "market", "meadow", "melody", "mirror", "morning", "mountain", "narrow", "needle", "north", "oak",
    "ocean", "orchard", "painter", "paper", "path", "pebble", "pepper", "pilot", "planet", "pocket",
    "quiet", "rain", "ribbon", "river", "rough", "saddle", "sailor", "salt", "shadow", "silver",
    "slow", "snow", "south", "spring", "stable", "stone", "storm", "summer", "table", "tailor",
    "thunder", "tiny", "tower", "train", "travel", "valley", "velvet", "village", "violin", "walnut",
    "warm", "water", "weaver", "west", "wheel", "willow", "window", "winter", "wooden", "yellow",
)  # fmt: skip


def dice(seed: int, *purpose: str | int) -> random.Random:
    """Return the numbers for one purpose: what one part of a run draws changes nothing for another."""
    return random.Random("/".join(map(str, (seed, *purpose))))  # noqa: S311 (it makes load, it guards nothing)


def poisson(rate_hz: float, seconds: float, numbers: random.Random) -> tuple[float, ...]:
    """Return the seconds at which requests arrive that know nothing of each other, all below `seconds`."""
    if rate_hz <= 0:
        raise ValueError("the rate must be positive")
    moments: list[float] = []
    moment = numbers.expovariate(rate_hz)
    while moment < seconds:
        moments.append(moment)
        moment += numbers.expovariate(rate_hz)
    return tuple(moments)


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of lengths: half are below the median, none outside [low, high].

    `spread` is the standard deviation of the length's logarithm; 0 makes all lengths the median.
    """

    median: int
    spread: float
    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.median <= self.high or self.spread < 0:
            raise ValueError(f"no lengths are so distributed: {self}")

    def draw(self, numbers: random.Random) -> int:
        drawn = self.median * numbers.lognormvariate(0.0, self.spread)
        return round(min(self.high, max(self.low, drawn)))


def sentences(words: int, numbers: random.Random) -> str:
    """Return plain English of so many words, drawn without regard to sense."""
    drawn = numbers.choices(_WORDS, k=words)
    made: list[str] = []
    while drawn:
        length = numbers.randint(*_SENTENCE_WORDS)
        made.append(" ".join(drawn[:length]).capitalize() + ".")
        del drawn[:length]
    return " ".join(made)


def prompt(words: int, numbers: random.Random) -> str:
    """Return plain English of so many words, besides the opening that asks for a long answer.

    A word is about one token of an English vocabulary; the chat template adds its own.
    """
    return f"{_OPENING} {sentences(words, numbers)}"


@dataclass(frozen=True, slots=True)
class Mix:
    """What one kind of client asks: how long its prompts are in words, and its answers in tokens."""

    words: Lengths
    answer_tokens: Lengths

    def stream(self, seed: int, *purpose: str | int) -> Callable[[], tuple[str, int]]:
        """Return what draws the next (prompt, answer tokens).

        Lengths depend on the seed and the first part of the purpose only, texts on all of it: two arms of one
        comparison ask equally long things and never the same ones, which a cache would answer.
        """
        lengths, texts = dice(seed, *purpose[:1], "lengths"), dice(seed, *purpose, "texts")
        return lambda: (prompt(self.words.draw(lengths), texts), self.answer_tokens.draw(lengths))
