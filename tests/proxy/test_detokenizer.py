"""Tokens to text: nothing lost, nothing twice, never half a character, and a bounded cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.detokenizer import Detokenizer
from tests.proxy.small_tokenizers import SPECIALS, byte_fallback, byte_level, spell, straddling

BYTES = byte_level()
STRADDLING = straddling()
FALLBACK = byte_fallback()
UNKNOWN = "\ufffd"

MIXED = st.text(
    st.sampled_from("ab é€漢字😀👩\u200d🚀e\u0301\n\ufffd") | st.characters(exclude_categories=["Cs"])
)
# The alphabet's words, spaces in all places, and characters that fall back to bytes.
FALLBACK_TEXT = st.text(st.sampled_from("abc dé€漢😀ü"), min_size=1)


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def decoded(tokenizer, ids):
    return tokenizer.decode(list(ids))


def byte_ids(raw, tokenizer=BYTES):
    return [tokenizer.token_to_id(spell(bytes([byte]))) for byte in raw]


def streamed(tokenizer, ids):
    """Return the pieces that feed gave, and what finish gave."""
    detokenizer = Detokenizer(lambda window: tokenizer.decode(list(window)))
    return [detokenizer.feed(token) for token in ids], detokenizer.finish()


@given(MIXED, st.data())
def test_a_byte_level_text_cut_anywhere_adds_up_to_the_full_decode(text, data):
    ids = ids_of(BYTES, text)
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    pieces, rest = streamed(BYTES, ids)
    assert "".join(pieces) + rest == decoded(BYTES, ids)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=UNKNOWN)))
def test_no_character_that_comes_to_be_is_shown_as_unknown(text):
    pieces, rest = streamed(BYTES, ids_of(BYTES, text))
    assert UNKNOWN not in "".join(pieces)
    assert rest == ""


@given(st.lists(st.integers(0, 255) | st.sampled_from(list("€😀".encode())), max_size=120))
def test_bytes_that_are_no_text_add_up_to_the_full_decode(raw):
    ids = byte_ids(raw)
    pieces, rest = streamed(BYTES, ids)
    assert "".join(pieces) + rest == decoded(BYTES, ids)


@given(st.integers(1, 80), st.integers(0, 6))
def test_tokens_that_straddle_characters_show_each_one_when_it_is_whole(count, ends_cut):
    """No token but the last ends where a character ends, so there is never a clean place to cut."""
    ids = ids_of(STRADDLING, "€" * count)
    assert any(len(STRADDLING.id_to_token(token)) == 3 for token in ids) or count < 2
    ids = ids[: max(0, len(ids) - ends_cut)]
    pieces, rest = streamed(STRADDLING, ids)
    assert "".join(pieces) + rest == decoded(STRADDLING, ids)
    assert UNKNOWN not in "".join(pieces)
    assert len("".join(pieces)) >= len(ids) - 2 * 3


@given(FALLBACK_TEXT)
def test_a_byte_fallback_text_adds_up_to_the_full_decode(text):
    ids = ids_of(FALLBACK, text)
    pieces, rest = streamed(FALLBACK, ids)
    assert "".join(pieces) + rest == decoded(FALLBACK, ids)
    assert UNKNOWN not in "".join(pieces)
    assert rest == ""


@given(FALLBACK_TEXT, st.data())
def test_a_byte_fallback_text_cut_anywhere_loses_at_most_its_last_character(text, data):
    """The full decode itself shows whole characters as unknown there: the shown text is the better one."""
    ids = ids_of(FALLBACK, text)
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    pieces, rest = streamed(FALLBACK, ids)
    whole = "".join(pieces)
    assert decoded(FALLBACK, ids_of(FALLBACK, text)).startswith(whole)
    assert rest in {UNKNOWN * length for length in range(4)}


def test_leading_spaces_of_words_survive():
    tokens = ["▁", "a", "▁", "b", "▁", "▁", "c"]
    pieces, _ = streamed(FALLBACK, [FALLBACK.token_to_id(token) for token in tokens])
    assert pieces == ["", "a", " ", "b", " ", " ", "c"]


def test_spaces_at_the_very_beginning_survive_but_for_the_one_that_is_never_shown():
    tokens = ["▁", "▁", "▁", "a"]
    pieces, rest = streamed(FALLBACK, [FALLBACK.token_to_id(token) for token in tokens])
    assert "".join(pieces) + rest == "  a"


def test_a_completion_keeps_the_space_before_its_first_word():
    """Without the prompt as context, SentencePiece's manner would glue the two together."""
    prompt, answer = ids_of(FALLBACK, "abc" * 10), ids_of(FALLBACK, "dad")
    detokenizer = Detokenizer(lambda window: FALLBACK.decode(list(window)), context=prompt)
    assert [detokenizer.feed(token) for token in answer] == [" ", "d", "a", "d"]
    assert detokenizer.finish() == ""


