"""What single tokens are made of: their exact bytes, also where they are half a character."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tokenizers import Tokenizer

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# More than a conversation's own words and their alternatives; a word takes some 300 bytes.
_WORDS_KEPT: Final = 1 << 14
_BYTE_PIECE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Stands before a piece that is decoded, since decoders treat the first piece of a text differently.
_ANCHOR: Final = "a"
_SPACE_AS_LETTER: Final = "\u0120"  # in a byte-level vocabulary


@dataclass(frozen=True, slots=True)
class Word:
    r"""One token as bodies show it, both parts as JSON: its text, and its bytes as a list of numbers.

    Bytes that are no UTF-8 by themselves stand in the text as \xe2. A token that has no part in an answer's
    text (a special one, or an id without a word) has its name for a text, and null for bytes.
    """

    text: str
    raw: str


class Spelling:
    """A tokenizer's words by id; those in use are kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {id_ for id_, word in tokenizer.get_added_tokens_decoder().items() if word.special}
        self._bytes_of_piece = _manner(tokenizer)
        self.word: Callable[[int], Word] = lru_cache(_WORDS_KEPT)(self._word)

    def raw(self, token: int) -> bytes | None:
        """Return a token's own bytes, with the space before it if it has one; None if it has no text."""
        piece = self._tokenizer.id_to_token(token)
        return None if piece is None or token in self._special else self._bytes_of_piece(piece)

    def text(self, token: int) -> str:
        """Return a token's text, or its name if it has none."""
        raw = self.raw(token)
        if raw is None:
            return self._tokenizer.id_to_token(token) or f"<id {token}>"
        return raw.decode("utf-8", "backslashreplace")

    def _word(self, token: int) -> Word:
        raw = self.raw(token)
        return Word(_encode(self.text(token)), "null" if raw is None else _encode(list(raw)))


def _manner(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """Return what turns a vocabulary's piece into bytes, in the manner that the decoder shows to be its."""
    decoder = tokenizer.decoder
    if decoder is None:
        return str.encode

    def decoded(piece: str) -> bytes:
        return str(decoder.decode([_ANCHOR, piece])).removeprefix(_ANCHOR).encode()

    def with_fallback(piece: str) -> bytes:
        byte = _BYTE_PIECE.fullmatch(piece)
        return decoded(piece) if byte is None else bytes.fromhex(byte[1])

    if decoded(_SPACE_AS_LETTER) == b" ":
        return _byte_level
    return with_fallback if decoded("<0x62>") == b"b" else decoded


def _letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Bytes that are visible characters of Latin-1 stand for themselves, the others, in order, are the letters
    from U+0100 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in set(visible)]
    return {
        **{chr(byte): byte for byte in visible},
        **{chr(0x100 + place): byte for place, byte in enumerate(hidden)},
    }


_LETTERS: Final = _letters()


def _byte_level(piece: str) -> bytes:
    """Return what the letters stand for. A piece with any other character is an added word, and is itself."""
    if all(letter in _LETTERS for letter in piece):
        return bytes(_LETTERS[letter] for letter in piece)
    return piece.encode()
