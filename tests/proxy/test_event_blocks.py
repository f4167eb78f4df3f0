"""The bytes of an event stream: what is put together from pieces is what would be made whole."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.answer import Answer, Call, Text, Thought, Usage
from proxy.bodies import ChatChunks, CompletionChunks, chat_completion, text_completion
from proxy.dialects.dialect import Head
from proxy.event_blocks import TextBlocks, block, encoded, with_usage

TEXT = st.text(
    st.sampled_from('a "\\\0\n\u2028\x7f漢😀/') | st.characters(exclude_categories=["Cs"]), max_size=12
)
# What a client may say or a folder be called, tricky ones among them.
NAME = TEXT | st.sampled_from(
    [
        '"content":""',
        '"\\u0000"',
        '\\"\0\\"',
        '"text":""',
        '"logprobs":null',
        '"usage":null}\n\n',
        '","logprobs":null,"',
        "logprobs",
    ]
)


def plain(body):
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


@pytest.mark.parametrize("kind", [ChatChunks, CompletionChunks])
@settings(deadline=None)
@given(
    model=NAME.filter(lambda name: name != "\0"), text=TEXT, index=st.integers(0, 300), asked=st.booleans()
)
def test_a_text_put_into_its_block_is_what_the_whole_chunk_would_be(kind, model, text, index, asked):
    chunks = kind(Head("id-1", 1_760_000_000, model, "fb_1", "default"), include_usage=asked)
    assert TextBlocks(chunks.text, index).block(text) == plain(chunks.text(index, text))


@settings(deadline=None)
@given(model=NAME.filter(lambda name: name != "\0"), text=NAME, logprobs=NAME | st.none())
def test_a_thought_is_put_into_both_its_places(model, text, logprobs):
    chunks = ChatChunks(Head("id-1", 1_760_000_000, model, "fb_1", "default"), include_usage=True)
    chunk = chunks.thought(3, text)
    chunk["choices"][0]["logprobs"] = logprobs
    assert TextBlocks(chunks.thought, 3).block(text, json.dumps(logprobs, ensure_ascii=False)) == plain(chunk)


@pytest.mark.parametrize("kind", [ChatChunks, CompletionChunks])
@settings(deadline=None)
@given(model=NAME.filter(lambda name: name != "\0"), text=NAME, logprobs=NAME, asked=st.booleans())
def test_log_probabilities_take_the_place_of_a_chunks_null(kind, model, text, logprobs, asked):
    chunks = kind(Head("id-1", 1_760_000_000, model, "fb_1", "default"), include_usage=asked)
    given_json = json.dumps({"content": logprobs})
    for sent, chunk in (
        (TextBlocks(chunks.text, 3).block(text, given_json), chunks.text(3, text)),
        (block(chunks.ending(3, "stop"), given_json), chunks.ending(3, "stop")),
        *((block(call, given_json), call) for call in _calls(chunks, text)),
    ):
        chunk["choices"][0]["logprobs"] = {"content": logprobs}
        assert json.loads(sent.removeprefix(b"data: ")) == chunk


@pytest.mark.parametrize("kind", [ChatChunks, CompletionChunks])
@settings(deadline=None)
@given(model=NAME.filter(lambda name: name != "\0"), text=NAME, logprobs=NAME)
def test_a_usage_takes_the_place_of_each_chunks_null(kind, model, text, logprobs):
    chunks = kind(Head("id-1", 1_760_000_000, model, "fb_1", "default"), include_usage=True)
    given_json, usage = json.dumps({"content": logprobs}), {"prompt_tokens": 3}
    sent = [chunks.text(3, text), *_calls(chunks, text), chunks.ending(3, "stop")]
    blocks = with_usage(b"".join(block(chunk, given_json) for chunk in sent), usage)
    expected = [
        {**chunk, "choices": [{**chunk["choices"][0], "logprobs": {"content": logprobs}}], "usage": usage}
        for chunk in sent
    ]
    *events, rest = blocks.split(b"\n\n")
    assert rest == b""
    assert [json.loads(event.removeprefix(b"data: ")) for event in events] == expected


def _calls(chunks, text):
    return chunks.call(3, 0, Call("look", text)) if isinstance(chunks, ChatChunks) else []


@pytest.mark.parametrize("build", [chat_completion, text_completion])
@settings(deadline=None)
@given(st.lists(st.tuples(NAME, NAME | st.none()), min_size=1, max_size=4), NAME)
def test_each_choice_of_a_whole_body_gets_its_own(build, choices, model):
    answers = [Answer((Text(text), Thought(text), Call("look", text)), "stop") for text, _ in choices]
    body = build(Head("id-1", 1_760_000_000, model, "fb_1", "default"), answers, Usage(1, 2))
    assert json.loads(encoded(body)) == body
    given_json = [json.dumps(logprobs) for _, logprobs in choices]
    sent = json.loads(encoded(body, given_json))
    assert [choice["logprobs"] for choice in sent["choices"]] == [logprobs for _, logprobs in choices]
    for choice in sent["choices"]:
        choice["logprobs"] = None
    assert sent == body


@settings(deadline=None)
@given(st.dictionaries(NAME, NAME | st.none() | st.integers() | st.lists(NAME, max_size=2), max_size=3))
def test_a_block_is_one_line_of_json_and_an_empty_one(body):
    assert block(body) == plain(body)
    head, data, rest = block(body).decode().partition("{")
    assert (head, json.loads(data + rest.removesuffix("\n\n"))) == ("data: ", body)
    assert block(body).count(b"\n") == 2
