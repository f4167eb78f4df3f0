"""Thoughts: a shape holds behind them and never inside, and a budget cuts them."""

import pytest

from proxy.request import Thinking
from tests.proxy.grammars.small_answers import Writer, shape

OBJECT = shape("json_object")
CHOICE = shape("choice", '["yes", "no"]')
KINDS = {"added": {}, "special": {"special": True}, "text": {"added": False}}


@pytest.fixture(params=KINDS)
def writer(request):
    """Return a model that thinks, its words being added tokens, special ones, or plain characters."""
    return Writer("think", **KINDS[request.param])


def test_a_shape_holds_behind_a_thought_and_not_inside(writer):
    grammar = writer.grammar(shape=OBJECT)
    for text in (
        "{}",
        "<think></think>{}",
        '<think>hm {"a": no</think>\n\n{"a": 1}',
        "<think>é\n</think> {}",
    ):
        assert writer.accepts(grammar, text), text
    for text in ("<think>hm", "<think>hm</think>", "<think>hm</think>no", "no", "{}<think>", "</think>{}"):
        assert not writer.accepts(grammar, text), text


def test_a_thought_that_the_prompt_has_begun_is_ended_first(writer):
    grammar = writer.grammar(shape=OBJECT, thinks=True)
    for text in ("hm</think>\n{}", "</think>{}", "{} is it</think>{}"):
        assert writer.accepts(grammar, text), text
    for text in ("{}", "hm</think>hm</think>{}", ""):
        assert not writer.accepts(grammar, text), text


def test_an_exact_text_has_blanks_before_it_only_behind_a_thought(writer):
    grammar = writer.grammar(shape=CHOICE)
    assert writer.accepts(grammar, "yes")
    assert writer.accepts(grammar, "<think>hm</think>\n\nno")
    assert not writer.accepts(grammar, "\nyes")
    assert not writer.accepts(grammar, "<think>hm</think>\n\n\nno")


def test_whoever_turns_thinking_off_gets_no_thought(writer):
    grammar = writer.grammar(shape=OBJECT, thinking=Thinking(enabled=False))
    assert writer.accepts(grammar, "{}")
    assert not writer.accepts(grammar, "<think></think>{}")


def test_an_answer_does_not_end_inside_a_thought():
    writer = Writer("think")
    matcher = writer.matcher(writer.grammar(shape=OBJECT, thinks=True))
    assert writer.stop not in writer.allowed(matcher)
    assert len(writer.allowed(matcher)) > 256


@pytest.mark.parametrize("asked", [{"shape": OBJECT}, {}], ids=["shape", "alone"])
@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("budget", [1, 3, 5000])
def test_a_budget_lets_so_many_tokens_through_and_then_only_the_end(asked, thinks, budget):
    writer = Writer("think")
    matcher = writer.matcher(writer.grammar(thinks=thinks, thinking=Thinking(budget_tokens=budget), **asked))
    begins, ends, any_id = (writer.tokenizer.token_to_id(word) for word in ("<think>", "</think>", "x"))
    if not thinks:
        assert matcher.consume_token(begins)
    for _ in range(budget):
        assert matcher.consume_token(any_id)
    assert writer.allowed(matcher) == [ends]
    assert matcher.consume_token(ends)
    assert begins not in writer.allowed(matcher)


def test_a_thought_may_end_within_its_budget():
    writer = Writer("think")
    grammar = writer.grammar(thinking=Thinking(budget_tokens=3), shape=CHOICE)
    assert writer.accepts(grammar, "<think>ab</think>\nyes")
    assert writer.accepts(grammar, "yes")
    assert not writer.accepts(grammar, "<think>abcd</think>yes")


def test_a_budget_of_nothing_ends_or_prevents_a_thought():
    writer = Writer("think")
    none = Thinking(budget_tokens=0)
    assert writer.accepts(writer.grammar(thinking=none, thinks=True), "</think>text")
    assert writer.accepted(writer.grammar(thinking=none, thinks=True), "x")[0] == ""
    assert writer.accepted(writer.grammar(thinking=none), "<think>")[0] == ""
    assert writer.accepts(writer.grammar(thinking=none), "text")


def test_behind_a_thought_with_a_budget_any_text_may_follow_but_no_other_thought():
    writer = Writer("think")
    grammar = writer.grammar(thinking=Thinking(budget_tokens=2))
    for text in ("", "hi <|im_start|> é", "<think>a</think>\n\nb"):
        assert writer.accepts(grammar, text), text
    assert writer.accepted(grammar, "<think>a</think>b<think>")[0] == "<think>a</think>b"


@pytest.mark.parametrize("writer", [Writer(), Writer("think", added=False)], ids=["none", "text"])
def test_a_budget_that_cannot_be_counted_makes_no_grammar(writer):
    assert writer.grammar(thinking=Thinking(budget_tokens=2)) == ""


def test_thoughts_of_several_words_lead_on_to_where_a_text_begins():
    writer = Writer("gpt-oss")
    grammar = writer.grammar(shape=OBJECT)
    thought = "<|channel|>analysis<|message|>hm {<|end|><|start|>assistant"
    assert writer.accepts(grammar, thought + "<|channel|>final<|message|>{}")
    assert writer.accepts(grammar, "<|channel|>final<|message|>{}")
    assert writer.accepted(grammar, thought + "{}")[0] == thought
    assert writer.accepted(grammar, "{}")[0] == ""


def test_a_budget_holds_for_thoughts_of_several_words():
    writer = Writer("gpt-oss")
    grammar = writer.grammar(thinking=Thinking(budget_tokens=2))
    begins, ends = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
    assert writer.accepts(grammar, f"{begins}ab{ends}<|channel|>final<|message|>text")
    assert writer.accepts(grammar, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}")
    assert writer.accepted(grammar, f"{begins}abc")[0] == f"{begins}ab"
    assert writer.accepted(grammar, f"{begins}ab{ends}{begins}")[0] == f"{begins}ab{ends}<|channel|>"
