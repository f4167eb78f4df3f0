"""Prompts of a given length that nobody has sent before: random ids, or random words of a model's own."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from ops.prefixes.plan import NotMeasured, Span

# What begins a word in vocabularies: byte-level ones write a space so, SentencePiece's so.
_SPACES: Final = ("\u0120", "\u2581")
_LETTERS_MIN: Final = 4
_WORDS_MIN: Final = 100


def dice(*seed: object) -> random.Random:
    """Return random numbers that are the same in every run."""
    return random.Random(" ".join(map(str, seed)))  # noqa: S311 (prompts, not secrets)


def ids(vocabulary: int, tokens: int, *seed: object) -> tuple[int, ...]:
    return tuple(dice("ids", *seed).choices(range(vocabulary), k=tokens))


def unlike_ids(vocabulary: int, tokens: int, count: int, *seed: object) -> list[tuple[int, ...]]:
    """Return prompts of which no two begin with the same id."""
    firsts = dice("firsts", *seed).sample(range(vocabulary), count)
    return [(first, *ids(vocabulary, tokens - 1, first, *seed)) for first in firsts]


class Words:
    """Words that are one token each in the middle of a text. NotMeasured if there are hardly any."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        words = {token[1:] for token in vocabulary if token.startswith(_SPACES)}
        self._words = sorted(filter(_is_plain, words))
        if len(self._words) < _WORDS_MIN:
            raise NotMeasured(f"this model's vocabulary has {len(self._words)} words to make prompts of")

    @classmethod
    def of(cls, folder: Path) -> "Words":
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab())

    def text(self, tokens: int, *seed: object) -> str:
        """Return so many words, which are about as many tokens."""
        return " ".join(dice("words", *seed).choices(self._words, k=tokens))

    def span(self, span: Span, *seed: object) -> str:
        return self.text(dice("length", *seed).randint(span.least, span.most), *seed)


def _is_plain(word: str) -> bool:
    return len(word) >= _LETTERS_MIN and word.isascii() and word.isalpha() and word.islower()
