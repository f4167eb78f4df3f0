"""Calls that a grammar lets a model write are read as calls of that tool, with arguments by its schema."""

import json
import random
from collections.abc import Mapping
from functools import cache

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from proxy.answer import Call, Piece
from proxy.formats.families import FAMILIES
from proxy.formats.format import Format
from proxy.formats.lark import lark_text
from proxy.formats.table import format_of
from proxy.request import Tool
from proxy.text_model import TextModel
from tests.proxy.formats.samples import glm, minimax, read, xml
from tests.proxy.small_tokenizers import byte_level

TOOL = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"enum": ["Rome", '}"</tool>\\', "Orléans"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
RULED = [family.name for family in FAMILIES if family.writing is not None]


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """Return a byte-level tokenizer with a family's marks, the first of which it calls special."""
    tokenizer = byte_level()
    (family,) = (family for family in FAMILIES if family.name == name)
    marks = sorted(family.marks)
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks[:2]])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks[2:]])
    return tokenizer


def known(name: str) -> tuple[TextModel, Format]:
    tokenizer = tokenizer_of(name)
    added = {token.content: id_ for id_, token in tokenizer.get_added_tokens_decoder().items()}
    return TextModel(tokenizer, None, ()), format_of("", added, name)


def guided(name: str, lark: str) -> LLMatcher:
    tokenizer = tokenizer_of(name)
    guide = LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id("<|endoftext|>"))
    matcher = LLMatcher(guide, lark)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def calls_rule(format_: Format, calls: int, tool: Tool = TOOL) -> str:
    """Return a grammar for so many calls and nothing else."""
    assert format_.call_rule is not None
    opens, closes = format_.calls_around
    between = format_.lark(format_.call_between or "")
    body = f" {between} ".join(["call"] * calls)
    return f"start: {format_.lark(opens)} {body} {format_.lark(closes)}\ncall: {format_.call_rule(tool)}\n"


def written(matcher: LLMatcher, choose: random.Random) -> list[int]:
    """Let chance write what a grammar allows, until nothing more is."""
    ids: list[int] = []
    while not matcher.is_stopped():
        mask = matcher.compute_logit_bias()
        allowed = [id_ for id_, bias in enumerate(mask) if bias]
        # White space may go on for ever.
        ids.append(choose.choice([id_ for id_ in allowed if id_ not in _BLANKS] or allowed))
        assert matcher.consume_token(ids[-1])
    return ids


_BLANKS = {byte_level().token_to_id(word) for word in ("\u0120", "\u010a", "\u010d", "\u0109")}


def pieces_of(model: TextModel, format_: Format, ids: list[int]) -> list[Piece]:
    end = tokenizer_of(format_.name).token_to_id("<|endoftext|>")
    text = model.decoder(format_)([id_ for id_ in ids if id_ != end])
    return read(format_.reader(False, (TOOL,)), [text])


@pytest.mark.parametrize("name", RULED)
def test_whatever_the_rule_allows_is_read_as_that_call(name: str) -> None:
    model, format_ = known(name)
    for seed in range(4):
        ids = written(guided(name, calls_rule(format_, 1)), random.Random(seed))
        (piece,) = pieces_of(model, format_, ids)
        assert isinstance(piece, Call)
        arguments = json.loads(piece.arguments)
        assert (piece.name, arguments.keys()) == (TOOL.name, {"city", "days"})
        assert arguments["city"] in TOOL.parameters["properties"]["city"]["enum"]
        assert arguments["days"] in range(10)


@pytest.mark.parametrize("name", RULED)
def test_several_calls_are_read_where_a_family_makes_them(name: str) -> None:
    model, format_ = known(name)
    if format_.call_between is None:
        assert name == "gpt-oss"
        return
    ids = written(guided(name, calls_rule(format_, 3)), random.Random(1))
    pieces = pieces_of(model, format_, ids)
    assert [piece.name for piece in pieces if isinstance(piece, Call)] == [TOOL.name] * 3
    assert len(pieces) == 3