@given(MIXED, st.data())
def test_a_text_continued_at_any_character_adds_up_to_the_whole(text, data):
    start = data.draw(st.integers(0, len(text)))
    detokenizer = Detokenizer(lambda window: BYTES.decode(list(window)), context=ids_of(BYTES, text[:start]))
    pieces = [detokenizer.feed(token) for token in ids_of(BYTES, text[start:])]
    assert text[:start] + "".join(pieces) + detokenizer.finish() == text


def test_an_emoji_cut_by_the_limit_ends_in_one_unknown_character():
    pieces, rest = streamed(BYTES, byte_ids("😀😀".encode())[:-1])
    assert "".join(pieces) == "😀"
    assert rest == UNKNOWN


def test_a_character_that_really_is_unknown_is_shown():
    pieces, rest = streamed(BYTES, ids_of(BYTES, f"a{UNKNOWN}b{UNKNOWN}"))
    assert "".join(pieces) + rest == f"a{UNKNOWN}b{UNKNOWN}"


@pytest.mark.parametrize("token", SPECIALS)
def test_special_tokens_have_no_text_and_take_no_space_away(token):
    special = FALLBACK.token_to_id(token)
    word = [FALLBACK.token_to_id("▁"), FALLBACK.token_to_id("a")]
    pieces, rest = streamed(FALLBACK, [*word, *[special] * 100, *word])
    assert "".join(pieces) + rest == "a a"


ENDLESS = {
    "no text": byte_ids(b"\xff"),
    "beginnings": byte_ids(b"\xf0\x9f\x98"),
    "continuations": byte_ids(b"\x80"),
    "unknown characters": byte_ids(UNKNOWN.encode()),
    "special tokens": [BYTES.token_to_id(SPECIALS[0])],
    "text": byte_ids("ab€".encode()),
}


@pytest.mark.parametrize("ids", ENDLESS.values(), ids=ENDLESS.keys())
def test_no_stream_makes_the_window_or_what_is_held_back_grow(ids):
    """Cost per token is the window's length; held back is what the full decode has more."""
    ids = (ids * 1000)[:1000]
    windows = []

    def decode(window):
        windows.append(len(window))
        return BYTES.decode(list(window))

    detokenizer = Detokenizer(decode)
    shown = "".join(map(detokenizer.feed, ids))
    assert max(windows) <= 40
    assert len(windows) <= 2 * len(ids)
    whole = BYTES.decode(ids)
    assert whole.startswith(shown)
    assert len(whole) - len(shown) <= 20
    assert shown + detokenizer.finish() == whole


def test_a_byte_fallback_stream_of_no_text_is_shown_as_it_comes():
    ids = [FALLBACK.token_to_id("<0xFF>")] * 200
    pieces, rest = streamed(FALLBACK, ids)
    assert len("".join(pieces)) >= 180
    assert "".join(pieces) + rest == UNKNOWN * 200
