"""Answers in Anthropic's shapes, whole and streamed: the same content, read strictly by Anthropic's types."""

import json
from itertools import pairwise

import pytest
from anthropic.types import Message
from hypothesis import given
from hypothesis import strategies as st

from proxy.answer import Answer, Call, Text, Thought, Usage, joined
from proxy.dialects.dialect import Head, News
from proxy.dialects.messages import Messages
from proxy.dialects.messages_parse import parse_messages
from proxy.failures import failure_response
from shared.errors import InvalidRequest, WorkerCrashed
from tests.proxy.messages_world import body, gathered, read_events, strictly

HEAD = Head("msg_0a1b", created=1, model="small", system_fingerprint="fp", service_tier="default")
USAGE = Usage(prompt_tokens=9, completion_tokens=5, cached_tokens=4, thought_tokens=2)
DIALECT = Messages()
MARK = "forebay"


def asked(**fields):
    return parse_messages(json.dumps(body(max_tokens=5, **fields)).encode(), lambda: 7)


def whole(pieces, reason="stop", stop=None, usage=USAGE, parsed=None, head=HEAD):
    answer = Answer(tuple(joined(pieces)), reason, stop)
    read = json.loads(DIALECT.whole(head, parsed or asked(), [answer], usage, []))
    assert strictly(Message, read)
    return read


def streamed_events(parts, reason="stop", stop=None, usage=USAGE, parsed=None, head=HEAD):
    """Return the events of a stream that gets the pieces in parts; the last part ends it."""
    stream = DIALECT.stream(head, parsed or asked())
    raw = stream.opening(Usage(usage.prompt_tokens, 0, 0))
    for part in parts:
        raw += stream.news(News(0, tuple(part), None))
    raw += stream.news(News(0, (), reason, stop=stop)) + stream.closing(usage)
    return read_events(raw)


def streamed(parts, *args, **fields):
    return gathered(streamed_events(parts, *args, **fields))


# --- blocks -------------------------------------------------------------------------------------------------

EVERYTHING = [
    Thought("hm "),
    Thought("漢"),
    Text("I "),
    Text('"look"\n'),
    Call("read", '{"path": "/a", "n": 1.10}'),
    Call("list", "{}"),
    Text("so"),
]


def test_each_run_of_a_kind_and_each_call_is_a_block():
    message = whole(EVERYTHING)
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm 漢", "signature": MARK},
        {"type": "text", "text": 'I "look"\n'},
        {"type": "tool_use", "id": "toolu_0a1b00", "name": "read", "input": {"path": "/a", "n": 1.10}},
        {"type": "tool_use", "id": "toolu_0a1b01", "name": "list", "input": {}},
        {"type": "text", "text": "so"},
    ]
    assert (message["id"], message["type"], message["role"], message["model"]) == (
        "msg_0a1b",
        "message",
        "assistant",
        "small",
    )


def test_the_events_come_in_their_order_with_their_indexes():
    events = streamed_events([[Thought("hm")], [Text("a")], [Text("b"), Call("f", '{"a":1}')]])
    assert [(event["type"].removeprefix("content_block_"), event.get("index")) for event in events] == [
        ("message_start", None),
        *[("start", 0), ("delta", 0), ("delta", 0), ("stop", 0)],
        *[("start", 1), ("delta", 1), ("delta", 1), ("stop", 1)],
        *[("start", 2), ("delta", 2), ("stop", 2)],
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert [event["delta"] for event in events if "delta" in event] == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": MARK},
        {"type": "text_delta", "text": "a"},
        {"type": "text_delta", "text": "b"},
        {"type": "input_json_delta", "partial_json": '{"a":1}'},
        {"stop_reason": "tool_use", "stop_sequence": None},
    ]


def test_a_block_begins_empty_whatever_it_will_have():
    events = streamed_events([EVERYTHING])
    assert [event["content_block"] for event in events if event["type"] == "content_block_start"] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "toolu_0a1b00", "name": "read", "input": {}},
        {"type": "tool_use", "id": "toolu_0a1b01", "name": "list", "input": {}},
        {"type": "text", "text": ""},
    ]


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.sampled_from(
    ["\0", '"\0"', "\u2028"]
)
ARGUMENTS = st.dictionaries(st.text("ab", max_size=2), st.floats(allow_nan=False) | WORDS, max_size=2)
PIECES = st.lists(
    st.builds(Text, WORDS)
    | st.builds(Thought, WORDS)
    | st.builds(
        Call, st.text("fg", min_size=1), ARGUMENTS.map(json.dumps).filter(lambda text: "Inf" not in text)
    ),
    max_size=8,
)