@pytest.mark.parametrize("name", RULED)
def test_marks_are_named_by_their_tokens_in_all_that_a_format_writes(name: str) -> None:
    model, format_ = known(name)
    texts = [*format_.calls_around, *format_.thought, format_.text_begins, format_.call_begins]
    for text in filter(None, texts):
        matcher = guided(name, f"start: {format_.lark(text)}\n")
        ids = tokenizer_of(name).encode(text, add_special_tokens=False).ids
        assert (matcher.try_consume_tokens(ids), matcher.is_accepting()) == (len(ids), True)
        assert model.decoder(format_)(ids) == text


def test_a_text_of_quotes_and_line_breaks_is_one_term() -> None:
    assert lark_text('a"\n\\é', {}) == '"a\\"\\n\\\\\\u00e9"'
    assert lark_text("<a>b<a>", {"<a>": 7}) == '<[7]> "b" <[7]>'
    assert lark_text("", {"<a>": 7}) == '""'


FREE = Tool(
    "run",
    parameters={
        "type": "object",
        "properties": {
            "code": {"type": "string"},
            "note": {"type": ["string", "null"]},
            "size": {"enum": ["a", 1, None, "x<y"]},
            "at": {"$ref": "#/$defs/place"},
            "list": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["code"],
        "additionalProperties": False,
        "$defs": {"place": {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}},
    },
)
TAGGED = {"qwen-xml": xml, "glm": glm, "minimax": minimax}


def accepts(name: str, tool: Tool, values: Mapping[str, str]) -> Call | None:
    """Return the call with these values as it is read, if the rule allows it."""
    model, format_ = known(name)
    opens, closes = format_.calls_around
    text = opens + TAGGED[name](tool.name, values) + closes
    ids = tokenizer_of(name).encode(text, add_special_tokens=False).ids
    matcher = guided(name, calls_rule(format_, 1, tool))
    if matcher.try_consume_tokens(ids) < len(ids) or not matcher.is_accepting():
        return None
    (piece,) = read(format_.reader(False, (tool,)), [model.decoder(format_)(ids)])
    assert isinstance(piece, Call)
    return piece


@pytest.mark.parametrize("name", TAGGED)
def test_arguments_in_tags_are_held_to_their_part_of_the_schema(name: str) -> None:
    values = {"code": "if a<b: </p> <", "note": "null", "size": "x<y", "at": '{"x": 1}', "list": "[1, 2]"}
    read_back = {"code": "if a<b: </p> <", "note": None, "size": "x<y", "at": {"x": 1}, "list": [1, 2]}
    found = accepts(name, FREE, values)
    assert found is not None
    assert json.loads(found.arguments) == read_back
    assert accepts(name, FREE, {"code": ""}) == Call("run", '{"code": ""}')
    assert accepts(name, FREE, {"code": "</"}) == Call("run", '{"code": "</"}')
    for key, value in {"size": "b", "at": '{"y": 1}', "list": '["a"]', "other": "1"}.items():
        assert accepts(name, FREE, {"code": "", key: value}) is None
    assert accepts(name, FREE, {"note": "code is missing"}) is None


@pytest.mark.parametrize("name", TAGGED)
def test_any_arguments_fit_where_the_schema_names_none(name: str) -> None:
    found = accepts(name, Tool("run", parameters={"type": "object"}), {"a": "1", "b": "x\ny"})
    assert found == Call("run", '{"a": 1, "b": "x\\ny"}')
    assert accepts(name, Tool("run"), {}) == Call("run", "{}")
    assert accepts(name, Tool("run", parameters={"properties": {}}), {"a": "1"}) is None


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"oneOf": [{}, {}]}, "oneOf"),
        ({"properties": {"a": {"type": "string", "pattern": "b"}}}, "pattern"),
        ({"properties": {"a": {"type": "string", "maxLength": 3}}}, "maxLength"),
        ({"properties": {"a": {"enum": ["</parameter>"]}}}, "lists"),
        ({"properties": {"a b": {}}}, "a b"),
        ({"properties": {}, "required": ["a"]}, "requires"),
    ],
)
def test_what_tags_cannot_be_held_to_is_refused_by_name(schema: dict[str, object], word: str) -> None:
    rule = known("qwen-xml")[1].call_rule
    assert rule is not None
    with pytest.raises(ValueError, match=word):
        rule(Tool("run", parameters=schema))
