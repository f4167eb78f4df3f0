"""A language model of a few lines: the next token is a hash of all ids before it and of the choice.

So a resumed answer whose ids were lost, doubled or mixed up says something else. Every token is a letter of
the tests' byte-level tokenizer, so that texts can be compared instead of ids.
"""

import zlib
from collections.abc import Sequence
from typing import Final

LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
# In a vocabulary of sorted characters that begins with the printable ones.
_FIRST_PRINTABLE: Final = ord("!")


def token_of(letter: str) -> int:
    """Return the id of a printable character."""
    return ord(letter) - _FIRST_PRINTABLE


def next_token(ids: Sequence[int], choice: int) -> int:
    """Return what follows prompt and answer so far."""
    digest = zlib.crc32(repr((tuple(ids), choice)).encode())
    return token_of(LETTERS[digest % len(LETTERS)])


def answer_text(prompt_ids: Sequence[int], tokens: int, choice: int = 0) -> str:
    """Return the text of a whole answer."""
    ids = list(prompt_ids)
    for _ in range(tokens):
        ids.append(next_token(ids, choice))
    return "".join(chr(token + _FIRST_PRINTABLE) for token in ids[len(prompt_ids) :])
