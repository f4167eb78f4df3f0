"""Answers of every family are read as what they are, wherever their text is cut."""

import pytest

from proxy.answer import Call, joined
from proxy.formats.families import FAMILIES
from tests.proxy.formats.samples import CALLS, TEXTS, Sample, named, read, reader_of

EVERY = (*CALLS, *TEXTS)


def title(sample: Sample) -> str:
    return f"{sample.family}-{sample.text[:24]!r}"


@pytest.mark.parametrize("sample", EVERY, ids=title)
def test_an_answer_is_read_as_what_it_is(sample: Sample) -> None:
    assert read(reader_of(sample), [sample.text]) == list(joined(sample.pieces))


@pytest.mark.parametrize("sample", EVERY, ids=title)
def test_an_answer_is_read_alike_wherever_it_is_cut(sample: Sample) -> None:
    text, whole = sample.text, list(joined(sample.pieces))
    wrong = [at for at in range(len(text)) if read(reader_of(sample), [text[:at], text[at:]]) != whole]
    assert wrong == []
    assert read(reader_of(sample), list(text)) == whole


@pytest.mark.parametrize("sample", EVERY, ids=title)
def test_what_is_held_is_part_of_what_came_and_nothing_at_the_end(sample: Sample) -> None:
    reader = reader_of(sample)
    for came, character in enumerate(sample.text, 1):
        reader.feed(character)
        assert 0 <= reader.held_chars <= came
    reader.finish()
    assert reader.held_chars == 0


def test_every_family_has_samples_and_every_family_with_calls_has_one() -> None:
    assert {sample.family for sample in EVERY} == {family.name for family in FAMILIES}
    calling = {family.name for family in FAMILIES if family.format({}, thinks=False).calls_tools}
    assert {sample.family for sample in CALLS if any(isinstance(p, Call) for p in sample.pieces)} == calling


@pytest.mark.parametrize("sample", CALLS, ids=title)
def test_no_calls_are_read_without_tools(sample: Sample) -> None:
    pieces = read(named(sample.family).reader(sample.begun, ()), [sample.text])
    assert not any(isinstance(piece, Call) for piece in pieces)


def test_texts_come_as_soon_as_they_can_be_told_from_marks() -> None:
    reader = named("hermes").reader(False, CALLS[0].tools)
    shown = [str([piece.text for piece in reader.feed(part)]) for part in ("Hel", "lo <", "b> <tool", "_c")]  # type: ignore[union-attr]  # all are texts
    assert shown == ["['Hel']", "['lo']", "[' <b>']", "[]"]


def test_it_is_known_when_a_thought_is_under_way() -> None:
    reader = named("hermes").reader(False, ())
    thinking = [
        (reader.feed(part), reader.is_thinking)[1] for part in ("\n", "<think>", "a", "</think>", "b")
    ]
    assert thinking == [False, True, True, False, False]
    assert named("hermes").reader(True, ()).is_thinking
    harmony = named("gpt-oss").reader(True, ())
    assert (harmony.is_thinking, harmony.feed("a<|end|>"), harmony.is_thinking)[::2] == (True, False)
