"""The compiler on trial: what it remembers, and its complaints in our words."""

from proxy.grammars import compiler as compiling
from proxy.grammars.compiler import Compiler
from proxy.grammars.compiler_words import NOTHING_FITS, in_words


def test_a_verdict_is_remembered(monkeypatch):
    tried = []
    real = Compiler._tried
    monkeypatch.setattr(
        Compiler, "_tried", lambda self, grammar: tried.append(grammar) or real(self, grammar)
    )
    compiler = Compiler({5})
    for _ in range(3):
        assert compiler.problem('start: "a"') is None
        assert "unknown name" in compiler.problem("start: a")
    assert tried == ['start: "a"', "start: a"]


def test_so_many_verdicts_are_remembered_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(compiling, "GRAMMAR_VERDICTS_MAX", 2)
    tried = []
    monkeypatch.setattr(Compiler, "_tried", lambda _self, grammar: tried.append(grammar))
    compiler = Compiler(set())
    for grammar in ("a", "b", "a", "c", "a", "b"):
        compiler.problem(grammar)
    assert tried == ["a", "b", "c", "b"]


def test_tokens_are_known_by_their_ids_however_high():
    compiler = Compiler({3, 200_000})
    assert compiler.problem('start: <[^3,200000]>* <[200000]> "a"') is None
    assert compiler.problem("start: <[200001]>") is not None


def test_a_grammar_that_only_ends_is_one():
    assert Compiler(set()).problem('start: ""') is None


def test_what_fits_nothing_says_so():
    assert Compiler(set()).problem("start: start") == NOTHING_FITS


def test_a_complaint_that_is_not_known_is_passed_on_in_one_short_line():
    said = in_words(
        "at 1(8): failed to compile JSON schema: something new " + "x" * 900 + "\nand more\n   1 | start: a"
    )
    assert said.startswith("can't be used: something new x")
    assert len(said) < 400
    assert "start" not in said
    assert "more" not in said


def test_a_complaint_about_a_schemas_own_text_ends_before_it():
    assert in_words("at 1(8): odd\n   1 | start: %json {}\n") == "can't be used: odd"


def test_a_panic_is_no_sentence_for_a_client():
    assert in_words("panic: num_rows=2\n<backtrace>") == "is too complex to hold an answer to"
