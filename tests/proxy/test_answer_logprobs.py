"""Entries of log probabilities: each once, in order, with its text, and in the shapes that clients know."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.answer_logprobs import WAITING_MAX, AnswerLogprobs, ChatForm, CompletionForm
from proxy.answer_text import AnswerText
from proxy.dialects.table import DIALECTS
from proxy.spelling import Spelling
from shared.messages import RowLogprobs
from tests.proxy.small_tokenizers import byte_fallback, byte_level, spell

BYTES, FALLBACK = byte_level(), byte_fallback()
SPELLING = Spelling(BYTES)
E2, A, B = (BYTES.token_to_id(spell(raw)) for raw in (b"\xe2", b"a", b"b"))
END = BYTES.token_to_id("<|im_end|>")


class Places:
    """Entries that say only whose they are."""

    def entry(self, begins, token, record):
        return (str(begins), str(token), str(record.logprob))

    def value(self, entries):
        return json.dumps(entries)


def record(number=-1.0, *tops):
    return RowLogprobs(0, number, tuple(id_ for id_, _ in tops), tuple(each for _, each in tops))


# --- when an entry is due -----------------------------------------------------------------------------------


def test_an_entry_is_due_once_its_text_begins_to_be_shown():
    mine = AnswerLogprobs(Places())
    for place, token in enumerate((70, 71, 72)):
        mine.came(place, token, record())
    assert mine.due(0) == ()
    assert [token for _, token, _ in mine.due(2)] == ["70", "71"]
    assert mine.due(2) == ()
    assert [token for _, token, _ in mine.rest()] == ["72"]
    assert mine.rest() == ()


def test_a_token_without_a_record_has_no_entry_and_is_counted():
    mine = AnswerLogprobs(Places())
    mine.came(0, 70, None)
    mine.came(1, 71, record())
    assert mine.due(2) == (("1", "71", "-1.0"),)
    assert mine.lacking == 1


def written(pieces):
    return "".join(piece.text for piece in pieces)


def pieces_of(tokenizer, ids, stops, context=()):
    """Return (shown text, its entries' places) for each token, then for the end; and whether a stop came."""
    text = AnswerText(lambda window: tokenizer.decode(list(window)), stops, context)
    mine, pieces = AnswerLogprobs(Places()), []
    for index, token in enumerate(ids):
        mine.came(text.made_chars, token, record(-float(index)))
        shown = written(text.feed(token))
        if shown or text.stopped:
            pieces.append((shown, mine.due(text.shown_chars)))
        if text.stopped:
            return pieces, True
    rest = written(text.finish())
    return [*pieces, (rest, mine.due(text.shown_chars) if text.stopped else mine.rest())], text.stopped


TEXTS = st.text(st.sampled_from("abE ND€漢😀"), max_size=30)
STOPS = st.lists(st.sampled_from(["END", "a b", "b", "€", "E", "ab漢"]), max_size=3).map(tuple)


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["bytes", "fallback"])
@settings(deadline=None)
@given(TEXTS, STOPS, st.data())
def test_every_token_of_the_shown_text_has_its_entry_once_in_order_and_never_late(
    tokenizer, text, stops, data
):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    pieces, stopped = pieces_of(tokenizer, ids, stops)
    entries = [entry for _, mine in pieces for entry in mine]
    assert [entry[1:] for entry in entries] == [
        (str(token), str(-float(index))) for index, token in enumerate(ids[: len(entries)])
    ]
    if not stopped:
        assert len(entries) == len(ids)
    shown = 0
    for piece, mine in pieces[:-1]:
        before, shown = shown, shown + len(piece)
        assert all(before <= int(begins) < shown for begins, *_ in mine)


@settings(deadline=None)
@given(st.text(st.sampled_from("abc "), max_size=20), st.sampled_from(["abc", "c a", "b"]))
def test_of_a_text_that_a_stop_string_cuts_exactly_the_tokens_before_the_cut_have_entries(text, stop):
    """A token is a character here."""
    ids = BYTES.encode(text).ids
    pieces, stopped = pieces_of(BYTES, ids, (stop,))
    entries = [entry for _, mine in pieces for entry in mine]
    assert stopped == (stop in text)
    assert len(entries) == (text.index(stop) if stopped else len(text))
    assert [int(begins) for begins, *_ in entries] == list(range(len(entries)))


