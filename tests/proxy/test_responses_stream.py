"""A Response in the making: a stream's events against the whole body, and both against OpenAI's types."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from proxy.answer import Answer, Call, Text, Thought, Usage, joined
from proxy.dialects.dialect import Head, News
from proxy.dialects.responses import KEEP, Responses
from proxy.dialects.responses_items import unsealed
from proxy.dialects.responses_request import parse_response
from proxy.failures import failure_response
from shared.errors import RateLimited, WorkerCrashed

HEAD = Head("resp_0123456789ab", 1_700_000_000, "small", "fb_1", "default")
USAGE = Usage(10, 5, 4, 2)
EVENT = TypeAdapter(ResponseStreamEvent)
TOOLS = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}},
    {"type": "custom", "name": "edit"},
    {"type": "namespace", "name": "web", "description": "", "tools": [{"type": "function", "name": "get"}]},
]
RESPONSES = Responses()


def request(**fields):
    kept = []
    body = {"model": "small", "input": "Hi", "tools": TOOLS, **fields}
    parsed = parse_response(json.dumps(body).encode(), lambda: 1)
    parsed.extras[KEEP] = lambda *given: kept.append(given)
    return parsed, kept


def events_of(raw):
    """Return a stream's events, checked against their types and the numbers they must have."""
    *blocks, rest = raw.decode().split("\n\n")
    assert rest == ""
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", number)
        assert EVENT.validate_python(event, strict=True).type == event["type"]
        events.append(event)
    return events


def streamed(parsed, pieces, reason, sizes=(1,)):
    """Return the events of pieces that come in parcels of these sizes, over and over."""
    stream, raw, place = RESPONSES.stream(HEAD, parsed), [], 0
    sizes = iter([*sizes] * (len(pieces) + 1))
    while place < len(pieces):
        size = next(sizes)
        raw.append(stream.news(News(0, tuple(pieces[place : place + size]), None)))
        place += size
    raw.append(stream.news(News(0, (), reason)))
    return events_of(stream.opening(USAGE) + b"".join(raw) + stream.closing(USAGE))


def whole(parsed, pieces, reason, logprobs=()):
    body = json.loads(RESPONSES.whole(HEAD, parsed, [Answer(tuple(joined(pieces)), reason)], USAGE, logprobs))
    Response.model_validate(body, strict=True)
    return body


TEXTS = some.text(max_size=5)
PIECES = some.lists(
    some.one_of(
        TEXTS.filter(bool).map(Text),
        TEXTS.filter(bool).map(Thought),
        some.builds(
            Call,
            some.sampled_from(["look", "edit", "web__get", "unknown"]),
            some.dictionaries(some.sampled_from(["input", "b"]), TEXTS).map(json.dumps),
        ),
    ),
    max_size=6,
)


@settings(max_examples=50)
@given(
    PIECES,
    some.sampled_from(["stop", "length"]),
    some.lists(some.integers(1, 3), min_size=1),
    some.booleans(),
)
def test_a_stream_is_the_whole_body_however_it_comes(pieces, reason, sizes, seals):
    include = ["reasoning.encrypted_content"] if seals else []
    parsed, kept = request(include=include)
    events = streamed(parsed, pieces, reason, sizes)
    body = whole(parsed, pieces, reason)
    assert events[-1]["response"] == body
    assert [json.loads(raw) for _, raw, _ in kept] == [body, body]
    assert [[json.loads(item) for item in output] for *_, output in kept] == [body["output"]] * 2
    assert built(events) == body["output"]


def built(events):
    """Put the items together as a client does, and check what it gathers against what comes at the end."""
    items, texts = {}, {}
    for event in events:
        kind, place = event["type"].removeprefix("response."), event.get("output_index")
        if kind == "output_item.added":
            assert event["item"]["status"] == "in_progress"
            items[place], texts[place] = event["item"], ""
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[place]["id"]
            texts[place] += event["delta"]
        elif kind.endswith(".done") and kind != "output_item.done":
            said = event.get("part", event)
            assert next(said[key] for key in ("text", "arguments", "input") if key in said) == texts[place]
        elif kind == "output_item.done":
            assert event["item"]["id"] == items[place]["id"]
            items[place] = event["item"]
    assert list(items) == list(range(len(items)))
    return [items[place] for place in sorted(items)]


