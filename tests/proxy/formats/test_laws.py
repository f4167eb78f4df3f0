"""What holds for any text at all, in any format: hypothesis makes the texts out of families' marks."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.answer import Call, Text, Thought
from proxy.formats.families import FAMILIES
from proxy.formats.marked import SteppedReader
from tests.proxy.formats.samples import CALLS, TEXTS, TOOLS, hermes, named, read, reader_of, xml

NAMES = [family.name for family in FAMILIES]
_PLAIN = ["a", " ", "\n", "{", "}", "[", "]", '"', "\\", "<", ":", ",", ";", "1", "é", "😀", "run"]


def parts_of(draw: st.DrawFn, text: str) -> list[str]:
    """Cut a text at a few places, some of which may be the same."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def soups(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A family's name, and bits of its marks and answers in any order, cut anywhere."""
    name = draw(st.sampled_from(NAMES))
    known = named(name)
    mine = [sample.text for sample in (*CALLS, *TEXTS) if sample.family == name]
    begins = st.tuples(st.sampled_from(mine), st.integers(0, 400), st.integers(0, 400))
    bits = st.one_of(
        st.sampled_from([*_PLAIN, *sorted(known.marks), *known.thought, known.call_begins]),
        begins.map(lambda each: each[0][min(each[1:]) : max(each[1:])]),
    )
    return name, parts_of(draw, "".join(draw(st.lists(bits, max_size=12))))


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[int, list[str]]:
    """A sample's number, and its text with a bit cut out or put in, cut anywhere."""
    samples = (*CALLS, *TEXTS)
    which = draw(st.integers(0, len(samples) - 1))
    text = samples[which].text
    begin, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    return which, parts_of(draw, text[:begin] + draw(st.sampled_from(["", *_PLAIN])) + text[end:])


@settings(max_examples=200)
@given(soups(), st.booleans(), st.booleans())
def test_what_is_read_depends_on_the_text_alone(
    soup: tuple[str, list[str]], begun: bool, with_tools: bool
) -> None:
    name, parts = soup
    tools = TOOLS if with_tools else ()
    whole = read(named(name).reader(begun, tools), ["".join(parts)])
    assert read(named(name).reader(begun, tools), parts) == whole
    for piece in whole:
        if isinstance(piece, Call):
            assert isinstance(json.loads(piece.arguments), dict)
        else:
            assert piece.text


@settings(max_examples=150)
@given(spoiled())
def test_and_so_it_does_for_answers_with_a_mistake(made: tuple[int, list[str]]) -> None:
    which, parts = made
    sample = (*CALLS, *TEXTS)[which]
    assert read(reader_of(sample), parts) == read(reader_of(sample), ["".join(parts)])


@settings(max_examples=100)
@given(soups())
def test_without_marks_of_thoughts_and_without_calls_a_text_is_what_it_was(
    soup: tuple[str, list[str]],
) -> None:
    name, parts = soup
    text = "".join(parts)
    pieces = read(named(name).reader(False, TOOLS), parts)
    marked = any(mark and mark in text for mark in named(name).thought)
    if name == "gpt-oss" or marked or any(isinstance(piece, Call) for piece in pieces):
        return
    assert pieces == ([Text(text)] if text else [])


@settings(max_examples=100)
@given(st.text(), st.text(), st.text())
def test_any_thought_text_and_argument_come_through(thought: str, text: str, value: str) -> None:
    thought, text = thought.strip(" \t\r\n"), text.strip(" \t\r\n")
    for mark in "<{":
        thought, text = thought.replace(mark, ""), text.replace(mark, "")
    said = ([Thought(thought)] if thought else []) + ([Text(text)] if text else [])
    arguments = json.dumps({"code": value})
    call = [Call("run", arguments)]
    answer = f"<think>\n{thought}\n</think>\n\n{text}\n{hermes(arguments, 'run')}"
    assert read(named("hermes").reader(False, TOOLS), list(answer)) == said + call
    if "</parameter>" in value:
        return
    answer = f"{thought}</think>{text}{xml('run', {'code': value})}"
    found = read(named("qwen-xml").reader(True, TOOLS), list(answer))
    assert found[:-1] == said
    assert isinstance(found[-1], Call)
    assert json.loads(found[-1].arguments) == {"code": value}


def test_what_is_carried_from_piece_to_piece_stays_short_however_long_a_call_is() -> None:
    """Then work is linear in the text: each character is looked at a bounded number of times."""
    long = "x<y \\\\ " * 4000
    for sample in CALLS:
        text = sample.text.replace("Rome", long).replace("007", long)
        reader = reader_of(sample)
        assert isinstance(reader, SteppedReader)
        for at in range(0, len(text), 7):
            reader.feed(text[at : at + 7])
            assert len(reader._window.text) - reader._window.at <= 64
        reader.finish()
        assert reader.held_chars == 0
