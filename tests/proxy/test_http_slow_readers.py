"""Clients that read slowly or not at all: the batch never waits for them, and they are cut off in the end."""

import asyncio
import socket

import pytest
from structlog.testing import capture_logs

from proxy.answer_bytes import entry_bytes
from proxy.slow_readers import LARGEST_LAGGARD, READS_NOTHING, SlowReaders
from proxy.sockets import connection_options
from shared.sampling import Sampling
from tests.proxy.raw_clients import RawClient, connection_of, hold_little
from tests.proxy.small_gateway import CHAT, COMPLETIONS, TEXT, chat, completion, gateway, ids, request
from tests.waiting import until

LONG = "a" * 50
PATIENCE_S = 60.0


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path, slow_reader_s=PATIENCE_S) as running:
        hold_little(running)
        await running.start_worker()
        running.answer = lambda submit: ids(TEXT if submit.max_tokens == 20 else LONG)
        yield running


def long_stream(**fields):
    return request(COMPLETIONS, completion(max_tokens=50, stream=True, **fields))


def look(here, later_s):
    """Look at all connections as if so much time had passed."""
    here.proxy.listening.look(asyncio.get_running_loop().time() + later_s)


async def stuck(here, client):
    """Wait until the client's row has made all its tokens and the system takes no more of them."""
    connection = connection_of(here, client)
    await until(lambda: here.worker.rows == {} or here.paused_at(here.worker.pause_at))
    await until(lambda: connection.reading().buffered_bytes > 0)
    return connection


async def test_a_client_that_reads_nothing_is_cut_off_and_its_batch_mates_have_all_their_tokens(here):
    here.worker.pause_at = 49
    async with RawClient(here.port) as client:
        await client.send(long_stream(n=2))
        await until(lambda: len(here.worker.rows) == 2)
        await stuck(here, client)
        mates = await asyncio.gather(*(here.post(CHAT, chat(max_tokens=20, stream=True)) for _ in range(2)))
        assert [mate.streamed() for mate in mates] == [(TEXT, "stop")] * 2
        names = sorted(here.worker.rows)
        with capture_logs() as logs:
            look(here, 0)
            look(here, PATIENCE_S - 1)
            assert here.worker.cancelled == []
            look(here, PATIENCE_S + 1)
            look(here, PATIENCE_S + 2)
            await until(lambda: sorted(here.worker.cancelled) == names)
        await here.idle()
        raw = await client.read_all()
        assert b"200 OK" in raw
        assert b"[DONE]" not in raw
    cut = [each for each in logs if each["event"] == "connection cut off"]
    assert [(each["cause"], each["log_level"]) for each in cut] == [(READS_NOTHING, "warning")]
    assert here.proxy.listening.ended == {READS_NOTHING: 1}


async def test_the_batch_makes_all_tokens_of_a_client_that_reads_none(here):
    async with RawClient(here.port) as client:
        await client.send(long_stream(n=4))
        await until(lambda: len(here.worker.submits) == 4)
        await here.idle()
        await stuck(here, client)
        assert b"[DONE]" in await read_to_done(client)


async def read_to_done(client):
    raw = b""
    while b"[DONE]" not in raw:
        part = await client.read()
        assert part
        raw += part
    return raw


@pytest.mark.parametrize("pause_at", [49, None], ids=["still made", "made"])
async def test_a_client_that_reads_a_little_now_and_then_is_left_alone(here, pause_at):
    here.worker.pause_at = pause_at
    async with RawClient(here.port) as client:
        await client.send(long_stream(n=4))
        await until(lambda: len(here.worker.submits) == 4)
        connection = await stuck(here, client)
        read = b""
        for round_number in range(3):
            look(here, round_number * (PATIENCE_S - 1))
            before = connection.reading().buffered_bytes
            while connection.reading().buffered_bytes == before:
                read += await client.read()
        look(here, 3 * (PATIENCE_S - 1))
        here.worker.pause_at = None
        assert b"[DONE]" in read + await read_to_done(client)
    assert here.proxy.listening.ended == {}


async def test_a_whole_answer_that_is_not_read_is_cut_off_too(here):
    here.answer = lambda _submit: ids("\x01" * 50)
    async with RawClient(here.port) as client:
        await client.send(request(COMPLETIONS, completion(prompt=["a"] * 32, max_tokens=50)))
        await until(lambda: len(here.worker.submits) == 32)
        await stuck(here, client)
        look(here, 0)
        look(here, PATIENCE_S + 1)
        await until(lambda: here.proxy.listening.connections == 0)
    assert here.proxy.listening.ended == {READS_NOTHING: 1}


async def test_a_stream_that_is_replayed_and_not_read_is_cut_off_and_stays_stored(here):
    key = {"Idempotency-Key": "one"}
    body = completion(max_tokens=50, n=4, stream=True)
    whole = await here.post(COMPLETIONS, body, headers=key)
    async with RawClient(here.port) as client:
        await client.send(request(COMPLETIONS, body, extra="Idempotency-Key: one\r\n"))
        await until(lambda: here.proxy.listening.undelivered_bytes > 0)
        look(here, 0)
        look(here, PATIENCE_S + 1)
        assert here.proxy.listening.ended == {READS_NOTHING: 1}
    assert (await here.post(COMPLETIONS, body, headers=key)).raw == whole.raw