def test_items_have_ids_of_their_own_and_calls_have_the_clients_names():
    pieces = [
        Thought("t"),
        Text("s"),
        Call("look", "{}"),
        Call("edit", '{"input":"x"}'),
        Call("web__get", "{}"),
    ]
    parsed, _ = request()
    output = whole(parsed, pieces, "stop")["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "function_call",
    ]
    ids = [item["id"] for item in output] + [item["call_id"] for item in output[2:]]
    assert len(set(ids)) == 8
    assert [id_.partition("_")[0] for id_ in ids] == ["rs", "msg", "fc", "ctc", "fc", "call", "call", "call"]
    assert [item["name"] for item in output[2:]] == ["look", "edit", "get"]
    assert (output[3]["input"], output[4]["namespace"]) == ("x", "web")
    assert {item["status"] for item in output} == {"completed"}


@pytest.mark.parametrize(
    ("pieces", "reason", "statuses"),
    [
        ([], "stop", ["completed"]),
        ([], "length", []),
        ([Text("a")], "length", ["incomplete"]),
        ([Thought("a")], "length", ["incomplete"]),
        ([Thought("a")], "stop", ["completed", "completed"]),
        ([Call("look", "{}")], "stop", ["completed"]),
        ([Text("a"), Call("look", "{}")], "length", ["completed", "completed"]),
    ],
)
def test_only_what_was_cut_is_incomplete(pieces, reason, statuses):
    body = whole(request()[0], pieces, reason)
    assert [item["status"] for item in body["output"]] == statuses
    assert body["status"] == ("completed" if reason == "stop" else "incomplete")


def test_usage_tells_of_the_cache_and_of_thoughts():
    usage = whole(request()[0], [Text("a")], "stop")["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 5, 15)
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}


def test_the_request_is_repeated_in_the_answer():
    fields = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "previous_response_id": "resp_1",
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low"},
        "safety_identifier": "s",
        "temperature": 0.5,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "tool_choice": {"type": "function", "name": "look"},
        "top_p": 0.9,
        "user": "u",
    }
    body = whole(request(**fields)[0], [Text("a")], "stop")
    same = {key: body[key] for key in fields if key not in ("text", "reasoning")}
    assert same == {key: value for key, value in fields.items() if key in same}
    assert body["text"]["format"]["schema"] == {"type": "object"}
    assert body["reasoning"] == {"effort": "low", "summary": None}
    assert (body["id"], body["model"], body["created_at"]) == (HEAD.id, "small", HEAD.created)
    assert body["service_tier"] == "default"


def test_a_thought_is_there_twice_for_clients_that_give_back_one_of_both():
    parsed, _ = request(include=["reasoning.encrypted_content"])
    (thought, _) = whole(parsed, [Thought("hé")], "stop")["output"]
    assert unsealed(thought["encrypted_content"]) == thought["content"][0]["text"] == "hé"
    (plain, _) = whole(request()[0], [Thought("hé")], "stop")["output"]
    assert plain["encrypted_content"] is None


def test_log_probabilities_wait_for_their_text_and_go_with_it():
    parsed, _ = request(tools=[], top_logprobs=1)
    stream = RESPONSES.stream(HEAD, parsed)
    entries = [{"token": t, "logprob": -1.0, "bytes": [1], "top_logprobs": []} for t in "abcd"]
    one, two, three, four = (json.dumps([entry]) for entry in entries)
    news = [
        News(0, (Thought("t"),), None, one),
        News(0, (Text("x"), Text("y")), None, two),
        News(0, (), None, three),
    ]
    raw = b"".join(map(stream.news, news)) + stream.news(News(0, (Text("z"),), "stop", four))
    events = events_of(stream.opening(USAGE) + raw + stream.closing(USAGE))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [len(event["logprobs"]) for event in deltas] == [2, 0, 1, 1]
    body = whole(parsed, [Thought("t"), Text("xyz")], "stop", [json.dumps(entries)])
    assert events[-1]["response"] == body
    assert body["output"][1]["content"][0]["logprobs"] == entries


@pytest.mark.parametrize(
    ("refusal", "code", "ours"),
    [
        (WorkerCrashed("gone", retry_after_s=3), "server_error", "worker_crashed"),
        (RateLimited("slow", retry_after_s=3), "rate_limit_exceeded", "rate_limit_exceeded"),
    ],
)
def test_a_stream_that_fails_says_so_and_is_not_kept(refusal, code, ours):
    parsed, kept = request()
    stream = RESPONSES.stream(HEAD, parsed)
    failure = failure_response(refusal, lambda: 1.0)
    raw = stream.opening(USAGE) + stream.news(News(0, (Text("a"), Call("look", "{}"), Text("b")), None))
    response = events_of(raw + stream.failed(failure))[-1]["response"]
    assert response["status"] == "failed"
    assert (response["error"]["code"], response["error"]["forebay_code"]) == (code, ours)
    assert response["error"]["retry_after_ms"] == 3000
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    assert kept == []
    (alone,) = events_of(RESPONSES.failed(failure))
    assert (alone["type"], alone["code"], alone["message"]) == ("error", ours, refusal.message)
