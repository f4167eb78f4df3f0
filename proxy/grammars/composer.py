"""A request to the grammar of its whole answer: thoughts, then a text of its shape, or calls."""

import json
from threading import Lock
from typing import Final

from proxy.formats.format import PLAIN, Format
from proxy.grammars.calls import Calls
from proxy.grammars.compiler import Compiler
from proxy.grammars.shapes import Rule, refuse, shape_rule
from proxy.grammars.thoughts import Thoughts, first_word, in_regex
from proxy.request import Parsed
from proxy.text_model import TextModel
from shared.limits import GRAMMAR_CHARS_MAX

# Blanks that models put before JSON and calls, and behind a thought.
_LEAD: Final = "/[ \\n]{0,2}/"


class Composer:
    """Makes the grammars of one model's answers. It may be used in any thread.

    A grammar is in llguidance's dialect of Lark, or, around a client's own grammar in Lark, its JSON form of
    several. It names tokens by their ids, so it is good for this model's tokenizer only; ids that the model
    hasn't, from `vocabulary` on, are in none.
    """

    def __init__(self, text_model: TextModel, vocabulary: int) -> None:
        self._text_model = text_model
        self._stops = tuple(id_ for id_ in text_model.stop_ids if id_ < vocabulary)
        self._compiler: Compiler | None = None
        self._lock = Lock()

    def grammar(self, parsed: Parsed, *, thinks: bool) -> str:
        """Return the grammar, empty for an answer that nothing is asked of.

        `thinks`: the prompt ends inside a thought. InvalidRequest names the field that can't be held to.
        """
        format_ = self._text_model.format if parsed.reads_format else PLAIN
        if parsed.shape is None and not parsed.tools.tools and parsed.thinking.budget_tokens is None:
            return ""
        compiler = self._made_compiler()
        thoughts = Thoughts(format_, self._stops, parsed.thinking, thinks)
        calls = Calls(format_, parsed.tools, parsed.endpoint, compiler)
        rule = None if parsed.shape is None else shape_rule(parsed.shape, compiler)
        text = _composed(thoughts, calls, rule)
        if len(text) > GRAMMAR_CHARS_MAX:
            param = "tools" if parsed.shape is None else parsed.shape.param
            refuse(f"makes a grammar of more than {GRAMMAR_CHARS_MAX} characters", param)
        return text

    def _made_compiler(self) -> Compiler:
        """Return the one compiler, made when a grammar is asked for first."""
        with self._lock:
            if self._compiler is None:
                self._compiler = Compiler({*self._text_model.format.words.values(), *self._stops})
            return self._compiler


def _composed(thoughts: Thoughts, calls: Calls, shape: Rule | None) -> str:
    answer = _answer(thoughts, calls, shape)
    if answer is None:
        return ""
    # Blanks behind a thought are no part of a text that has to be exact.
    exact = shape is not None and not shape.leads and not thoughts.format.text_begins
    before = thoughts.terms(_LEAD if exact else "")
    lark = f"start: {before} answer\nanswer: {answer}\n{thoughts.rules}"
    if shape is None or not shape.grammar or calls.are_asked:
        return lark
    grammars = [
        {"name": "answer", "lark_grammar": lark},
        {"name": "shape", "lark_grammar": shape.grammar},
    ]
    return json.dumps({"grammars": grammars})


def _answer(thoughts: Thoughts, calls: Calls, shape: Rule | None) -> str | None:
    """Return the terms of what follows the thoughts; None if neither it nor they are constrained."""
    if calls.are_asked:
        return _asked(thoughts, calls)
    if shape is not None:
        text = f"{_begins(thoughts.format)} {_LEAD if shape.leads else ''} {shape.terms}"
        return f"{text} | {_group(calls)}" if calls.are_possible else text
    if calls.are_held:
        return _free(thoughts, calls)
    return _unheld(thoughts) if thoughts.has_budget else None


def _asked(thoughts: Thoughts, calls: Calls) -> str:
    if calls.format.call_rule is not None:
        return _group(calls)
    return f"{_blanks(calls.format)} {calls.begun()} {thoughts.free}"


def _free(thoughts: Thoughts, calls: Calls) -> str:
    """Return the terms of a text in which the words that begin a call lead into a whole one."""
    if calls.format.call_rule is None:
        return calls.begun()  # which refuses what is strict
    begins = calls.format.text_begins
    if begins:
        return f"{calls.format.lark(begins)} {thoughts.free} | {calls.terms()}"
    token = first_word(calls.format, calls.format.call_begins)
    if token is not None:
        return f"{thoughts.free_but(token)} ({calls.terms()})?"
    # Calls that begin with plain characters are only read at the beginning.
    first = in_regex(calls.format.call_begins[:1])
    return f"/([^{first}](?s:.*))?/ | {calls.terms()}"


def _unheld(thoughts: Thoughts) -> str:
    """Return the terms of any text and calls behind a thought that has a budget; no further one may begin."""
    begins = thoughts.format.text_begins
    if not begins:
        return thoughts.free
    ways = " | ".join(map(thoughts.format.lark, filter(None, (begins, thoughts.format.call_begins))))
    return f"({ways}) {thoughts.free}"


def _group(calls: Calls) -> str:
    return f"{_blanks(calls.format)} {calls.terms()}"


def _begins(format_: Format) -> str:
    return format_.lark(format_.text_begins) if format_.text_begins else ""


def _blanks(format_: Format) -> str:
    """Return blanks before calls, where a format doesn't say with which token an answer goes on."""
    return "" if format_.text_begins else _LEAD
