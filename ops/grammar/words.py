"""A tokenizer of made-up words for a model of random weights: as many tokens as the model has."""

import random
from typing import Any, Final

from tokenizers import pre_tokenizers

_SEED: Final = 7
_LETTERS_MAX: Final = 9
_BLANK: Final = "Ġ"  # how byte-level tokenizers write a blank
_MARKS: Final = ('"', '":', '",', '{"', '"}', "},", "[", "]", ",", ":", _BLANK)
_DIGITS_MAX: Final = 1000


def made_up_tokenizer(vocabulary: int) -> dict[str, Any]:
    """Return the content of a tokenizer.json: bytes, marks of JSON, numbers, words with and without blanks.

    Trained vocabularies are as mixed; how long a mask takes depends on how many tokens fit, not on which.
    """
    dice = random.Random(_SEED)  # noqa: S311 (words, not secrets)
    tokens = dict.fromkeys(
        (*sorted(pre_tokenizers.ByteLevel.alphabet()), *_MARKS, *map(str, range(_DIGITS_MAX)))
    )
    while len(tokens) < vocabulary:
        letters = dice.choices("etaoinshrdlucmfwypvbgkjqxz", k=dice.randint(2, _LETTERS_MAX))
        tokens[dice.choice(("", _BLANK)) + "".join(letters)] = None
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "vocab": {token: id_ for id_, token in enumerate(list(tokens)[:vocabulary])},
            "merges": [],
        },
    }
