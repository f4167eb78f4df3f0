"""Refusals over HTTP: the right status at once, in the vendor's shape, and the server goes on."""

import asyncio
import json

import pytest

from shared.codec import encode
from shared.limits import BODY_BYTES_MAX
from shared.messages import CALM, BackingOff
from tests.proxy.small_gateway import CHAT, COMPLETIONS, TEXT, chat, completion, gateway, request
from tests.waiting import until


@pytest.fixture
async def empty(tmp_path):
    """A gateway whose worker hasn't come yet."""
    async with gateway(tmp_path, lanes=[{"name": "interactive", "queue_places": 2}]) as running:
        yield running


@pytest.fixture
async def here(empty):
    await empty.start_worker()
    return empty


async def goes_on(here):
    """Check that the server still answers, and that nothing is left of what was refused."""
    answered = await here.post(COMPLETIONS, completion(max_tokens=12))
    assert (answered.status, answered.text) == (200, TEXT)
    await here.idle()


def check_refusal(answered, status, code, param=None):
    assert answered.status == status
    assert (answered.error["code"], answered.error["param"]) == (code, param)
    assert answered.error["message"]
    assert answered.headers["x-forebay-dropped-reason"] == (code or "invalid_request_error")
    assert answered.headers["x-request-id"]
    assert answered.headers["Content-Type"] == "application/json; charset=utf-8"
    if status == 503:
        assert 1 <= int(answered.headers["Retry-After"]) <= 60
        assert 1000 <= int(answered.headers["retry-after-ms"]) <= 60_000
    else:
        assert answered.headers["x-should-retry"] == "false"


# --- bodies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, completion(prompt=""), "prompt"),
        (COMPLETIONS, completion(prompt=[1000]), "prompt"),
        (COMPLETIONS, completion(stop=5), "stop"),
        (COMPLETIONS, completion(stop=[""]), "stop"),
        (COMPLETIONS, completion(top_k=10_000_000), "top_k"),
        (COMPLETIONS, completion(seed=2**70), "seed"),
        (COMPLETIONS, completion(logit_bias={"999999": 5}), "logit_bias"),
        (COMPLETIONS, completion(n=17), "n"),
        (CHAT, chat(messages=[]), "messages"),
        (CHAT, chat(temperature=-1), "temperature"),
        (CHAT, chat(response_format={"type": "banana"}), "response_format.type"),
        (CHAT, chat(max_tokens=0), "max_tokens"),
        (CHAT, chat(no_such_field=1), "no_such_field"),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" not in value else "",
)
async def test_a_wrong_field_is_refused_by_name_streamed_or_not(here, path, body, param, stream):
    check_refusal(await here.post(path, {**body, "stream": stream}), 400, None, param)
    assert here.worker.submits == []
    await goes_on(here)


async def test_a_small_seed_below_zero_is_a_seed(here):
    assert (await here.post(CHAT, chat(seed=-1, max_tokens=1))).status == 200
    assert here.worker.submits[0].sampling.seed == -1


