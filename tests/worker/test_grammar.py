"""Guides: which tokens may come next, where an answer may end, and what is said when nothing can come."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.tiny_grammars import (
    EOS,
    STOPS,
    TURN,
    UNUSED,
    VOCABULARY,
    ids_of,
    schema_grammar,
    text_of,
    tiny_tokenizer,
    tiny_tokens,
)
from worker.grammar import GrammarError, GrammarTokens, Guide, GuideSteps, bits_of

STEPS = GuideSteps(threads=2)
A, B = ids_of("a") + ids_of("b")
AB = ids_of("ab")[0]


def guide_of(
    grammar: str, said: str = "", stop_ids: Iterable[int] = STOPS, tokens: GrammarTokens | None = None
) -> Guide:
    tokens = tokens or tiny_tokens()
    guide = Guide(tokens, tokens.compile(grammar), stop_ids)
    STEPS.fill([guide])
    for token in ids_of(said):
        STEPS.advance([(guide, token)])
    return guide


def allowed(guide: Guide) -> set[int]:
    bits = np.unpackbits(guide.words.view(np.uint8), bitorder="little")
    return set(np.nonzero(bits)[0].tolist())


EVERYTHING = set(range(VOCABULARY))


def test_the_tokens_that_may_come_next_are_those_that_the_grammar_can_go_on_with() -> None:
    assert allowed(guide_of("start: /a[bx]c?/")) == {A, AB, ids_of("abc")[0]}
    assert allowed(guide_of("start: /a[bx]c?/", "a")) == {B, *ids_of("x")}


def test_of_a_text_that_is_certain_only_the_tokenizers_own_spelling_is_allowed() -> None:
    assert allowed(guide_of('start: "abx"')) == {AB}


def test_ids_that_are_no_token_and_those_that_end_an_answer_are_no_text() -> None:
    free = allowed(guide_of(r"start: /(.|\n)+/"))
    assert free.isdisjoint({*UNUSED, *STOPS, tiny_tokens().end})
    assert {A, B, AB} <= free


def test_where_the_grammar_may_end_any_of_the_rows_stop_ids_is_allowed_beside_what_goes_on() -> None:
    assert allowed(guide_of('start: "ab" "x"?', "ab")) == {*ids_of("x"), *STOPS}
    assert allowed(guide_of('start: "ab" "x"?', "ab", stop_ids=[TURN])) == {*ids_of("x"), TURN}
    assert allowed(guide_of('start: "ab" "x"?', "ab", stop_ids=[])) == set(ids_of("x"))


@pytest.mark.parametrize("grammar", ['start: "ab"', 'start: "a" ("b" | "c")', "start: /[a-b]{2}/"])
@pytest.mark.parametrize("stop_ids", [STOPS, ()])
def test_where_nothing_can_come_any_more_the_answer_has_ended(grammar: str, stop_ids: Iterable[int]) -> None:
    assert not guide_of(grammar, "a", stop_ids).ended
    guide = guide_of(grammar, "ab", stop_ids)
    assert guide.ended
    assert not guide.problem
    assert allowed(guide) == EVERYTHING


def test_an_empty_answer_can_be_all_that_a_grammar_allows() -> None:
    assert guide_of('start: ""').ended


def test_a_stop_id_within_a_grammar_is_allowed_only_where_that_names_it() -> None:
    named = 'start: "a" <turn> "b"'
    assert allowed(guide_of(named, "a", stop_ids=[EOS])) == {TURN}
    assert allowed(guide_of('start: "a" <turn>', "a")) == {TURN}
    assert allowed(guide_of(named)) == {A}


def test_a_stop_id_that_is_text_as_well_is_allowed_only_at_an_end() -> None:
    guide = guide_of("start: /a[ab]{1,2}/", "a", stop_ids=[B])
    assert allowed(guide) == {A, AB}
    STEPS.advance([(guide, A)])
    assert allowed(guide) == {A, B}


def test_behind_a_stop_id_nothing_is_asked_of_the_grammar() -> None:
    guide = guide_of('start: "a" "b"?', "a")
    STEPS.advance([(guide, EOS)])
    assert guide.is_over
    assert not guide.ended
    STEPS.advance([(guide, 5)])
    assert (guide.problem, allowed(guide)) == ("", EVERYTHING)


def test_a_token_that_the_grammar_forbids_is_told_of_and_asked_for_no_more() -> None:
    guide = guide_of('start: "ab"')
    STEPS.advance([(guide, ids_of("x")[0])])
    assert "grammar" in guide.problem
    assert not guide.ended
    assert allowed(guide) == EVERYTHING
    STEPS.advance([(guide, A)])
    assert guide.is_over


def test_guides_side_by_side_move_as_each_would_alone() -> None:
    grammars = ['start: "ab" "x"?', "start: /[0-9]{3}/", schema_grammar({"type": "boolean"}), 'start: "no"']
    texts = ["abx", "123", "true", "xx"]
    together = [guide_of(grammar) for grammar in grammars]
    alone = [guide_of(grammar) for grammar in grammars]
    for at in range(3):
        tokens = [(text + "   ").encode()[at] for text in texts]
        ids = [ids_of(chr(byte))[0] for byte in tokens]
        STEPS.advance(list(zip(together, ids, strict=True)))
        for guide, token in zip(alone, ids, strict=True):
            STEPS.advance([(guide, token)])
        assert [allowed(guide) for guide in together] == [allowed(guide) for guide in alone]
        assert [guide.ended for guide in together] == [guide.ended for guide in alone]
        assert [bool(guide.problem) for guide in together] == [bool(guide.problem) for guide in alone]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_is_drawn_of_what_is_allowed_ends_as_the_grammar_says(data: st.DataObject) -> None:
    schema = {
        "type": "object",
        "properties": {"ab": {"type": "boolean"}, "no": {"enum": ["tr", "é", 12]}},
        "required": ["ab", "no"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
    guide, said = guide_of(schema_grammar(schema)), list[int]()
    while not guide.ended:
        said.append(data.draw(st.sampled_from(sorted(allowed(guide)))))
        STEPS.advance([(guide, said[-1])])
    answer = json.loads(text_of(said))
    assert isinstance(answer["ab"], bool)
    assert answer["no"] in ["tr", "é", 12]


def test_logits_may_be_wider_or_narrower_than_the_tokenizer() -> None:
    for width in (UNUSED[0], 301, 320, 1000):
        guide = guide_of("start: /[a-c]+/", tokens=tiny_tokens(width))
        assert guide.words.size == -(-width // 32)
        assert allowed(guide) == {*ids_of("a"), *ids_of("b"), *ids_of("c"), AB, *ids_of("abc")}


@pytest.mark.parametrize("unknown", [None, "<eos>"])
@pytest.mark.parametrize("byte", ["Ã", "©"], ids=["the first", "the second"])
def test_before_a_byte_that_no_token_has_nothing_can_come_and_the_answer_did_not_end(
    byte: str, unknown: str | None, tmp_path: Path
) -> None:
    """Vocabularies leave out bytes that were rare: a text with one can be begun, and not ended."""
    content = json.loads(tiny_tokenizer().to_str())
    vocabulary = content["model"]["vocab"]
    vocabulary["nothing"] = vocabulary.pop(byte)
    vocabulary["<eos>"] = EOS
    content["model"]["unk_token"] = unknown
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(content), "utf-8")
    guide = guide_of('start: "a" "é"', "a", tokens=GrammarTokens.read(file, VOCABULARY))
    said: list[int] = []
    while not guide.is_over:
        said.append(min(allowed(guide)))
        STEPS.advance([(guide, said[-1])])
    assert not guide.ended
    assert guide.problem.startswith("the grammar can't be followed here")
    assert not set(said) & set(STOPS)
    whole = guide_of('start: "a" "é"', "aé")
    assert (whole.ended, whole.problem) == (True, "")


def test_where_only_tokens_without_logits_could_come_it_is_said_that_none_can() -> None:
    assert "no token" in guide_of('start: "é"', tokens=tiny_tokens(64)).problem


@pytest.mark.parametrize(
    "grammar",
    [
        "start: nobody",
        "start: (",
        "",
        "{}",
        'start: "a" <nobody>',
        "start: /(/",
        "start: /[a-z]{1,9999999}/ x",
    ],
)
def test_a_grammar_that_is_none_is_refused_in_words(grammar: str) -> None:
    with pytest.raises(GrammarError, match=r"\w+ \w+"):
        tiny_tokens().compile(grammar)


def test_a_grammar_beyond_the_limits_is_refused() -> None:
    with pytest.raises(GrammarError):
        tiny_tokens().compile("start: " + "A " * 30_000 + '\nA: "a"')


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": {"vocab": {"a": 0}}}'])
def test_a_tokenizer_that_no_grammar_can_be_had_with_is_told_of(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(content, "utf-8")
    with pytest.raises(GrammarError, match="no grammar can be had"):
        GrammarTokens.read(file, VOCABULARY)


def test_a_tokenizer_that_pads_or_cuts_is_read_without_that(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(2)
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    tokens = GrammarTokens.read(file, VOCABULARY)
    assert tokens.tokenizer.tokenize_str("abxyz") == ids_of("abxyz")


@given(st.sets(st.integers(0, 99)))
def test_bits_say_which_ids(ids: set[int]) -> None:
    words = bits_of(ids, 100)
    assert (words.size, words.dtype) == (4, np.uint32)
    assert {id_ for id_ in range(128) if words[id_ // 32] >> np.uint32(id_ % 32) & np.uint32(1)} == ids
