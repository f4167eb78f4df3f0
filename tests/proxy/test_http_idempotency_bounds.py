"""Idempotency-Key over HTTP: what it may take of memory and of a key's quota, and while the server drains."""

import asyncio

import pytest

from proxy.idempotency import ENTRY_BYTES, IdempotencyStore
from tests.proxy.small_gateway import CHAT, TEXT, chat, gateway, ids, let_end, occupied, request
from tests.proxy.test_http_idempotency import KEY, REPLAY, asked, listeners
from tests.waiting import until


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        yield running


def bounded(here, bytes_max):
    here.proxy.keyed._store = IdempotencyStore(bytes_max, 3600.0)


# --- bounds -------------------------------------------------------------------------------------------------


async def test_the_oldest_answer_goes_when_there_is_no_room(here):
    bounded(here, 8 * ENTRY_BYTES)
    keys = [{"Idempotency-Key": str(number)} for number in range(8)]
    for headers in keys:
        assert (await here.post(CHAT, asked(), headers=headers)).status == 200
    assert here.proxy.keyed._store.all_bytes <= 8 * ENTRY_BYTES
    assert REPLAY in (await here.post(CHAT, asked(), headers=keys[-1])).headers
    assert REPLAY not in (await here.post(CHAT, asked(), headers=keys[0])).headers


async def test_an_answer_that_is_too_long_to_store_is_heard_whole_by_those_who_listen(here):
    bounded(here, 8 * ENTRY_BYTES)
    here.worker.pause_at = 1
    both = [here.asking(CHAT, asked(stream=True), headers=KEY) for _ in range(2)]
    await until(lambda: here.live and here.paused_at(1) and listeners(here) == [2])
    (recording,) = here.proxy.keyed._running
    here.worker.pause_at = None
    for answered in await asyncio.gather(*both):
        assert answered.streamed() == (TEXT, "stop")
        assert answered.events[-1] == "DONE"
    assert here.proxy.keyed._store.all_bytes == 0
    assert not recording.is_whole
    assert REPLAY not in (await here.post(CHAT, asked(stream=True), headers=KEY)).headers


async def test_an_answer_too_long_to_store_that_nobody_hears_is_cancelled(here):
    bounded(here, 8 * ENTRY_BYTES)
    here.answer = lambda _submit: ids("a" * 40)
    here.worker.pause_at = 20
    _, writer = await here.raw()
    writer.write(request(CHAT, chat(max_tokens=40, stream=True), extra="Idempotency-Key: one\r\n"))
    await until(lambda: here.live and here.paused_at(20))
    assert len(here.proxy.keyed._store) == 0
    writer.close()
    await until(lambda: len(here.worker.cancelled) == 1)
    await here.idle()


async def test_with_no_room_for_another_run_a_request_is_served_as_without_a_key_and_told_so(here):
    bounded(here, ENTRY_BYTES)
    here.worker.pause_at = 0
    first = here.asking(CHAT, asked(), headers=KEY)
    await until(lambda: here.live and here.paused_at(0))
    second = here.asking(CHAT, asked(), headers={"Idempotency-Key": "two"})
    await until(lambda: here.live == 2)
    here.worker.pause_at = None
    assert (await first).text == TEXT
    answered = await second
    assert (answered.text, answered.headers["x-forebay-idempotency"]) == (TEXT, "not-recorded")


# --- quotas and the end -------------------------------------------------------------------------------------


async def test_joining_and_replaying_take_a_request_each_and_no_tokens(tmp_path):
    async with gateway(tmp_path) as here:
        headers = KEY | here.add_key("bounded", requests_per_minute=4, tokens_per_minute=100)
        await here.proxy.admin.reload()
        await here.start_worker(pause_at=5)
        both = [here.asking(CHAT, asked(), headers=headers) for _ in range(2)]
        await until(lambda: here.live and here.paused_at(5) and listeners(here) == [2])
        here.worker.pause_at = None
        await asyncio.gather(*both)
        third = await here.post(CHAT, asked(), headers=headers)
        assert third.headers["x-ratelimit-remaining-requests"] == "1"
        used = 100 - int(third.headers["x-ratelimit-remaining-tokens"])
        fourth = await here.post(CHAT, asked(), headers=headers)
        assert 0 < 100 - int(fourth.headers["x-ratelimit-remaining-tokens"]) <= used
        refused = await here.post(CHAT, asked(), headers=headers)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert len(here.worker.submits) == 1


async def test_a_key_with_one_place_may_come_back_to_the_run_that_holds_it(tmp_path):
    async with gateway(tmp_path) as here:
        own = here.add_key("narrow", concurrent_max=1)
        await here.proxy.admin.reload()
        await here.start_worker(pause_at=5)
        first = here.asking(CHAT, asked(), headers=KEY | own)
        await until(lambda: here.live and here.paused_at(5))
        joined = here.asking(CHAT, asked(), headers=KEY | own)
        await until(lambda: listeners(here) == [2])
        other = await here.post(CHAT, asked(), headers={"Idempotency-Key": "two"} | own)
        assert (other.status, other.error["code"]) == (429, "rate_limit_exceeded")
        here.worker.pause_at = None
        assert (await first).raw == (await joined).raw
        assert (await here.post(CHAT, asked(), headers={"Idempotency-Key": "two"} | own)).status == 200


async def test_while_the_server_drains_what_is_stored_is_replayed_and_what_runs_joined(here):
    stored = await here.post(CHAT, asked(), headers={"Idempotency-Key": "done"})
    tasks = await occupied(here)
    here.worker.pause_at = 5
    first = here.asking(CHAT, asked(), headers=KEY)
    await until(lambda: listeners(here) == [1] and here.live == 2)
    here.stop.ask(at_once=False)
    await until(lambda: here.proxy.dispatcher.draining)
    replayed = await here.post(CHAT, asked(), headers={"Idempotency-Key": "done"})
    assert (replayed.status, replayed.raw) == (200, stored.raw)
    joined = here.asking(CHAT, asked(), headers=KEY)
    await until(lambda: listeners(here) == [2])
    refused = await here.post(CHAT, asked(), headers={"Idempotency-Key": "new"})
    assert (refused.status, refused.error["code"]) == (503, "draining")
    await let_end(here, tasks)
    assert (await first).raw == (await joined).raw
    await here.serving
