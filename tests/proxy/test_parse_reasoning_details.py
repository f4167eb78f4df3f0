"""Thoughts that come back in details: an array in an assistant's message, as some clients keep them."""

import pytest

from shared.limits import REASONING_DETAILS_MAX
from tests.proxy.test_parse_chat import HI, given, refused_field

THOUGHT = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}


def text(said, **more):
    return {"type": "reasoning.text", "text": said, **more}


def answer(*details, **fields):
    return {"role": "assistant", "content": "Yes", "reasoning_details": list(details), **fields}


def thought_of(*details):
    (message,) = given(answer(*details))
    return message.get("reasoning_content")


def test_texts_and_summaries_are_the_thought():
    full = {"id": "r1", "format": "unknown", "signature": None, "index": 0}
    assert given(answer(text("Hm", **full))) == [THOUGHT]
    assert given(answer({"type": "reasoning.summary", "summary": "Hm"})) == [THOUGHT]


def test_what_is_encrypted_or_has_no_text_is_left_out():
    hidden = {"type": "reasoning.encrypted", "data": "gAAA", "id": "r2", "format": "unknown", "index": 1}
    signed = {"type": "reasoning.text", "text": None, "signature": "c2ln", "index": 2}
    assert given(answer(text("Hm", index=0), hidden, signed)) == [THOUGHT]
    assert thought_of(hidden, signed) is None
    assert thought_of() is None


def test_bits_of_one_index_are_one_text_and_others_begin_a_line():
    assert thought_of(text("H", index=0), text("m", index=0), text("So", index=1)) == "Hm\nSo"
    assert thought_of(text("H"), text("m")) == "Hm"
    assert thought_of(text("H", index=0), text("", index=1), text("m", index=0)) == "Hm"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_a_thought_that_is_there_by_name_is_not_said_twice(field):
    assert given(answer(text("other"), **{field: "Hm"})) == [THOUGHT]


@pytest.mark.parametrize(
    ("details", "at"),
    [
        ("Hm", ""),
        ({"0": text("Hm")}, ""),
        (["Hm"], ".0"),
        ([text("Hm"), {"text": "Hm"}], ".1.type"),
        ([{"type": "reasoning.image"}], ".0.type"),
        ([{"type": ["reasoning.text"]}], ".0.type"),
        ([text(5)], ".0.text"),
        ([{"type": "reasoning.summary", "summary": ["Hm"]}], ".0.summary"),
        ([{"type": "reasoning.encrypted", "data": {}}], ".0.data"),
        ([text("Hm", index="0")], ".0.index"),
        ([text("Hm", colour="red")], ".0.colour"),
        ([text("")] * (REASONING_DETAILS_MAX + 1), ""),
    ],
)
def test_wrong_details_are_refused_by_their_path(details, at):
    message = {"role": "assistant", "content": "Yes", "reasoning_details": details}
    assert refused_field([HI, message]) == f"messages.1.reasoning_details{at}"


def test_details_belong_to_an_assistant():
    message = {"role": "user", "content": "Yes", "reasoning_details": [text("Hm")]}
    assert refused_field([HI, message]) == "messages.1.reasoning_details"
