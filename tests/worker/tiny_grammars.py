"""A byte-level tokenizer for the tiny models' vocabulary, and desks that compile grammars with it at once."""

import functools
import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Final

from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from worker.grammar import GrammarError, GrammarTokens
from worker.grammar_desk import GrammarDesk

VOCABULARY: Final = 300
# Some words of several letters, which one token is. The last ids of the vocabulary are no token's.
_MERGED: Final = ('":', '",', '{"', '"}', "tr", "ue", "true", "12", "an", "no", "  ", "}}", "ab", "abc")
EOS: Final = 256 + len(_MERGED)
TURN: Final = EOS + 1
UNUSED: Final = range(TURN + 1, VOCABULARY)
STOPS: Final = (EOS, TURN)


def tiny_tokenizer() -> Tokenizer:
    """Return it with ids 0 to 255 for the bytes, then the merged words, then <eos> and <turn>."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: id_ for id_, letter in enumerate((*letters, *map(_spelled, _MERGED)))}
    merges = [_merge(_spelled(word), vocabulary) for word in _MERGED]
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True), AddedToken("<turn>", special=True)])
    assert tokenizer.token_to_id("<turn>") == TURN
    return tokenizer


def _spelled(word: str) -> str:
    return word.replace(" ", "Ġ")


def _merge(word: str, vocabulary: dict[str, int]) -> tuple[str, str]:
    """Return the two tokens that make a word, the first as long as can be."""
    at = next(at for at in range(len(word) - 1, 0, -1) if {word[:at], word[at:]} <= vocabulary.keys())
    return word[:at], word[at:]


@functools.cache
def tiny_tokens(vocabulary: int = VOCABULARY) -> GrammarTokens:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        tiny_tokenizer().save(str(file))
        return GrammarTokens.read(file, vocabulary)


def text_of(ids: Sequence[int]) -> str:
    """Return what tokens say; bytes that are no text are shown as such."""
    return bytes(tiny_tokens().tokenizer.decode_bytes(list(ids))).decode(errors="backslashreplace")


def ids_of(text: str) -> list[int]:
    return list(tiny_tokenizer().encode(text).ids)


class AtOnce(Executor):
    """Runs what it is given before it returns."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **named))
        except GrammarError as problem:
            future.set_exception(problem)
        return future


class WhenTold(Executor):
    """Keeps what it is given until it is told to run it."""

    def __init__(self) -> None:
        self._kept: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._kept.append((future, functools.partial(call, *arguments, **named)))
        return future

    def run(self) -> None:
        kept, self._kept = self._kept, []
        for future, call in kept:
            future.set_result(call())


def tiny_desk(thread: Executor | None = None) -> GrammarDesk:
    return GrammarDesk(tiny_tokens, thread or AtOnce())


def schema_grammar(schema: dict[str, Any]) -> str:
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema)))
