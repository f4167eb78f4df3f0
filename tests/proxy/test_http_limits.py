"""What clients may send, and how slowly: anything else is refused in the house's shape, and others go on."""

import asyncio
import contextlib

import pytest

from shared.limits import BODY_PARTS_MAX
from tests.proxy.raw_clients import parsed
from tests.proxy.small_gateway import CHAT, COMPLETIONS, TEXT, chat, completion, gateway, request
from tests.waiting import until

HEALTH = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        yield running


async def goes_on(here):
    answered = await here.post(COMPLETIONS, completion(max_tokens=12))
    assert (answered.status, answered.text) == (200, TEXT)
    await here.idle()


async def told(here, content):
    """Send bytes; return all that comes back until the connection ends."""
    reader, writer = await here.raw()
    writer.write(content)
    try:
        return await reader.read()
    finally:
        writer.close()


UNREADABLE = {
    "no words": b"\x00\x01\x02\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "no version": b"POST /v1/chat/completions\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length that is none": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    "an endless line": b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
    "an endless header": b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "headers without number": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_what_is_no_http_is_a_400_in_the_usual_shape_and_the_end_of_its_connection(here, content):
    status, headers, body = parsed(await told(here, content))
    assert (status, body["error"]["type"], body["error"]["code"]) == (400, "invalid_request_error", None)
    assert headers["content-type"] == "application/json; charset=utf-8"
    assert headers["x-should-retry"] == "false"
    assert headers["x-request-id"].startswith("req_")
    await goes_on(here)


async def test_garbage_behind_a_request_ends_the_connection_after_the_answer(here):
    here.worker.pause_at = 1
    reader, writer = await here.raw()
    writer.write(request(COMPLETIONS, completion(max_tokens=12)))
    await until(lambda: here.live and here.paused_at(1))
    writer.write(b"\x00garbage\r\n\r\n")
    here.worker.pause_at = None
    answer, refusal = (await reader.read()).split(b"HTTP/1.0 400", 1)
    writer.close()
    assert parsed(answer)[0] == 200
    assert b'"invalid_request_error"' in refusal
    await goes_on(here)


async def test_a_request_with_garbage_in_its_wake_is_refused_as_one_and_never_run(here):
    status, *_ = parsed(await told(here, request(CHAT, chat()) + b"\x00garbage\r\n\r\n"))
    assert (status, here.worker.submits) == (400, [])
    await goes_on(here)


async def test_many_requests_behind_each_other_are_answered_in_turn(here):
    raw = await told(here, HEALTH * 100 + HEALTH.replace(b"Host", b"Connection: close\r\nHost"))
    assert raw.count(b"HTTP/1.1 200") == 101


@pytest.mark.parametrize("path", [CHAT, "/nowhere"])
async def test_another_expectation_than_100_is_a_417_in_the_usual_shape(here, path):
    content = request(path, chat(), extra="Expect: tea\r\nConnection: close\r\n")
    status, headers, body = parsed(await told(here, content))
    assert (status, body["error"]["code"]) == (417, "expectation_failed")
    assert headers["x-forebay-dropped-reason"] == "expectation_failed"
    assert here.worker.submits == []


async def answered(here, body):
    """Ask in a connection of its own; return (status, error)."""
    content = request(COMPLETIONS, body, extra="Connection: close\r\n")
    status, _, body = parsed(await told(here, content))
    return status, body["error"]


async def test_a_prompt_of_a_million_tokens_is_refused_while_others_are_served(here):
    asked = asyncio.create_task(answered(here, completion(prompt="word " * 1_200_000)))
    while not asked.done():
        assert (await here.get("/health/live")).status == 200
    status, error = await asked
    assert (status, error["code"]) == (400, "context_length_exceeded")
    await goes_on(here)


async def test_a_prompt_of_a_million_ids_is_refused(here):
    status, error = await answered(here, completion(prompt=[1] * 1_000_000))
    assert (status, error["type"]) == (400, "invalid_request_error")
    await goes_on(here)


async def test_a_body_of_too_many_parts_is_refused(here):
    status, error = await answered(here, completion(prompt=[[]] * (BODY_PARTS_MAX + 1)))
    assert (status, error["type"]) == (400, "invalid_request_error")
    await goes_on(here)


# --- slowly -------------------------------------------------------------------------------------------------


@pytest.fixture
async def hurried(tmp_path):
    async with gateway(tmp_path, request_timeout_s=0.2) as running:
        await running.start_worker()
        yield running


async def dripped(writer, content):
    """Send a byte now and then until the other side has had enough."""
    for byte in content:
        if writer.is_closing():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("before", [b"", HEALTH], ids=["first", "second"])
async def test_headers_that_come_by_drops_end_the_connection_however_long_they_drip(hurried, before):
    reader, writer = await hurried.raw()
    writer.write(before)
    if before:
        assert b'"live"' in await reader.readuntil(b"}")
    dripping = asyncio.create_task(dripped(writer, b"GET /health/live HTTP/1.1\r\nX: " + b"x" * 100_000))
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    await until(lambda: hurried.proxy.listening.connections == 0)
    dripping.cancel()
    writer.close()
    await goes_on(hurried)


async def test_a_body_that_drips_is_a_408_however_long_it_drips(hurried):
    reader, writer = await hurried.raw()
    writer.write(request(CHAT, b"").replace(b"Content-Length: 0", b"Content-Length: 100000"))
    dripping = asyncio.create_task(dripped(writer, b" " * 100_000))
    assert b" 408 " in await reader.readuntil(b"\r\n")
    assert b'"request_timeout"' in await reader.readuntil(b"}")
    dripping.cancel()
    writer.close()
    await goes_on(hurried)


async def test_a_keyed_body_that_drips_is_a_408_and_takes_the_key_from_nobody(hurried):
    reader, writer = await hurried.raw()
    content = request(CHAT, b"", extra="Idempotency-Key: one\r\n")
    writer.write(content.replace(b"Content-Length: 0", b"Content-Length: 100"))
    assert b" 408 " in await reader.readuntil(b"\r\n")
    writer.close()
    answered = await hurried.post(CHAT, chat(max_tokens=20), headers={"Idempotency-Key": "one"})
    assert answered.text == TEXT
