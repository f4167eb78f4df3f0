"""The operator's orders over the real Unix socket: restarts, drains, stops, and the quarantine."""

import asyncio
import stat

import aiohttp
import pytest
from aiohttp import web_runner

from shared.codec import decode, encode
from shared.messages import BackingOff, Care, Exited, Restart, Stop
from tests.proxy.small_gateway import CHAT, TEXT, Answered, chat, gateway, let_end, occupied
from tests.waiting import until

LANES = [{"name": "interactive", "reserved_slots": 0}]


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path, lanes=LANES) as running:
        await running.start_worker(slots=1)
        yield running


async def ordered(here, path, body=None, method=None):
    """Order something, or without a body ask for it, over the operator's socket."""
    connector = aiohttp.UnixConnector(str(here.admin_socket))
    content = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with (
        aiohttp.ClientSession("http://localhost", connector=connector) as operator,
        operator.request(
            method or ("GET" if body is None else "POST"), path, **({} if body is None else content)
        ) as response,
    ):
        return Answered(response.status, response.headers, await response.read())


async def status(here):
    return (await ordered(here, "/admin/status")).body


async def supervisor_heard(here, kind):
    """Wait for an order to the supervisor, and return it."""
    heard = []

    def look():
        heard.extend(decode(frame) for frame in here.supervisor.drain())
        return [message for message in heard if isinstance(message, kind)]

    await until(look)
    return look()[0]


async def leave_as_planned(here):
    """Let the worker leave as its supervisor would have it, and the next one come."""
    await here.worker.die()
    here.supervisor.send(encode(Exited(here.worker.epoch, "planned", "left for a planned recycle", ())))
    await until(lambda: here.proxy.link.epoch is None)
    await here.start_worker(slots=1)


async def restarted(here):
    """Wait until the restart is over, and return what is told of it."""
    await until(lambda: here.proxy.admin._restart.over)
    return (await status(here))["restart"]


# --- restarts -----------------------------------------------------------------------------------------------


async def test_a_restart_replaces_the_worker_and_the_stream_goes_on(here):
    here.worker.pause_at = 5
    asked = here.asking(CHAT, chat(stream=True))
    await until(lambda: here.paused_at(5))
    begun = await ordered(here, "/admin/restart", {})
    assert (begun.status, begun.body["restart"]["old_epoch"]) == (202, 1)
    assert (await supervisor_heard(here, Restart)).epoch == 1
    await leave_as_planned(here)
    told = await restarted(here)
    assert (told["phase"], told["old_epoch"], told["new_epoch"], told["live"]) == ("done", 1, 2, 1)
    assert told["took_s"] >= 0
    assert (await asked).streamed() == (TEXT, "stop")
    assert not (await status(here))["held"]


async def test_with_a_drain_what_runs_ends_first_and_what_comes_waits_for_the_new_worker(here):
    tasks = await occupied(here)
    await ordered(here, "/admin/restart", {"drain": True})
    await until(lambda: here.proxy.dispatcher.held)
    late = here.asking(CHAT, chat())
    await until(lambda: here.live == 2)
    here.worker.pause_at = None
    (first,) = await asyncio.gather(*tasks)
    assert (first.status, first.text) == (200, TEXT)
    assert (await supervisor_heard(here, Restart)).epoch == 1
    assert len(here.worker.submits) == 1
    await leave_as_planned(here)
    assert (await restarted(here))["live"] == 1
    assert (await late).text == TEXT


async def test_a_drain_that_takes_too_long_holds_nothing_afterwards(here):
    tasks = await occupied(here, queued=1)
    await ordered(here, "/admin/restart", {"drain": True, "timeout_s": 0.05})
    told = await restarted(here)
    assert told["phase"] == "failed"
    assert told["problem"].startswith("1 answer still ran after 0.05 s")
    await until(lambda: not here.proxy.dispatcher.held)
    await let_end(here, tasks)
    assert not here.supervisor.drain()


async def test_what_was_held_back_starts_as_soon_as_nothing_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr("proxy.app._TICK_S", 3600.0)
    async with gateway(tmp_path, lanes=LANES) as here:
        await here.start_worker(slots=2)
        tasks = await occupied(here)
        await ordered(here, "/admin/restart", {"drain": True})
        await until(lambda: here.proxy.dispatcher.held)
        tasks.append(here.asking(CHAT, chat()))
        await until(lambda: here.live == 2)
        assert len(here.worker.submits) == 1
        here.proxy.admin._restart.abandon("the test says so")
        await until(lambda: len(here.worker.submits) == 2)
        await let_end(here, tasks)


