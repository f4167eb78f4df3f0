"""Anthropic's endpoint over HTTP: its own client against a real proxy, answers, streams, refusals, counts."""

import json

import anthropic
import pytest
from anthropic.types import Message
from anthropic.types.shared.error_response import ErrorResponse

from shared.model_folder import ModelFolder
from tests.proxy.messages_world import (
    COUNT,
    MESSAGES,
    SMALL,
    agents_body,
    body,
    gathered,
    read_events,
    strictly,
    tool,
)
from tests.proxy.small_gateway import TEXT, Gateway, gateway, ids, occupied, request
from tests.proxy.small_tokenizers import CHATML, write_folder
from tests.waiting import until

STREAMED_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
MARKED = '<t>hm é</t>I look.<c>read {"path": "/漢"}</c><c>list {}</c>'


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        running.proxy.measurer._text_model.format = SMALL
        await running.start_worker()
        yield running


TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"


def write_roomy(path, tokenizer, **config):
    """Write a model folder that has room for an agent's prompt, and whose template shows tools."""
    write_folder(path, tokenizer, **{**config, "chat_template": TOOLS + CHATML})
    facts = json.loads((path / "config.json").read_text("utf-8"))
    (path / "config.json").write_text(json.dumps({**facts, "max_position_embeddings": 60_000}), "utf-8")
    return ModelFolder.read(path)


@pytest.fixture
async def roomy(tmp_path, monkeypatch):
    """A gateway whose model has a context of 60,000 tokens, and knows tools."""
    monkeypatch.setattr("tests.proxy.small_gateway.write_folder", write_roomy)
    async with gateway(tmp_path) as running:
        running.proxy.measurer._text_model.format = SMALL
        await running.start_worker(budget_bytes=1 << 30)
        yield running


@pytest.fixture
async def client(here):
    async with anthropic.AsyncAnthropic(api_key="none", base_url=here.url, max_retries=0) as client:
        yield client


def read(answered):
    """Return an answer that came whole or streamed, the same either way."""
    assert answered.status == 200
    if answered.headers["Content-Type"].startswith("text/event-stream"):
        return gathered(read_events(answered.raw))
    assert strictly(Message, answered.body)
    return answered.body


# --- Anthropic's client -------------------------------------------------------------------------------------


async def test_the_client_reads_a_plain_answer(client):
    message = await client.messages.create(**body())
    assert message.id.startswith("msg_")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": TEXT}]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 12)
    assert message._request_id


async def test_the_client_reads_a_stream_of_thoughts_text_and_calls_as_the_whole_answer(roomy):
    roomy.answer = lambda _submit: ids(MARKED)
    asked = body(tools=[tool("read"), tool("list")]) | {"max_tokens": 99}
    async with anthropic.AsyncAnthropic(api_key="none", base_url=roomy.url, max_retries=0) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in whole.content[2:]] == [{"path": "/漢"}, {}]
    assert len({block.id for block in whole.content[2:]}) == 2
    assert without_ids(streamed) == without_ids(whole)
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert {"text", "thinking", "input_json", "signature", "message_stop"} <= set(kinds)


def without_ids(message):
    blocks = [
        {key: value for key, value in block.to_dict().items() if key != "id"} for block in message.content
    ]
    return blocks, message.usage.to_dict()


async def test_the_client_hears_a_refusal_as_its_own_kind_of_error(client):
    with pytest.raises(anthropic.NotFoundError) as caught:
        await client.messages.create(**body(model="other"))
    assert caught.value.request_id
    assert caught.value.body["request_id"] == caught.value.request_id


async def test_the_client_counts_what_the_same_request_is_charged_for(here, client):
    asked = body(system=[{"type": "text", "text": "S"}])
    message = await client.messages.create(**asked)
    counted = await client.messages.count_tokens(**{k: v for k, v in asked.items() if k != "max_tokens"})
    assert counted.input_tokens == message.usage.input_tokens == len(here.worker.submits[0].prompt_ids)


# --- answers ------------------------------------------------------------------------------------------------