BROKEN = {
    "not utf-8": b'{"model": "\xff"}',
    "cut": b'{"model": ',
    "empty": b"",
    "a list": b"[]",
    "nan": b'{"model": "small", "prompt": "a", "temperature": NaN}',
    "ten thousand levels": b"[" * 10_000 + b"]" * 10_000,
    "a key twice": b'{"model": "small", "model": "small", "prompt": "a"}',
    "an endless number": b'{"seed": 1' + b"0" * 10_000 + b"}",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
async def test_a_body_that_is_no_sound_json_is_refused(here, raw):
    answered = await here.post(CHAT, raw, headers={"content-type": "application/json"})
    assert (answered.status, answered.error["type"]) == (400, "invalid_request_error")
    await goes_on(here)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
async def test_a_body_of_another_type_is_refused(here, kind):
    answered = await here.post(CHAT, json.dumps(chat()).encode(), headers={"content-type": kind})
    check_refusal(answered, 415, "unsupported_media_type")


async def test_a_body_that_says_it_is_over_the_limit_is_refused_before_any_of_it_came(here):
    reader, writer = await here.raw()
    writer.write(request(CHAT, b"").replace(b"Content-Length: 0", b"Content-Length: 104857600"))
    assert b" 413 " in await reader.readuntil(b"\r\n")
    writer.close()
    await goes_on(here)


async def test_a_body_in_chunks_is_refused_once_it_is_over_the_limit(here):
    reader, writer = await here.raw()
    writer.write(request(CHAT, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
    piece = b" " * (1 << 20)
    for _ in range(BODY_BYTES_MAX // len(piece) + 1):
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    assert b" 413 " in await reader.readuntil(b"\r\n")
    writer.close()
    await goes_on(here)


async def test_a_body_in_chunks_is_read_and_a_client_that_waits_for_leave_gets_it(here):
    body = json.dumps(completion(max_tokens=12)).encode()
    reader, writer = await here.raw()
    head = request(COMPLETIONS, b"").replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked\r\nExpect: 100-continue"
    )
    writer.write(head)
    assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert b" 200 " in await reader.readuntil(b"\r\n")
    writer.close()


async def test_a_body_that_comes_by_drops_is_a_408_and_headers_by_drops_end_the_connection(tmp_path):
    async with gateway(tmp_path, request_timeout_s=0.2) as hurried:
        await hurried.start_worker()
        reader, writer = await hurried.raw()
        writer.write(request(CHAT, b"").replace(b"Content-Length: 0", b"Content-Length: 100") + b"{")
        assert b" 408 " in await reader.readuntil(b"\r\n")
        writer.close()
        reader, writer = await hurried.raw()
        writer.write(request(CHAT, chat())[:40])
        assert await reader.read() == b""
        writer.close()
        await goes_on(hurried)


async def test_a_body_at_the_limit_is_read(here):
    body = json.dumps(completion(max_tokens=12)).encode().ljust(BODY_BYTES_MAX)
    reader, writer = await here.raw()
    writer.write(request(COMPLETIONS, body))
    assert b" 200 " in await reader.readuntil(b"\r\n")
    writer.close()


# --- routes and names ---------------------------------------------------------------------------------------


async def test_a_url_that_does_not_exist_is_a_404(here):
    for path in ("/status/assets/none.js", "/v1", "/v1/chat", "/v1/chat/completions/", "/v2/models"):
        check_refusal(await here.get(path), 404, "route_not_found")


async def test_a_wrong_method_is_a_405_that_names_the_right_one(here):
    answered = await here.get(CHAT)
    check_refusal(answered, 405, "method_not_allowed")
    assert answered.headers["Allow"] == "POST"
    check_refusal(await here.post("/v1/models", {}), 405, "method_not_allowed")


async def test_another_models_name_is_a_404_that_names_this_one(here):
    for answered in (await here.post(CHAT, chat(model="gpt-4")), await here.get("/v1/models/gpt-4")):
        check_refusal(answered, 404, "model_not_found", "model")
        assert "small" in answered.error["message"]


async def test_headers_over_the_limit_are_refused(here):
    reader, writer = await here.raw()
    writer.write(request(CHAT, chat(), extra="X-Long: " + "x" * 100_000 + "\r\n"))
    assert b" 400 " in await reader.readuntil(b"\r\n")
    writer.close()
    await goes_on(here)


async def test_a_client_that_never_ends_its_headers_holds_nobody_up(here):
    _, writer = await here.raw()
    writer.write(request(CHAT, chat())[:40])
    await writer.drain()
    await goes_on(here)
    writer.close()


# --- too long -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "max_tokens"), [(64, None), (6000, None), (60, 5)])
async def test_what_is_longer_than_the_context_is_refused_with_both_numbers(here, stream, prompt, max_tokens):
    """At once, also while every slot is taken."""
    here.worker.pause_at = 1
    busy = [here.asking(COMPLETIONS, completion(max_tokens=5)) for _ in range(4)]
    await until(lambda: here.live == 4)
    body = completion(prompt="x" * prompt, max_tokens=max_tokens, stream=stream)
    answered = await here.post(COMPLETIONS, body)
    param = "prompt" if max_tokens is None else "max_tokens"
    check_refusal(answered, 400, "context_length_exceeded", param)
    assert "64" in answered.error["message"]
    assert str(prompt + (max_tokens or 0)) in answered.error["message"]
    here.worker.pause_at = None
    await asyncio.gather(*busy)


@pytest.mark.parametrize(("prompt", "room"), [(62, 2), (63, 1)])
async def test_an_answer_that_fills_the_context_ends_by_its_length(here, prompt, room):
    answered = await here.post(COMPLETIONS, completion(prompt="x" * prompt))
    assert answered.body["choices"][0]["finish_reason"] == "length"
    assert answered.body["usage"]["completion_tokens"] == room


async def test_what_the_machines_memory_never_holds_is_refused_with_both_numbers(empty):
    await empty.start_worker(kv_bytes_per_token=1 << 20, budget_bytes=20 << 20)
    answered = await empty.post(COMPLETIONS, completion(max_tokens=20))
    check_refusal(answered, 400, "context_length_exceeded", "max_tokens")
    assert "22 tokens" in answered.error["message"]
    assert "20 MiB" in answered.error["message"]
    assert (await empty.post(COMPLETIONS, completion(max_tokens=17))).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_worker_refuses_before_the_first_token_keeps_its_status(here, stream):
    here.answer = lambda _submit: "this model can't"
    answered = await here.post(CHAT, chat(max_tokens=5, stream=stream))
    check_refusal(answered, 400, None)
    assert answered.error["message"] == "this model can't"


# --- not now ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(here, stream):
    here.worker.pause_at = 1
    running = [here.asking(COMPLETIONS, completion(max_tokens=12)) for _ in range(4)]
    await until(lambda: here.live == 4)
    queued = [here.asking(COMPLETIONS, completion(max_tokens=12)) for _ in range(2)]
    await until(lambda: here.live == 6)
    here.proxy.measurer.close()  # what is refused isn't tokenised: there is nobody to do it
    refused = await here.post(CHAT, chat(max_tokens=5, stream=stream))
    check_refusal(refused, 503, "server_is_overloaded")
    here.worker.pause_at = None
    for answered in await asyncio.gather(*running, *queued):
        assert (answered.status, answered.text) == (200, TEXT)
    assert len(here.worker.submits) == 6
    await here.idle()


async def test_more_answers_in_one_request_than_may_ever_wait_are_a_400(here):
    check_refusal(await here.post(CHAT, chat(n=3)), 400, None, "n")
    await goes_on(here)


async def test_twice_the_queues_places_at_once_are_answered_or_refused_and_none_is_lost(here):
    here.worker.pause_at = 1
    asked = [here.asking(COMPLETIONS, completion(max_tokens=12)) for _ in range(12)]
    await until(lambda: sum(task.done() for task in asked) == 6)
    here.worker.pause_at = None
    statuses = [answered.status for answered in await asyncio.gather(*asked)]
    assert sorted(statuses) == [200] * 6 + [503] * 6
    await here.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_taken_while_the_model_is_loaded_for_the_first_time(empty, stream):
    check_refusal(await empty.post(CHAT, chat(stream=stream)), 503, "loading")
    await empty.start_worker()
    await goes_on(empty)


async def test_health_says_what_is_the_matter(empty):
    async def looks(status, word):
        ready = await empty.get("/health/ready")
        live = await empty.get("/health/live")
        assert (ready.status, ready.body["status"]) == (status, word)
        assert (live.status, live.body) == (200, {"status": "live"})
        return ready.body

    await looks(503, "absent")
    await empty.start_worker(pause_at=1)
    body = await looks(200, "ready")
    assert (body["worker"]["epoch"], body["worker"]["slots"], body["live"]) == (1, 4, 0)
    running = empty.asking(COMPLETIONS, completion(max_tokens=12))
    await until(lambda: empty.worker.paused_at(1))
    body = await looks(200, "ready")
    assert (body["live"], body["queued"]) == (1, 0)
    assert body["reserved_bytes"] > 0
    await empty.kill_worker()
    body = await looks(503, "restarting")
    assert (body["worker"]["deaths"], body["worker"]["last_death"]) == (1, "crash")
    assert (body["live"], body["queued"], body["reserved_bytes"]) == (1, 1, 0)
    empty.supervisor.send(encode(BackingOff(empty.worker.epoch, 5.0, CALM)))
    await until(lambda: empty.proxy.link.state.retry_at is not None)
    assert 0 <= (await looks(503, "restarting"))["worker"]["starts_in_s"] <= 5
    await empty.start_worker()
    body = await looks(200, "ready")
    assert (body["worker"]["starts_in_s"], body["resumed"]) == (None, 1)
    assert (await running).text == TEXT


async def test_the_doors_of_health_are_open_while_the_server_drains(here):
    here.worker.pause_at = 1
    running = here.asking(COMPLETIONS, completion(max_tokens=12))
    await until(lambda: here.worker.paused_at(1))
    here.stop.ask(at_once=False)
    await until(lambda: here.proxy.dispatcher.draining)
    ready = await here.get("/health/ready")
    assert (ready.status, ready.body["status"]) == (503, "draining")
    assert (await here.get("/health/live")).status == 200
    here.worker.pause_at = None
    await running