async def test_a_restart_that_breaks_holds_nothing_and_is_in_no_ones_way(here, monkeypatch):
    def fail():
        raise RuntimeError("a bug")

    monkeypatch.setattr(here.proxy.link, "restart_worker", fail)
    tasks = await occupied(here)
    await ordered(here, "/admin/restart", {"drain": True})
    await until(lambda: here.proxy.dispatcher.held)
    await let_end(here, tasks)
    with pytest.raises(RuntimeError, match="a bug"):
        await here.proxy.admin._restarting
    told = await status(here)
    assert (told["held"], told["restart"]["phase"]) == (False, "failed")
    monkeypatch.undo()
    assert (await ordered(here, "/admin/restart", {})).status == 202


async def test_a_second_restart_is_refused_while_one_goes_on_and_taken_afterwards(here):
    tasks = await occupied(here)
    await ordered(here, "/admin/restart", {"drain": True, "timeout_s": 60.0})
    refused = await ordered(here, "/admin/restart", {})
    assert (refused.status, refused.body) == (409, {"problem": "a restart is under way already"})
    await let_end(here, tasks)
    await supervisor_heard(here, Restart)
    await leave_as_planned(here)
    await restarted(here)
    assert (await ordered(here, "/admin/restart", {})).body["restart"]["number"] == 2


async def test_without_a_worker_a_restart_is_refused_with_what_the_last_one_died_of(here):
    await here.kill_worker()
    refused = await ordered(here, "/admin/restart", {})
    assert refused.status == 409
    assert (
        refused.body["problem"] == "there is no worker to replace: it is restarting (the last one: signal 9)"
    )


async def test_with_an_open_breaker_a_restart_is_refused(here):
    await here.kill_worker()
    here.supervisor.send(encode(BackingOff(1, 60.0, Care(rung=2, breaker="open"))))
    await until(lambda: here.proxy.link.state.care.breaker == "open")
    refused = await ordered(here, "/admin/restart", {})
    assert (refused.status, "breaker is open" in refused.body["problem"]) == (409, True)
    assert (await status(here))["worker"] == {"status": "restarting", "epoch": None, "breaker": "open"}


async def test_a_gateway_that_goes_down_gives_a_restart_up_so_that_what_waits_can_start(here):
    tasks = await occupied(here, queued=1)
    await ordered(here, "/admin/restart", {"drain": True})
    await until(lambda: here.proxy.dispatcher.held)
    here.stop.ask(at_once=False)
    await until(lambda: not here.proxy.dispatcher.held)
    told = await status(here)
    assert (told["restart"]["phase"], told["restart"]["problem"]) == ("failed", "the gateway is going down")
    refused = await ordered(here, "/admin/restart", {})
    assert (refused.status, refused.body["problem"]) == (409, "the gateway is going down")
    await let_end(here, tasks)


# --- drains and stops ---------------------------------------------------------------------------------------


async def test_a_drain_takes_nothing_new_and_what_is_queued_goes_on(here):
    tasks = await occupied(here, queued=1)
    told = await ordered(here, "/admin/drain", {"on": True})
    assert (told.status, told.body["draining"], told.body["live"]) == (200, True, 2)
    refused = await here.post(CHAT, chat())
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert (await here.get("/health/ready")).status == 503
    await let_end(here, tasks)
    assert not here.serving.done()


async def test_an_opened_gateway_takes_requests_again(here):
    await ordered(here, "/admin/drain", {"on": True})
    assert not (await ordered(here, "/admin/drain", {"on": False})).body["draining"]
    assert (await here.post(CHAT, chat())).status == 200


async def test_a_stop_lets_what_runs_finish_and_ends_the_supervisor_and_the_gateway(here):
    tasks = await occupied(here)
    assert (await ordered(here, "/admin/stop", {})).status == 202
    await until(lambda: here.proxy.dispatcher.draining)
    refused = await ordered(here, "/admin/drain", {"on": False})
    assert (refused.status, refused.body["problem"]) == (409, "the gateway is going down")
    assert not here.serving.done()
    await let_end(here, tasks)
    await supervisor_heard(here, Stop)
    await here.serving


