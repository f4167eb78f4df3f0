"""The bytes of an event stream: what is put together from pieces is what would be made whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.bodies import ChatChunks, CompletionChunks, Head
from proxy.event_blocks import TextBlocks, block

TEXT = st.text(
    st.sampled_from('a "\\\0\n\u2028\x7f漢😀/') | st.characters(exclude_categories=["Cs"]), max_size=12
)
# What a client may say or a folder be called, tricky ones among them.
NAME = TEXT | st.sampled_from(['"content":""', '"\\u0000"', '\\"\0\\"', '"text":""'])


def plain(body):
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


@pytest.mark.parametrize("kind", [ChatChunks, CompletionChunks])
@given(
    model=NAME.filter(lambda name: name != "\0"), text=TEXT, index=st.integers(0, 300), asked=st.booleans()
)
def test_a_text_put_into_its_block_is_what_the_whole_chunk_would_be(kind, model, text, index, asked):
    chunks = kind(Head("id-1", 1_760_000_000, model, "fb_1", "default"), include_usage=asked)
    assert TextBlocks(chunks, index).block(text) == plain(chunks.text(index, text))


@given(st.dictionaries(NAME, NAME | st.none() | st.integers() | st.lists(NAME, max_size=2), max_size=3))
def test_a_block_is_one_line_of_json_and_an_empty_one(body):
    assert block(body) == plain(body)
    head, data, rest = block(body).decode().partition("{")
    assert (head, json.loads(data + rest.removesuffix("\n\n"))) == ("data: ", body)
    assert block(body).count(b"\n") == 2
