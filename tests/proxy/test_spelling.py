"""Single tokens: their exact bytes add up to the text, whatever the tokenizer's manner."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from proxy.spelling import Spelling
from proxy.text_model import TextModel
from tests.proxy.small_tokenizers import SPECIALS, byte_fallback, byte_level, spell, straddling, write_folder

BYTES, STRADDLING, FALLBACK = byte_level((("Ġ", "a"),)), straddling(), byte_fallback()
MIXED = st.text(st.sampled_from("ab é€漢字😀\u200d\n\0\ufffd") | st.characters(exclude_categories=["Cs"]))
FALLBACK_TEXT = st.text(st.sampled_from("abc dé€漢😀ü<0xE2>"))


def spelt(tokenizer, text):
    spelling = Spelling(tokenizer)
    return b"".join(spelling.raw(token) for token in tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("tokenizer", [BYTES, STRADDLING], ids=["bytes", "straddling"])
@settings(deadline=None)
@given(MIXED)
def test_the_bytes_of_byte_level_tokens_add_up_to_the_text(tokenizer, text):
    assert spelt(tokenizer, text) == text.encode()


@settings(deadline=None)
@given(FALLBACK_TEXT)
def test_the_bytes_of_byte_fallback_tokens_add_up_to_the_text_with_the_space_before_it(text):
    assert spelt(FALLBACK, text).decode() == (f" {text}" if text and text[0] != " " else text)


def test_every_byte_has_a_token_of_its_own():
    for tokenizer, pieces in (
        (BYTES, [spell(bytes([byte])) for byte in range(256)]),
        (FALLBACK, [f"<0x{byte:02X}>" for byte in range(256)]),
    ):
        spelling = Spelling(tokenizer)
        assert [spelling.raw(tokenizer.token_to_id(piece)) for piece in pieces] == [
            bytes([byte]) for byte in range(256)
        ]


@pytest.mark.parametrize(
    ("tokenizer", "piece", "text", "raw"),
    [
        (BYTES, "a", "a", b"a"),
        (BYTES, "Ġa", " a", b" a"),
        (BYTES, spell(b"\xe2"), "\\xe2", b"\xe2"),
        (STRADDLING, spell(b"\x82\xac\xe2"), "\\x82\\xac\\xe2", b"\x82\xac\xe2"),
        (FALLBACK, "▁", " ", b" "),
        (FALLBACK, "é", "é", "é".encode()),
        (FALLBACK, "<0xE2>", "\\xe2", b"\xe2"),
        (FALLBACK, "<0x0A>", "\n", b"\n"),
    ],
)
def test_half_a_character_is_written_as_its_bytes(tokenizer, piece, text, raw):
    spelling, token = Spelling(tokenizer), tokenizer.token_to_id(piece)
    assert (spelling.text(token), spelling.raw(token)) == (text, raw)
    word = spelling.word(token)
    assert (json.loads(word.text), json.loads(word.raw)) == (text, list(raw))


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["bytes", "fallback"])
@pytest.mark.parametrize("name", SPECIALS)
def test_a_special_token_has_a_name_and_no_bytes(tokenizer, name):
    spelling, token = Spelling(tokenizer), tokenizer.token_to_id(name)
    assert (spelling.text(token), spelling.raw(token), spelling.word(token).raw) == (name, None, "null")


def test_ids_without_a_word_are_told_apart_and_have_no_bytes():
    spelling = Spelling(BYTES)
    assert spelling.text(5000) != spelling.text(5001)
    assert (spelling.raw(5000), spelling.word(5000).raw) == (None, "null")


@pytest.mark.parametrize("word", ["two words", "漢字", "tool"])
@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_an_added_word_that_is_not_special_is_what_a_text_shows_of_it(make, word):
    tokenizer = make()
    tokenizer.add_tokens([word])
    token = tokenizer.token_to_id(word)
    assert Spelling(tokenizer).raw(token).decode() == tokenizer.decode([token]) == word


def test_a_tokenizer_with_another_decoder_or_none_is_spelt_by_it():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "▁b": 1, "c": 2}, unk_token="c"))
    assert Spelling(tokenizer).raw(1) == "▁b".encode()
    tokenizer.decoder = decoders.Metaspace()
    assert (Spelling(tokenizer).raw(0), Spelling(tokenizer).raw(1)) == (b"a", b" b")


def test_a_model_knows_its_spelling(tmp_path):
    model = TextModel.load(write_folder(tmp_path, BYTES))
    assert model.spelling.text(BYTES.token_to_id("Ġa")) == " a"