async def test_over_the_bound_of_all_together_the_largest_laggard_is_cut_off(here):
    async with RawClient(here.port) as small, RawClient(here.port) as large:
        await small.send(long_stream(n=2))
        await large.send(long_stream(n=4))
        await until(lambda: len(here.worker.submits) == 6)
        await here.idle()
        connections = [await stuck(here, small), await stuck(here, large)]
        undelivered = [each.reading().undelivered_bytes for each in connections]
        assert undelivered[0] < undelivered[1]
        here.proxy.listening.slow_readers = SlowReaders(PATIENCE_S, sum(undelivered))
        look(here, 0)
        assert here.proxy.listening.ended == {}
        here.proxy.listening.slow_readers = SlowReaders(PATIENCE_S, sum(undelivered) - 1)
        look(here, 0)
        look(here, 1)
        assert here.proxy.listening.ended == {LARGEST_LAGGARD: 1}
        assert b"[DONE]" not in await large.read_all()
        assert b"[DONE]" in await read_to_done(small)


async def test_tokens_that_wait_to_be_written_count_as_undelivered(here):
    async with RawClient(here.port) as client:
        await client.send(long_stream(n=16))
        await until(lambda: len(here.worker.submits) == 16)
        await here.idle()
        connection = await stuck(here, client)
        await until(lambda: connection.reading().backlog_bytes > 0)
        reading = connection.reading()
        assert reading.undelivered_bytes == reading.buffered_bytes + reading.backlog_bytes
        assert b"[DONE]" in await read_to_done(client)


@pytest.mark.parametrize("key", [None, "one"], ids=["no key", "with a key"])
async def test_what_is_gathered_of_a_whole_answer_counts_until_it_is_written(here, key):
    here.worker.pause_at = 40
    extra = f"Idempotency-Key: {key}\r\n" if key else ""
    async with RawClient(here.port) as client:
        await client.send(request(COMPLETIONS, completion(max_tokens=50, logprobs=5), extra=extra))
        await until(lambda: here.paused_at(40))
        connection = connection_of(here, client)
        # Each entry has its six numbers at least.
        await until(lambda: connection.reading().backlog_bytes > 40 * 6 * 4)
        here.worker.pause_at = None
        await until(lambda: here.live == 0)
        await until(lambda: connection.reading().backlog_bytes == 0)
        await until(lambda: connection.idle_since_s is not None)


async def test_clients_that_wait_for_one_whole_answer_share_what_is_gathered_of_it(here):
    here.worker.pause_at = 40
    asks = request(COMPLETIONS, completion(max_tokens=50, logprobs=5), extra="Idempotency-Key: one\r\n")
    async with RawClient(here.port) as first, RawClient(here.port) as second:
        await first.send(asks)
        await until(lambda: here.paused_at(40))
        alone = connection_of(here, first)
        await until(lambda: alone.reading().backlog_bytes > 40 * 6 * 4)
        before = alone.reading().backlog_bytes
        await second.send(asks)
        await until(lambda: connection_of(here, second).reading().backlog_bytes > 0)
        assert [connection_of(here, each).reading().backlog_bytes for each in (first, second)] == [
            before // 2
        ] * 2
        here.worker.pause_at = None
        await here.idle()


async def test_a_whole_answer_of_more_logprobs_than_are_sent_at_once_is_refused_unless_streamed(tmp_path):
    async with gateway(tmp_path, undelivered_mb=1) as bounded:
        await bounded.start_worker()
        # What a short context can't reach.
        bounded.proxy.measurer._whole_bytes_max = 19 * entry_bytes(Sampling(top_logprobs=20))
        for path, body, param in (
            (COMPLETIONS, completion(logprobs=20), "logprobs"),
            (CHAT, chat(logprobs=True, top_logprobs=20), "top_logprobs"),
        ):
            for headers in ({}, {"Idempotency-Key": param}):
                refused = await bounded.post(path, {**body, "max_tokens": 20}, headers=headers)
                assert (refused.status, refused.error["param"]) == (400, param)
            streamed = await bounded.post(path, {**body, "max_tokens": 20, "stream": True})
            assert streamed.streamed() == (TEXT, "stop")
        assert len(bounded.worker.submits) == 2


async def test_a_connection_finds_out_that_its_peer_has_vanished(here):
    async with RawClient(here.port) as client:
        await until(lambda: here.proxy.listening.connections == 1)
        peer = connection_of(here, client).transport.get_extra_info("socket")
        for level, name, value in connection_options(PATIENCE_S):
            told = peer.getsockopt(level, name)
            assert bool(told) if name == socket.SO_KEEPALIVE else told == value


async def test_the_bounds_are_those_of_the_settings(tmp_path):
    async with gateway(tmp_path, slow_reader_s=7, undelivered_mb=3) as bounded:
        slow_readers = bounded.proxy.listening.slow_readers
        assert (slow_readers._patience_s, slow_readers._undelivered_bytes_max) == (7, 3 << 20)