@given(PIECES, st.data(), st.booleans())
def test_streamed_in_any_parts_it_is_the_same_message(pieces, data, shown):
    parsed = asked(thinking={"type": "adaptive", "display": "summarized" if shown else "omitted"})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pieces)))))
    parts = [pieces[start:end] for start, end in pairwise([0, *cuts, len(pieces)])]
    assert streamed(parts, parsed=parsed) == whole(pieces, parsed=parsed)


def test_arguments_go_to_the_client_as_the_model_wrote_them():
    arguments = '{"n": 1e999, "m": 12345678901234567890.0}'
    stated = DIALECT.whole(HEAD, asked(), [Answer((Call("f", arguments),), "stop")], USAGE, [])
    assert f'"input":{arguments}'.encode() in stated


def test_an_answer_of_nothing_has_no_blocks():
    assert whole([]) == streamed([])
    assert whole([Text("")])["content"] == streamed([[Text("")], [Thought("")]])["content"] == []


def test_thoughts_that_are_not_wanted_are_told_of_without_their_words():
    parsed = asked(thinking={"type": "enabled", "budget_tokens": 9, "display": "omitted"})
    pieces = [Thought("hm"), Text("a")]
    content = whole(pieces, parsed=parsed)["content"]
    assert content == streamed([pieces], parsed=parsed)["content"]
    assert content[0] == {"type": "thinking", "thinking": "", "signature": MARK}


# --- ends and counts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "reason", "stop", "why"),
    [
        ([Text("a")], "stop", None, "end_turn"),
        ([Text("a")], "stop", "END", "stop_sequence"),
        ([Text("a")], "length", None, "max_tokens"),
        ([Call("f", "{}")], "stop", None, "tool_use"),
        ([Call("f", "{}")], "length", None, "max_tokens"),
        ([Call("f", "{}"), Text("a")], "stop", "END", "stop_sequence"),
        ([], "stop", None, "end_turn"),
    ],
)
def test_each_way_to_end(pieces, reason, stop, why):
    message = whole(pieces, reason, stop)
    assert (message["stop_reason"], message["stop_sequence"]) == (why, stop)
    assert streamed([pieces], reason, stop) == message


@pytest.mark.parametrize(("tokens", "why"), [(5, "max_tokens"), (4, "model_context_window_exceeded")])
def test_an_answer_cut_by_the_context_says_so(tokens, why):
    usage = Usage(prompt_tokens=9, completion_tokens=tokens)
    assert whole([Text("a")], "length", usage=usage)["stop_reason"] == why
    assert streamed([[Text("a")]], "length", usage=usage)["stop_reason"] == why


def test_tokens_that_were_cached_are_counted_apart():
    usage = whole([Text("a")])["usage"]
    assert usage == streamed([[Text("a")]])["usage"]
    assert usage == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
        "service_tier": "standard",
    }


def test_a_stream_begins_with_the_prompts_tokens_and_none_of_the_answers():
    begun = streamed_events([[Text("a")]])[0]["message"]
    assert (begun["usage"]["input_tokens"], begun["usage"]["output_tokens"]) == (9, 0)
    assert (begun["content"], begun["stop_reason"], begun["stop_sequence"]) == ([], None, None)


@pytest.mark.parametrize(
    ("tier", "named"),
    [("priority", "priority"), ("flex", "batch"), ("default", "standard"), ("x", "standard")],
)
def test_lanes_are_called_as_anthropics_tiers(tier, named):
    head = Head("msg_1", 1, "small", "fp", tier)
    assert whole([Text("a")], head=head)["usage"]["service_tier"] == named


# --- failures in the middle ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (WorkerCrashed("It died.", retry_after_s=2), "overloaded_error"),
        (InvalidRequest("It is wrong."), "invalid_request_error"),
        (RuntimeError("x"), "api_error"),
    ],
)
def test_a_stream_that_fails_ends_with_an_event_that_says_how(error, kind):
    raw = DIALECT.failed(failure_response(error, lambda: 1.0))
    (event,) = read_events(raw)
    assert raw.startswith(b"event: error\n")
    assert (event["error"]["type"], set(event["error"])) == (kind, {"type", "message"})
