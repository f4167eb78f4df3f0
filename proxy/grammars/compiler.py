"""Tries grammars out, within bounds, so that what reaches the worker compiles there."""

import hashlib
from collections import OrderedDict
from collections.abc import Collection
from threading import Lock
from typing import Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from proxy.grammars.compiler_words import NOTHING_FITS, in_words
from shared.grammar_limits import parser_limits
from shared.limits import GRAMMAR_VERDICTS_MAX

# So many characters of an answer are tried: some grammars are too large only once they have begun.
_STEPS: Final = 16
_BYTES: Final = 256


class Compiler:
    """Tells of a grammar what is wrong with it. It may be used in any thread.

    It knows a tokenizer of single bytes, whose ids are none of `named`, the ids that grammars call by
    number: what a grammar matches doesn't depend on how the model's own tokenizer cuts it. Grammars come
    again with each turn of a conversation, so verdicts are remembered.
    """

    def __init__(self, named: Collection[int]) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(_Bytes(named)))
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._lock = Lock()

    def problem(self, grammar: str) -> str | None:
        """Return the end of a sentence that a field's name begins; None for a grammar that can be used."""
        try:
            key = hashlib.sha256(grammar.encode()).digest()
        except UnicodeEncodeError:
            return "has half of a surrogate pair in it"
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
        verdict = self._tried(grammar)
        with self._lock:
            self._verdicts[key] = verdict
            while len(self._verdicts) > GRAMMAR_VERDICTS_MAX:
                self._verdicts.popitem(last=False)
        return verdict

    def _tried(self, grammar: str) -> str | None:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        for _ in range(_STEPS):
            # An error stays, and makes the mask one of the end alone.
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_error():
                return _verdict(matcher.get_error())
            if not mask:
                return NOTHING_FITS
            first = (mask & -mask).bit_length() - 1
            if first == self._tokenizer.eos_token or not matcher.consume_token(first) or matcher.is_stopped():
                break
        return _verdict(matcher.get_error()) if matcher.is_error() else None


def _verdict(error: str) -> str:
    return NOTHING_FITS if error.startswith("NoExtension") else in_words(error)


class _Bytes:
    """A tokenizer of single bytes: blanks are the last of them, so the first that fits leads on."""

    bos_token_id = None

    def __init__(self, named: Collection[int]) -> None:
        free = (id_ for id_ in range(len(named) + _BYTES + 1) if id_ not in named)
        ids = dict(
            zip(sorted(range(_BYTES), key=lambda byte: (chr(byte).isspace(), byte)), free, strict=False)
        )
        self.eos_token_id = next(free)
        self.special_token_ids = sorted({*named, self.eos_token_id})
        self.tokens = [b""] * (1 + max(self.special_token_ids))
        for byte, id_ in ids.items():
            self.tokens[id_] = bytes([byte])
        for id_ in self.special_token_ids:
            self.tokens[id_] = b"<%d>" % id_
        self._ids = ids

    def __call__(self, text: str | bytes) -> list[int]:
        return [self._ids[byte] for byte in (text if isinstance(text, bytes) else text.encode())]