@STREAMED_OR_NOT
async def test_the_stop_sequence_that_ended_an_answer_is_named(here, stream):
    here.answer = lambda _submit: ids("one two three")
    message = read(await here.post(MESSAGES, body(stop_sequences=["three", "two", "tw!"], stream=stream)))
    assert message["content"] == [{"type": "text", "text": "one "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "two")
    await here.idle()


@STREAMED_OR_NOT
async def test_a_stop_sequence_that_is_only_certain_at_the_answers_end_is_named_too(here, stream):
    here.answer = lambda _submit: ids("xab")
    message = read(await here.post(MESSAGES, body(stop_sequences=["abc", "b"], stream=stream)))
    assert message["content"] == [{"type": "text", "text": "xa"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "b")


@STREAMED_OR_NOT
async def test_a_stop_sequence_inside_a_call_does_not_end_it(here, stream):
    here.answer = lambda _submit: ids('<c>f {"a": "two"}</c>')
    message = read(await here.post(MESSAGES, body(max_tokens=30, stop_sequences=["two"], stream=stream)))
    assert (message["stop_reason"], message["content"][0]["input"]) == ("tool_use", {"a": "two"})


@STREAMED_OR_NOT
async def test_an_answer_that_is_cut_says_by_what(here, stream):
    here.answer = lambda _submit: ids("a" * 99)
    cut = read(await here.post(MESSAGES, body(max_tokens=5, stream=stream)))
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 5)
    cut = read(await here.post(MESSAGES, body(max_tokens=32_000, stream=stream)))
    used = cut["usage"]
    assert cut["stop_reason"] == "model_context_window_exceeded"
    assert used["input_tokens"] + used["output_tokens"] == 64


@STREAMED_OR_NOT
async def test_cached_tokens_and_thoughts_are_counted_apart(here, stream):
    here.answer = lambda _submit: ids("<t>hm</t>a")
    here.worker.cached = lambda _submit: 8
    used = read(await here.post(MESSAGES, body(stream=stream)))["usage"]
    (submit,) = here.worker.submits
    assert used["cache_read_input_tokens"] == 8
    assert used["input_tokens"] == len(submit.prompt_ids) - 8
    assert used["output_tokens_details"]["thinking_tokens"] > 0


async def test_an_agents_request_is_answered_as_its_client_sends_it(roomy):
    roomy.answer = lambda _submit: ids(MARKED)
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2025-01-01,b-2025-02-02"}
    answered = await roomy.post(f"{MESSAGES}?beta=true", agents_body(), headers=headers)
    message = read(answered)
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    counted = await roomy.post(f"{COUNT}?beta=true", agents_body(), headers=headers)
    assert counted.body == {"input_tokens": message["usage"]["input_tokens"]}


async def test_a_stream_says_each_event_by_its_name(here):
    answered = await here.post(MESSAGES, body(stream=True))
    assert answered.raw.startswith(b'event: message_start\ndata: {"type":"message_start",')
    assert answered.raw.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert answered.headers["request-id"] == answered.headers["x-request-id"]


# --- refusals and failures ----------------------------------------------------------------------------------


def check_refusal(answered, status, kind):
    assert (answered.status, answered.body["type"], answered.error["type"]) == (status, "error", kind)
    assert answered.body["request_id"] == answered.headers["request-id"] == answered.headers["x-request-id"]
    if kind != "request_too_large":
        strictly(ErrorResponse, answered.body)


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_a_body_that_is_wrong_is_refused_in_anthropics_shape(here, path):
    answered = await here.post(path, body(messages=[]))
    check_refusal(answered, 400, "invalid_request_error")
    assert "'messages'" in answered.error["message"]
    answered = await here.post(path, b"{", headers={"Content-Type": "application/json"})
    check_refusal(answered, 400, "invalid_request_error")
    check_refusal(await here.post(path, body(model="x")), 404, "not_found_error")
    answered = await here.post(path, b"{}", headers={"Content-Type": "text/plain"})
    check_refusal(answered, 415, "invalid_request_error")
    check_refusal(await here.get(path), 405, "invalid_request_error")


async def test_a_url_that_is_none_is_refused_in_the_shape_of_its_neighbours(here):
    check_refusal(await here.post(f"{MESSAGES}/batches", body()), 404, "not_found_error")
    other = await here.post("/v1/messagesx", body())
    assert ("request-id" not in other.headers, other.error["code"]) == (True, "route_not_found")


async def test_a_prompt_longer_than_the_context_is_refused_and_counted(here):
    long = body(messages=[{"role": "user", "content": "x" * 80}])
    answered = await here.post(MESSAGES, long)
    check_refusal(answered, 400, "invalid_request_error")
    assert answered.error["message"].startswith("prompt is too long: ")
    counted = await here.post(COUNT, long)
    assert counted.body == {"input_tokens": 80 + 19}


@STREAMED_OR_NOT
async def test_what_is_too_much_now_is_529_and_says_when_to_come_back(tmp_path, stream):
    lanes = [{"name": "interactive", "queue_places": 1}]
    async with gateway(tmp_path, lanes) as here:
        await here.start_worker(slots=1)
        waiting = await occupied(here, queued=1)
        answered = await here.post(MESSAGES, body(stream=stream))
        check_refusal(answered, 529, "overloaded_error")
        assert 1 <= int(answered.headers["retry-after"]) <= 60
        assert answered.headers["x-forebay-dropped-reason"] == "server_is_overloaded"
        for task in waiting:
            task.cancel()
        await here.idle()


async def test_while_no_model_is_loaded_it_is_529(tmp_path):
    async with gateway(tmp_path) as here:
        check_refusal(await here.post(MESSAGES, body()), 529, "overloaded_error")


async def test_a_stream_whose_worker_dies_for_good_ends_with_an_error_event(here):
    here.worker.pause_at = 2
    asked = here.asking(MESSAGES, body(stream=True))
    await until(lambda: here.live and here.paused_at(2))
    here.answer = lambda _submit: "it can't go on"
    await here.replace_worker()
    answered = await asked
    events = read_events(answered.raw)
    assert answered.status == 200
    assert [event["type"] for event in events[-2:]] == ["content_block_delta", "error"]
    assert "message_stop" not in {event["type"] for event in events}


# --- keys ---------------------------------------------------------------------------------------------------


async def test_a_key_is_shown_either_way_and_its_limits_hold_for_counts_too(tmp_path):
    here = Gateway(tmp_path / "small")
    bearer = here.add_key("ci", requests_per_minute=2)
    key = {"x-api-key": bearer["Authorization"].removeprefix("Bearer ")}
    async with here:
        await here.start_worker()
        check_refusal(await here.post(MESSAGES, body()), 401, "authentication_error")
        check_refusal(await here.post(COUNT, body(), headers={"x-api-key": "x"}), 401, "authentication_error")
        assert (await here.post(MESSAGES, body(), headers=key)).status == 200
        assert (await here.post(COUNT, body(), headers=bearer)).status == 200
        answered = await here.post(COUNT, body(), headers=key)
        check_refusal(answered, 429, "rate_limit_error")
        assert answered.headers["retry-after"]


async def test_a_count_takes_no_place_and_asks_nothing_of_the_worker(here):
    tasks = await occupied(here)
    counted = await here.post(COUNT, body())
    assert (counted.status, here.live, len(here.worker.submits)) == (200, 1, 1)
    for task in tasks:
        task.cancel()
    await here.idle()


async def test_an_answer_under_an_idempotency_key_is_the_same_message_again(here):
    headers = {"Idempotency-Key": "one"}
    first = await here.post(MESSAGES, body(), headers=headers)
    again = await here.post(MESSAGES, body(), headers=headers)
    assert (first.raw, len(here.worker.submits)) == (again.raw, 1)
    assert first.headers["request-id"] != again.headers["request-id"]


async def test_requests_over_a_raw_connection_need_no_more_than_a_body(here):
    reader, writer = await here.raw()
    writer.write(request(MESSAGES, body()))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()
