"""Streams of any server's: cut anywhere, with any line ends, and what is no answer at all."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.load.client import _Watch
from ops.load.events import EventStream, piece_chars

EVENTS = [{"choices": [{"delta": {"content": "a"}}]}, {"choices": [], "usage": {"completion_tokens": 1}}]


def stream(line_end):
    blocks = [
        ": waiting",
        *(f"event: x{line_end}data: {json.dumps(event)}" for event in EVENTS),
        "data:[DONE]",
    ]
    return "".join(block + 2 * line_end for block in blocks).encode()


@given(st.sampled_from(["\n", "\r\n"]), st.lists(st.integers(0, 400), max_size=8))
def test_events_are_the_same_wherever_the_bytes_are_cut(line_end, cuts):
    whole, reader = stream(line_end), EventStream()
    places = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    read = [event for a, b in pairwise(places) for event in reader.feed(whole[a:b])]
    assert read == [*EVENTS, None]


@pytest.mark.parametrize(
    "data",
    [
        b"data: {nothing}\n\n",
        b"data: 7\n\n",
        b'data: {"choices": [7]}\n\n',
        b'data: {"choices": [{"delta": 7}]}\n\n',
        b'data: {"usage": {"prompt_tokens": 1}}\n\n',
        b'data: {"usage": {"completion_tokens": "many"}}\n\n',
        b"data: " + b"x" * (5 << 20),
    ],
    ids=lambda data: repr(data[:60]),
)
def test_what_cannot_be_read_is_said_to_be_so(data):
    with pytest.raises(ValueError, match=r"."):
        _Watch("a-1", 0.0).came(data, 1.0)


@pytest.mark.parametrize("error", [{"code": "worker_crashed"}, {"type": "worker_crashed"}, "worker_crashed"])
def test_an_error_in_the_stream_is_no_completion_though_done_follows(error):
    watch = _Watch("a-1", 0.0)
    watch.came(f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n".encode(), 1.0)
    watch.ended()
    assert (watch.outcome, watch.code) == ("failed", "worker_crashed")


def test_thoughts_and_arguments_of_calls_are_pieces_as_text_is():
    assert piece_chars({"content": "four", "reasoning_content": "six..."}) == 10
    assert piece_chars({"reasoning_content": "same", "reasoning": "same"}) == 4
    assert piece_chars({"tool_calls": [{"function": {"arguments": "{}"}}, {"function": None}]}) == 2
    assert piece_chars({"role": "assistant", "content": None}) == 0


def test_a_record_keeps_what_usage_says_and_how_long_pieces_were():
    watch = _Watch("a-1", 0.0)
    usage = {"completion_tokens": 3, "prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 8}}
    for event in ({"choices": [{"delta": {"content": "ab"}, "finish_reason": "stop"}]}, {"usage": usage}):
        watch.came(f"data: {json.dumps(event)}\n\n".encode(), 1.0)
    assert (watch.tokens, watch.prompt_tokens, watch.cached_tokens) == (3, 40, 8)
    assert (watch.piece_chars, watch.finish_reason) == ([2], "stop")
