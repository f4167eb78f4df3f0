"""Prompts of a length in tokens, as the server counts them, and each one unlike all others."""

from dataclasses import dataclass
from random import Random
from typing import Final

from ops.load.arrivals import dice, sentences

# At the end, so that prompts differ from their first word on and no cache of beginnings flatters a server.
_CLOSING: Final = "Tell a very long story in which all of these words appear. Go on and on, and never stop."
_UNMEASURED_TOKENS_PER_WORD: Final = 1.3
_UNIQUE_WORDS_MIN: Final = 4
# Of the two requests that a server's way of counting is read from.
CALIBRATION_WORDS: Final = (16, 144)


@dataclass(frozen=True, slots=True)
class Fit:
    """How many tokens a server counts for a prompt: so many at any rate, and so many for each word.

    `measured` is False where a server doesn't say what it counted: then a word is taken for 1.3 tokens.
    """

    base_tokens: float
    tokens_per_word: float
    measured: bool = True

    @classmethod
    def of(cls, counted: tuple[int | None, ...]) -> "Fit":
        """Return the line through what the server counted for CALIBRATION_WORDS."""
        few, many = counted
        words = CALIBRATION_WORDS[1] - CALIBRATION_WORDS[0]
        if few is None or many is None or many - few < words // 2:
            return cls(0.0, _UNMEASURED_TOKENS_PER_WORD, measured=False)
        per_word = (many - few) / words
        return cls(few - per_word * CALIBRATION_WORDS[0], per_word)

    def words(self, tokens: int) -> int:
        """Return how many words make a prompt of so many tokens; never fewer than make it unlike others."""
        return max(_UNIQUE_WORDS_MIN, round((tokens - self.base_tokens) / self.tokens_per_word))

    def words_of(self, tokens: int) -> int:
        """Return how many words so many tokens are, in the middle of a prompt."""
        return round(tokens / self.tokens_per_word)


@dataclass(frozen=True, slots=True)
class Prompts:
    """Makes a run's prompts. `salt` is the run's own: a second run with the same seed finds no cache warm.

    All prompts begin with the same words, `shared_tokens` long, where that is asked for.
    """

    fit: Fit
    seed: int
    salt: str
    shared_tokens: int = 0

    def text(self, tokens: int, *purpose: str | int) -> str:
        """Return the prompt of this length for this purpose, the same whenever it is asked for again."""
        words = self.fit.words(tokens)
        shared = self.fit.words_of(self.shared_tokens)
        own = sentences(max(_UNIQUE_WORDS_MIN, words - shared), self._dice("own", *purpose))
        begins = [sentences(shared, self._dice("shared"))] if shared else []
        return " ".join((*begins, own, _CLOSING))

    def calibration(self) -> tuple[str, ...]:
        """Return the prompts of CALIBRATION_WORDS."""
        return tuple(
            f"{sentences(words, self._dice('fit', words))} {_CLOSING}" for words in CALIBRATION_WORDS
        )

    def _dice(self, *purpose: str | int) -> Random:
        return dice(self.seed, self.salt, *purpose)
