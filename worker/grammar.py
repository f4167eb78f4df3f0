"""Which tokens a row's grammar allows next: llguidance's matchers, one a row. No MLX.

A guide is always one ahead: when it has taken a token, it knows what may come behind it, and whether anything
may. So what a step is masked with is there before its draw is launched.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from shared.grammar_limits import parser_limits

# A token of our own, beyond all others, stands for the end of an answer in the masks: matchers know one
# list of such tokens for all rows, while rows have their own.
_END: Final = "<|the grammar may end here|>"
_WORD_BITS: Final = 32
_PROBLEM_CHARS_MAX: Final = 500

Words = NDArray[np.uint32]


class GrammarError(Exception):
    """A grammar, or a tokenizer for grammars, can't be used; says why."""


@dataclass(frozen=True, slots=True)
class GrammarTokens:
    """A model's tokens as matchers know them. Those from `vocabulary` on have no logits.

    Masks are bits of 32-bit words: bit `id % 32` of word `id // 32` says whether a token is allowed.
    """

    tokenizer: LLTokenizer
    vocabulary: int
    end: int
    has_logits: Words

    @classmethod
    def read(cls, file: Path, vocabulary: int) -> Self:
        """Read a tokenizer.json for logits of this width. GrammarError if no grammar can be had with it.

        It takes a large part of a second, and holds Python's lock.
        """
        try:
            content = json.loads(file.read_text("utf-8"))
            end = _with_end(content)
            if content["model"].get("type") == "BPE":
                # It would stand for bytes that no token has, and may be one that ends an answer.
                content["model"]["unk_token"] = None
            tokenizer = LLTokenizer(json.dumps(content), n_vocab=max(vocabulary, end + 1), eos_token=[end])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise GrammarError(f"{file}: no grammar can be had with it: {problem}") from problem
        return cls(tokenizer, vocabulary, end, bits_of(range(vocabulary), tokenizer.vocab_size))

    @property
    def words(self) -> int:
        """How many words a mask of logits has."""
        return -(-self.vocabulary // _WORD_BITS)

    @property
    def everything(self) -> Words:
        """The mask that allows every token that has a logit."""
        return self.has_logits[: self.words]

    def compile(self, grammar: str) -> LLMatcher:
        """Return a matcher at the grammar's beginning, its first mask computed once; GrammarError in words.

        The first mask takes the longest. It lets go of Python's lock.
        """
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarError(_said(matcher))
        return matcher


def _with_end(content: dict[str, Any]) -> int:
    """Add _END to the content of a tokenizer.json; return its id, the next after all others."""
    vocabulary = content["model"]["vocab"]
    known = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
    added = content.get("added_tokens") or []
    end = 1 + int(max([*known, *(each["id"] for each in added)]))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content["added_tokens"] = [*added, {"id": end, "content": _END, **flags}]
    content["padding"] = content["truncation"] = None
    return end


def bits_of(ids: Iterable[int], count: int) -> Words:
    """Return words in which the bits of these ids, each below `count`, are set."""
    flags = np.zeros(-(-count // _WORD_BITS) * _WORD_BITS, np.uint8)
    flags[list(ids)] = 1
    packed: Words = np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)
    return packed


def _said(matcher: LLMatcher) -> str:
    return str(matcher.get_error()).partition("\n")[0][:_PROBLEM_CHARS_MAX]


class Guide:
    """One answer's place in its grammar. `words` is the mask of the token that comes next.

    Where the grammar may end, any of `stop_ids` is allowed beside what goes on. `ended` says that nothing
    may come any more; `problem` why no mask can be had, "" if one can. Then, and behind a stop id, `words`
    allows everything: what is drawn from it is nobody's.
    """

    def __init__(self, tokens: GrammarTokens, matcher: LLMatcher, stop_ids: Iterable[int]) -> None:
        self.matcher = matcher
        self.problem = ""
        self.ended = False
        self.tokens = tokens
        self._stop_ids = frozenset(id_ for id_ in stop_ids if id_ < tokens.vocabulary)
        self._stops = bits_of(self._stop_ids, tokens.tokenizer.vocab_size)
        # One that is text as well ends the answer wherever it stands, so it may stand at an end only. Another
        # one stands within a grammar only where that names it.
        plain = [id_ for id_ in self._stop_ids if not tokens.tokenizer.is_special_token(id_)]
        self._closed = tokens.has_logits & ~bits_of([*plain, tokens.end], tokens.tokenizer.vocab_size)
        self.words: Words = tokens.everything
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether no token that comes is this answer's any more."""
        return self._is_over or self.ended or bool(self.problem)

    def is_stop(self, token: int) -> bool:
        return token in self._stop_ids

    def stop(self) -> None:
        """Take note that a stop id was drawn."""
        self._is_over = True
        self.words = self.tokens.everything

    def settle(self, filled: Words) -> None:
        """Take what the matcher allows next, (words of its vocabulary,), as it filled it."""
        if self.matcher.is_error():
            self._fail(_said(self.matcher))
            return
        end = self.tokens.end
        may_end = bool(filled[end // _WORD_BITS] >> np.uint32(end % _WORD_BITS) & np.uint32(1))
        allowed = filled & self._closed
        if may_end and not (allowed & ~self._stops).any():
            self.ended = True
            self.words = self.tokens.everything
        elif may_end:
            self.words = (allowed | self._stops)[: self.tokens.words]
        elif allowed.any():
            self.words = allowed[: self.tokens.words]
        else:
            self._fail("no token of this model can come next")

    def _fail(self, problem: str) -> None:
        self.problem = f"the grammar can't be followed here: {problem}"
        self.words = self.tokens.everything


class GuideSteps:
    """Moves guides on: all of a step side by side, on `threads` threads."""

    def __init__(self, threads: int) -> None:
        self._executor = LLExecutor(threads)

    def advance(self, taken: Sequence[tuple[Guide, int]]) -> None:
        """Let each guide take its row's token, and find out what may come next."""
        moved = []
        for guide, token in taken:
            if guide.is_over:
                continue
            if guide.is_stop(token):
                guide.stop()
            else:
                guide.matcher.consume_token(token)
                moved.append(guide)
        self.fill(moved)

    def fill(self, guides: Sequence[Guide]) -> None:
        """Find out what may come next in each."""
        if not guides:
            return
        filled = np.zeros((len(guides), guides[0].tokens.has_logits.size), np.int32)
        if len(guides) == 1:
            fill_next_token_bitmask(guides[0].matcher, filled)
        else:
            fill_next_token_bitmask_par(
                self._executor, [(guide.matcher, row) for row, guide in enumerate(guides)], filled
            )
        for guide, row in zip(guides, filled.view(np.uint32), strict=True):
            guide.settle(row)
