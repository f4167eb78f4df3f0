"""Compiles grammars beside the loop, on a thread of its own, and keeps what was compiled last."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final

from llguidance import LLMatcher

from worker.grammar import GrammarError, GrammarTokens, Guide, GuideSteps
from worker.sequence import Sequence

# Matchers at the beginnings of grammars, which answers to requests alike begin with copies of.
_KEPT_MAX: Final = 16


class GrammarDesk:
    """Makes guides, in the order in which they are asked for. Nothing it is given can hurt the loop.

    `read` returns the served tokenizer, or raises GrammarError; it is called on the thread, once. `thread`
    does one thing after the other.
    """

    def __init__(self, read: Callable[[], GrammarTokens], thread: Executor | None = None) -> None:
        self._read = read
        self._tokens: Future[GrammarTokens] | None = None
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._steps = GuideSteps(threads=1)
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._asked: list[tuple[Sequence, Future[Guide]]] = []

    def prepare(self) -> None:
        """Read the tokenizer before it is needed, while there is nothing else to do."""
        if self._tokens is None:
            self._tokens = self._thread.submit(self._read)

    def ask(self, sequence: Sequence) -> None:
        """Have a guide made for a sequence with a grammar, behind the tokens that it has emitted."""
        self.prepare()
        answer = sequence.ids[len(sequence.ids) - sequence.emitted :]
        future = self._thread.submit(self._guide, sequence.sampling.grammar, answer, sequence.stop_ids)
        self._asked.append((sequence, future))

    @property
    def is_asked(self) -> bool:
        """Whether anybody waits for a guide."""
        return bool(self._asked)

    def made(self) -> list[tuple[Sequence, Guide | str]]:
        """Return the guides that are made since the last call, or in words why one can't be, each once."""
        done = [(sequence, future) for sequence, future in self._asked if future.done()]
        self._asked = [each for each in self._asked if each not in done]
        return [(sequence, _result(future)) for sequence, future in done]

    # --- on the thread ------------------------------------------------------------------------------------

    def _guide(self, grammar: str, answer: tuple[int, ...], stop_ids: frozenset[int]) -> Guide:
        assert self._tokens is not None
        tokens = self._tokens.result()
        guide = Guide(tokens, self._matcher(tokens, grammar), stop_ids)
        if answer and not guide.matcher.consume_tokens(list(answer)):
            raise GrammarError(f"what was said before isn't in the grammar: {guide.matcher.get_error()}")
        self._steps.fill([guide])
        if guide.problem:
            raise GrammarError(guide.problem)
        return guide

    def _matcher(self, tokens: GrammarTokens, grammar: str) -> LLMatcher:
        if grammar not in self._kept:
            self._kept[grammar] = tokens.compile(grammar)
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar)
        return self._kept[grammar].deep_copy()


def _result(future: "Future[Guide]") -> Guide | str:
    """Whatever goes wrong on the thread is one answer's trouble."""
    problem = future.exception()
    if problem is None:
        return future.result()
    words = str(problem) if isinstance(problem, GrammarError) else repr(problem)
    return f"the grammar can't be used: {words}"