def test_a_text_that_is_held_back_keeps_its_entries_back():
    """What begins like a stop string may yet be cut, though a part of the same piece is shown."""
    pieces, stopped = pieces_of(BYTES, BYTES.encode("EEND").ids, ("END",))
    assert stopped
    assert [(shown, [begins for begins, *_ in mine]) for shown, mine in pieces] == [("E", ["0"]), ("", [])]


def test_the_tokens_of_one_character_come_with_it():
    pieces, _ = pieces_of(BYTES, BYTES.encode("a€b").ids, ())
    assert [(shown, [begins for begins, *_ in mine]) for shown, mine in pieces] == [
        ("a", ["0"]),
        ("€", ["1", "1", "1"]),
        ("b", ["2"]),
        ("", []),
    ]


def test_a_token_without_text_comes_with_the_next_text_or_the_end():
    pieces, _ = pieces_of(BYTES, [A, END, B, END], ())
    assert [(shown, [token for _, token, _ in mine]) for shown, mine in pieces] == [
        ("a", [str(A)]),
        ("b", [str(END), str(B)]),
        ("", [str(END)]),
    ]


@pytest.mark.parametrize("before", [[], [A]], ids=["at the beginning", "after a text"])
def test_more_than_so_many_tokens_without_text_wait_for_none(before):
    mine = AnswerLogprobs(Places())
    for number in range(WAITING_MAX):
        mine.came(len(before), number, record())
        assert mine.due(len(before)) == ()
    mine.came(len(before), WAITING_MAX, record())
    assert [int(token) for _, token, _ in mine.due(len(before))] == list(range(WAITING_MAX + 1))
    mine.came(len(before), 7, record())
    assert mine.due(len(before)) == ()
    assert [token for _, token, _ in mine.rest()] == ["7"]


# --- what it looks like -------------------------------------------------------------------------------------


def test_a_chats_entries():
    form = ChatForm(SPELLING)
    entries = [
        form.entry(0, A, record(-0.5, (A, -0.5), (END, -2.5))),
        form.entry(1, E2, record(-9999.0)),
    ]
    assert json.loads(form.value(entries)) == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "<|im_end|>", "logprob": -2.5, "bytes": None},
                ],
            },
            {"token": "\\xe2", "logprob": -9999.0, "bytes": [0xE2], "top_logprobs": []},
        ],
        "refusal": None,
    }
    assert json.loads(form.value([])) == {"content": [], "refusal": None}


def test_a_completions_lists():
    form = CompletionForm(SPELLING, 2)
    entries = [
        form.entry(0, A, record(-0.5, (A, -0.5), (B, -2.5))),
        form.entry(1, E2, record(-7.0, (A, -0.25), (B, -2.0))),
    ]
    assert json.loads(form.value(entries)) == {
        "tokens": ["a", "\\xe2"],
        "token_logprobs": [-0.5, -7.0],
        "top_logprobs": [{"a": -0.5, "b": -2.5}, {"a": -0.25, "b": -2.0, "\\xe2": -7.0}],
        "text_offset": [0, 1],
    }


def test_a_completion_that_wants_no_alternatives_gets_null_for_them():
    form = CompletionForm(SPELLING, 0)
    assert json.loads(form.value([form.entry(3, A, record(-0.5))])) == {
        "tokens": ["a"],
        "token_logprobs": [-0.5],
        "top_logprobs": None,
        "text_offset": [3],
    }


def test_two_ids_of_one_text_are_one_alternative_the_likelier_one():
    form = CompletionForm(Spelling(FALLBACK), 2)
    word, byte = FALLBACK.token_to_id("a"), FALLBACK.token_to_id("<0x61>")
    value = json.loads(form.value([form.entry(0, byte, record(-2.0, (word, -1.0), (byte, -2.0)))]))
    assert value["top_logprobs"] == [{"a": -1.0}]
    assert value["token_logprobs"] == [-2.0]


@settings(deadline=None)
@given(st.integers(0, 258), st.lists(st.integers(0, 258), max_size=4), st.floats(-9999, 0))
def test_whatever_the_tokens_are_the_entries_are_json(token, tops, number):
    given_record = record(number, *((top, number) for top in tops))
    for endpoint in ("chat", "completions"):
        form = DIALECTS[endpoint].form(SPELLING, len(tops))
        value = json.loads(form.value([form.entry(0, token, given_record)] * 2))
        first = value["content"][0] if endpoint == "chat" else {"logprob": value["token_logprobs"][0]}
        assert first["logprob"] == number
