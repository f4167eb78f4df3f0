"""How many connections there may be: who has one keeps it, who is idle makes room, others come back later."""

import asyncio
import contextlib

import pytest
from aiohttp import web

from shared.errors import SettingsError
from tests.proxy.raw_clients import RawClient, connection_of, parsed
from tests.proxy.small_gateway import CHAT, TEXT, chat, gateway, let_end, request
from tests.waiting import until

HEALTH = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
ROOM = 4


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path, connections_max=ROOM) as running:
        await running.start_worker(pause_at=1)
        await until(lambda: running.proxy.listening.connections == 0)
        yield running


@contextlib.asynccontextmanager
async def clients(here, number):
    async with contextlib.AsyncExitStack() as stack:
        connected = [await stack.enter_async_context(RawClient(here.port)) for _ in range(number)]
        await until(lambda: here.proxy.listening.connections == ROOM)
        yield connected


async def filled(here):
    """Take all the room with answers that don't end; return the tasks."""
    tasks = [here.asking(CHAT, chat(max_tokens=20)) for _ in range(ROOM)]
    await until(lambda: here.live == ROOM and here.paused_at(1))
    return tasks


async def test_over_the_bound_a_connection_is_told_to_come_back_and_the_others_live(here):
    tasks = await filled(here)
    for content in (HEALTH, request(CHAT, chat())):
        async with RawClient(here.port) as late:
            await late.send(content)
            status, headers, body = parsed(await late.read_all())
        assert (status, body["error"]["code"]) == (503, "server_is_overloaded")
        assert 1 <= int(headers["retry-after"]) <= 60
        assert headers["connection"] == "close"
        assert headers["content-type"] == "application/json; charset=utf-8"
    assert here.proxy.listening.ended == {"turned away": 2}
    await let_end(here, tasks)
    assert (await here.get("/health/live")).status == 200


async def test_a_crowd_that_is_turned_away_takes_no_room_and_leaves_nothing(here):
    tasks = await filled(here)
    async with contextlib.AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(RawClient(here.port)) for _ in range(60)]
        await until(lambda: here.proxy.listening.ended["turned away"] == 60)
        assert here.proxy.listening.connections == ROOM
        assert len(here.proxy.listening._farewells) <= ROOM
        told = await asyncio.gather(*(each.read_all() for each in crowd))
    assert {raw[:12] for raw in told} == {b"HTTP/1.1 503", b""}
    await until(lambda: not here.proxy.listening._farewells)
    await let_end(here, tasks)


async def test_the_connection_that_was_idle_longest_makes_room(here, monkeypatch):
    monkeypatch.setattr("proxy.listening._IDLE_S_MIN", 0.0)
    async with clients(here, ROOM) as (first, second, *_):
        await first.send(HEALTH)
        assert b" 200 " in await first.read()
        await until(
            lambda: connection_of(here, first).idle_since_s > connection_of(here, second).idle_since_s
        )
        async with RawClient(here.port) as late:
            await late.send(HEALTH)
            assert b" 200 " in await late.read()
        assert await second.read_all() == b""
        await first.send(HEALTH)
        assert b" 200 " in await first.read()
    assert here.proxy.listening.ended == {"idle": 1}


async def test_who_has_just_come_is_not_idle_yet(here, monkeypatch):
    monkeypatch.setattr("proxy.listening._IDLE_S_MIN", 60.0)
    async with clients(here, ROOM) as connected, RawClient(here.port) as late:
        assert b" 503 " in await late.read_all()
        for client in connected:
            await client.send(HEALTH)
            assert b" 200 " in await client.read()


async def test_a_connection_that_is_served_is_never_idle(here, monkeypatch):
    monkeypatch.setattr("proxy.listening._IDLE_S_MIN", 0.0)
    tasks = await filled(here)
    async with RawClient(here.port) as late:
        assert b" 503 " in await late.read_all()
    await let_end(here, tasks)


async def test_connections_that_send_nothing_do_not_keep_others_out(here, monkeypatch):
    """Neither those that come and are silent nor those that send their headers by drops."""
    monkeypatch.setattr("proxy.listening._IDLE_S_MIN", 0.0)
    monkeypatch.setattr("proxy.listening._SCAN_S_MIN", 0.0)
    async with clients(here, ROOM) as connected:
        for client in connected:
            await client.send(request(CHAT, chat())[:40])
        here.worker.pause_at = None
        assert (await here.post(CHAT, chat(max_tokens=20))).text == TEXT


async def test_a_connection_that_closes_makes_room(here):
    async with clients(here, ROOM) as (first, *_):
        await first.__aexit__()
        await until(lambda: here.proxy.listening.connections == ROOM - 1)
        assert (await here.get("/health/ready")).status == 200


async def test_a_port_that_another_listens_at_is_said_to_be_taken(here):
    runner = web.AppRunner(web.Application())
    await runner.setup()
    first = here.proxy.listening
    with pytest.raises(SettingsError, match=f"can't listen on 127.0.0.1:{here.port}: "):
        await here.proxy._listen(runner)
    await runner.cleanup()
    here.proxy.listening = first
    assert (await here.get("/health/live")).status == 200