async def test_a_stop_at_once_waits_for_nothing_even_after_one_that_waits(here):
    asked = here.asking(CHAT, chat())
    here.worker.pause_at = 1
    await until(lambda: here.live == 1)
    await ordered(here, "/admin/stop", {"at_once": False})
    await until(lambda: here.proxy.dispatcher.draining)
    await ordered(here, "/admin/stop", {"at_once": True})
    await supervisor_heard(here, Stop)
    await here.serving
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


# --- the quarantine -----------------------------------------------------------------------------------------

BAD = "0123456789abcdef"
WORSE = "fedcba9876543210"


def quarantined(here, *fingerprints):
    for each in fingerprints:
        here.proxy.quarantine.add(
            each, cause="memory", detail="SIGABRT", key="k1", lane="interactive", prompt_tokens=9
        )


async def test_the_quarantine_is_listed_and_cleared_by_fingerprint_and_as_a_whole(here):
    quarantined(here, BAD, WORSE)
    entries = (await ordered(here, "/admin/quarantine")).body["entries"]
    assert [(each["fingerprint"], each["cause"], each["prompt_tokens"]) for each in entries] == [
        (BAD, "memory", 9),
        (WORSE, "memory", 9),
    ]
    told = await ordered(here, "/admin/quarantine/clear", {"fingerprints": [BAD, BAD, "0" * 16]})
    assert told.body == {"cleared": 1, "unknown": ["0" * 16]}
    assert (await ordered(here, "/admin/quarantine/clear", {"fingerprints": None})).body["cleared"] == 1
    assert (await ordered(here, "/admin/quarantine")).body == {"entries": []}


# --- what can't be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("restart", {"drain": "yes"}, "drain: "),
        ("restart", {"drain": 1}, "drain: "),
        ("restart", {"timeout_s": 0}, "timeout_s: "),
        ("restart", {"timeout_s": 1e9}, "timeout_s: "),
        ("restart", {"drian": True}, "drian: "),
        ("restart", [], "object"),
        ("restart", b"{", "JSON"),
        ("restart", b"\xff", "JSON"),
        ("restart", b"[" * 5000, "JSON"),
        ("drain", {}, "on: "),
        ("drain", b"", "on: "),
        ("drain", {"on": None}, "on: "),
        ("stop", {"at_once": "now"}, "at_once: "),
        ("quarantine/clear", {}, "fingerprints: "),
        ("quarantine/clear", {"fingerprints": BAD}, "fingerprints: "),
        ("quarantine/clear", {"fingerprints": ["../x"]}, "fingerprints.0: "),
        ("quarantine/clear", {"fingerprints": [BAD + "\n"]}, "fingerprints.0: "),
        ("quarantine/clear", {"fingerprints": [BAD] * 1001}, "fingerprints: "),
    ],
)
async def test_a_body_that_is_no_order_changes_nothing_and_is_a_400_with_words(here, path, body, words):
    quarantined(here, BAD)
    before = await status(here)
    refused = await ordered(here, f"/admin/{path}", body, "POST")
    assert (refused.status, words in refused.body["problem"]) == (400, True), refused.raw
    assert await status(here) == before
    assert len(here.proxy.quarantine.entries()) == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/admin/restart", b'"' + b"x" * 100_000 + b'"', 413),
        ("GET", "/admin/restart", None, 405),
        ("POST", "/admin/nosuch", b"{}", 404),
    ],
)
async def test_other_refusals_are_json_too(here, method, path, body, expected):
    refused = await ordered(here, path, body, method)
    assert refused.status == expected
    assert isinstance(refused.body["problem"], str)


async def test_an_order_that_never_ends_does_not_keep_the_gateway_from_ending(tmp_path, monkeypatch):
    """Ten minutes, in the place of the library's one, are far above the test's own limit."""
    monkeypatch.setitem(web_runner.BaseRunner.__init__.__kwdefaults__, "shutdown_timeout", 600.0)
    async with gateway(tmp_path) as here:
        _, writer = await asyncio.open_unix_connection(str(here.admin_socket))
        writer.write(b"POST /admin/stop HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{")
        await status(here)  # By then that one was read, too.
        here.stop.ask(at_once=True)
        await here.serving
        writer.close()
        await writer.wait_closed()


async def test_only_the_owner_may_open_the_socket(here):
    assert stat.S_IMODE(here.admin_socket.stat().st_mode) == 0o600
