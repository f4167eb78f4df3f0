"""The end of a drain: whoever is still served is told, in the shape that its answer has."""

import asyncio

import pytest

from tests.proxy.raw_clients import RawClient, connection_of, hold_little
from tests.proxy.small_gateway import CHAT, COMPLETIONS, chat, completion, gateway, ids, request
from tests.waiting import until


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path, drain_s=0.2) as running:
        await running.start_worker()
        yield running


def is_draining(answered):
    assert (answered.status, answered.error["code"]) == (503, "draining")
    assert 1 <= int(answered.headers["Retry-After"]) <= 60
    return True


async def test_what_has_not_ended_by_then_ends_with_a_refusal_and_never_looks_complete(here):
    here.worker.pause_at = 5
    whole, stream, keyed = (
        here.asking(CHAT, chat(max_tokens=20)),
        here.asking(CHAT, chat(max_tokens=20, stream=True)),
        here.asking(CHAT, chat(max_tokens=20, stream=True), headers={"Idempotency-Key": "one"}),
    )
    await until(lambda: here.live == 3 and here.paused_at(5))
    here.stop.ask(at_once=False)
    for answered in await asyncio.gather(stream, keyed):
        *chunks, last = answered.events
        assert answered.status == 200
        assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks) == "hélo"
        assert last["error"]["code"] == "draining"
        assert 1000 <= last["error"]["retry_after_ms"] <= 60_000
        assert all(each["choices"][0]["finish_reason"] is None for each in chunks)
    assert is_draining(await whole)
    await here.serving
    assert here.live == 0


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "one"}], ids=["plain", "keyed"])
async def test_what_still_waits_in_the_queue_keeps_its_status(here, headers):
    here.worker.pause_at = 1
    running = [here.asking(CHAT, chat(max_tokens=20)) for _ in range(4)]
    await until(lambda: here.live == 4 and here.paused_at(1))
    queued = here.asking(CHAT, chat(max_tokens=20, stream=True), headers=headers)
    await until(lambda: here.live == 5)
    here.stop.ask(at_once=False)
    assert is_draining(await queued)
    assert all(map(is_draining, await asyncio.gather(*running)))
    await here.serving


async def test_the_rows_are_given_back_to_the_worker(here):
    here.worker.pause_at = 5
    running = here.asking(CHAT, chat(max_tokens=20))
    await until(lambda: here.live and here.paused_at(5))
    (name,) = here.worker.rows
    here.stop.ask(at_once=False)
    assert is_draining(await running)
    await until(lambda: here.worker.cancelled == [name])
    await here.serving


async def test_a_server_that_has_to_go_at_once_tells_its_clients_as_well(here):
    here.worker.pause_at = 5
    stream = here.asking(CHAT, chat(max_tokens=20, stream=True))
    await until(lambda: here.live and here.paused_at(5))
    here.stop.ask(at_once=True)
    assert (await stream).events[-1]["error"]["code"] == "draining"
    await here.serving


async def test_an_answer_that_is_made_but_not_read_yet_is_waited_for(tmp_path, monkeypatch):
    """Until the drain's time is over; ten minutes are far above the test's own limit."""
    left_bytes = []
    async with gateway(tmp_path, drain_s=600) as here:
        hold_little(here)
        await here.start_worker()
        here.answer = lambda _submit: ids("a" * 50)
        async with RawClient(here.port) as client:
            await client.send(request(COMPLETIONS, completion(max_tokens=50, n=4, stream=True)))
            await until(lambda: len(here.worker.submits) == 4 and here.live == 0)
            await until(lambda: connection_of(here, client).reading().buffered_bytes > 0)
            listening = here.proxy.listening
            monkeypatch.setattr(
                here.proxy.dispatcher, "fail_all", lambda _: left_bytes.append(listening.undelivered_bytes)
            )
            here.stop.ask(at_once=False)
            await until(lambda: here.proxy.dispatcher.draining)
            assert b"data: [DONE]" in await client.read_all()
        await here.serving
    assert left_bytes == [0]


async def test_readiness_goes_first_and_liveness_stays(here):
    here.worker.pause_at = 5
    running = here.asking(CHAT, chat(max_tokens=20))
    await until(lambda: here.live and here.paused_at(5))
    here.stop.ask(at_once=False)
    await until(lambda: here.proxy.dispatcher.draining)
    ready, live, refused = (
        await here.get("/health/ready"),
        await here.get("/health/live"),
        await here.post(CHAT, chat()),
    )
    assert (ready.status, live.status, is_draining(refused)) == (503, 200, True)
    assert is_draining(await running)
    await here.serving
