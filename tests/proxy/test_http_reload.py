"""Lanes and keys read again by a running gateway: over the operator's socket, and by SIGHUP."""

import asyncio
import os
import signal

import aiohttp
import pytest

from proxy.keys import KeyFile
from tests.proxy.small_gateway import (
    CHAT,
    COMPLETIONS,
    TEXT,
    Answered,
    chat,
    completion,
    gateway,
    let_end,
    occupied,
)
from tests.waiting import until

LANE = "x-forebay-lane"
TWO = [{"name": "interactive", "reserved_slots": 0}, {"name": "batch", "queue_places": 5}]
STREAMED_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path, lanes=TWO) as running:
        await running.start_worker(slots=1)
        yield running


async def ordered(here, path="/admin/reload", method="POST"):
    """Order something over the operator's socket."""
    connector = aiohttp.UnixConnector(str(here.admin_socket))
    async with (
        aiohttp.ClientSession("http://localhost", connector=connector) as operator,
        operator.request(method, path) as response,
    ):
        return Answered(response.status, response.headers, await response.read())


async def test_new_caps_and_tiers_apply_to_the_next_request(here):
    assert (await here.post(CHAT, chat(max_tokens=9))).status == 200
    here.lanes = [{**TWO[0], "max_tokens": 8}, {"name": "night", "tiers": ["flex"]}]
    told = await ordered(here)
    assert (told.status, told.body) == (
        200,
        {"lanes": ["interactive", "night"], "keys": 0, "needs_restart": []},
    )
    assert (await here.post(CHAT, chat(max_tokens=9))).status == 400
    assert (await here.post(CHAT, chat(service_tier="flex"))).headers[LANE] == "night"
    assert (await here.post(CHAT, chat(), headers={LANE: "batch"})).status == 400


async def test_new_queue_bounds_apply_to_the_next_request_and_who_waits_goes_on_waiting(here):
    tasks = await occupied(here, queued=3)
    here.lanes = [{**TWO[0], "queue_places": 2}, TWO[1]]
    assert (await ordered(here)).status == 200
    refused = await here.post(CHAT, chat())
    assert (refused.status, refused.error["code"]) == (503, "server_is_overloaded")
    assert here.live == 4
    await let_end(here, tasks)


async def test_answers_of_a_lane_that_is_taken_away_are_served_by_the_lowest(here):
    tasks = await occupied(here, queued=2)
    here.lanes = [{"name": "other"}, {"name": "low", "tiers": ["flex"]}]
    assert (await ordered(here)).status == 200
    assert set((await here.get("/health/ready")).body["lanes"]) == {"other", "low"}
    assert (await here.get("/health/ready")).body["lanes"]["low"]["queued"] == 2
    _, *queued = await let_end(here, tasks)
    assert {answered.headers[LANE] for answered in queued} == {"low"}
    assert [submit.rank for submit in here.worker.submits] == [0, 1, 1]


async def test_who_waits_in_vain_in_a_lane_that_was_taken_away_is_refused_by_the_lowest(here):
    tasks = await occupied(here)
    here.proxy.dispatcher.admission.state.calibration.factor = 0.0  # it is promised a row at once
    late = here.asking(CHAT, chat(), headers={"x-slo-ttft-ms": "400"})
    await until(lambda: here.live == 2)
    here.lanes = [{"name": "low", "reserved_slots": 0}]
    assert (await ordered(here)).status == 200
    refused = await late
    assert (refused.status, refused.error["code"], refused.headers[LANE]) == (503, "queue_timeout", "low")
    told = (await here.get("/metrics")).raw.decode().splitlines()
    counted = [line for line in told if line.startswith("forebay_refused_total")]
    assert counted == ['forebay_refused_total{lane="low",key_class="",code="queue_timeout"} 1.0']
    await let_end(here, tasks)


async def test_the_gauges_of_a_lane_that_was_taken_away_are_gone(here):
    tasks = await occupied(here, queued=2)
    assert b'forebay_queued{lane="interactive",key_class=""} 2.0' in (await here.get("/metrics")).raw
    here.lanes = [{"name": "low", "reserved_slots": 0}]
    await ordered(here)
    told = (await here.get("/metrics")).raw
    assert b'forebay_queued{lane="low",key_class=""} 2.0' in told
    assert b'forebay_queued{lane="interactive"' not in told
    await let_end(here, tasks)


@STREAMED_OR_NOT
async def test_running_answers_go_on_over_a_reload_of_everything(here, stream):
    here.worker.pause_at = 5
    asked = here.asking(CHAT, chat(stream=stream))
    await until(lambda: here.paused_at(5))
    here.lanes = [{"name": "low", "reserved_slots": 0, "max_tokens": 1, "context_tokens": 16}]
    key = here.add_key("new")
    assert (await ordered(here)).body["keys"] == 1
    here.worker.pause_at = None
    answered = await asked
    assert (answered.streamed()[0] if stream else answered.text) == TEXT
    assert len(here.worker.submits) == 1
    assert (await here.post(COMPLETIONS, completion(), headers=key)).body["usage"]["completion_tokens"] == 1
    await here.idle()


async def test_keys_are_asked_for_after_the_first_one_and_refused_after_they_are_revoked(here):
    first, second = here.add_key("first", max_tokens=3), here.add_key("second")
    assert (await here.post(CHAT, chat())).status == 200
    await ordered(here)
    assert (await here.post(CHAT, chat())).status == 401
    assert (await here.post(CHAT, chat(max_tokens=4), headers=first)).status == 400
    KeyFile(here._folder / "keys.json").revoke("first")
    assert (await here.post(CHAT, chat(max_tokens=3), headers=first)).status == 200
    await ordered(here)
    assert (await here.post(CHAT, chat(max_tokens=3), headers=first)).status == 401
    assert (await here.post(CHAT, chat(), headers=second)).status == 200


async def test_a_quota_that_was_used_up_stays_so_over_a_reload(here):
    key = here.add_key("ci", requests_per_minute=1)
    await ordered(here)
    assert (await here.post(CHAT, chat(), headers=key)).status == 200
    await ordered(here)
    assert (await here.post(CHAT, chat(), headers=key)).status == 429


@pytest.mark.parametrize("lanes", [[], [{"name": "a"}, {"name": "a"}], [{"name": "a", "queue_places": 0}]])
async def test_bad_lanes_are_a_409_that_says_why_and_change_nothing(here, lanes):
    here.lanes = lanes
    key = here.add_key("new")
    told = await ordered(here)
    assert told.status == 409
    assert told.body["problem"].startswith("lanes") or "lane" in told.body["problem"]
    answered = await here.post(CHAT, chat(service_tier="flex"))
    assert (answered.status, answered.headers[LANE]) == (200, "batch")
    here.lanes = TWO
    await ordered(here)
    assert (await here.post(CHAT, chat())).status == 401
    assert (await here.post(CHAT, chat(), headers=key)).status == 200


async def test_a_bad_key_file_changes_nothing_not_even_good_lanes(here):
    here.add_key("new")
    (here._folder / "keys.json").write_text("{")
    here.lanes = [{"name": "other"}]
    told = await ordered(here)
    assert told.status == 409
    assert "keys.json" in told.body["problem"]
    answered = await here.post(CHAT, chat())
    assert (answered.status, answered.headers[LANE]) == (200, "interactive")


async def test_settings_that_wait_for_a_restart_are_named(here):
    here._proxy_settings["drain_s"] = 3
    assert (await ordered(here)).body["needs_restart"] == ["proxy"]


async def test_nobody_orders_a_reload_from_outside_without_an_admin_key_and_the_door_takes_only_orders(here):
    before = here.proxy.policy.now
    assert (await here.post("/admin/reload", {})).status == 403
    assert here.proxy.policy.now is before
    assert (await ordered(here, "/nosuch")).status == 404
    assert (await ordered(here, method="GET")).status == 405


async def test_two_reloads_at_once_are_done_one_after_the_other(here):
    here.lanes = [{"name": "other"}]
    first, second = await asyncio.gather(ordered(here), ordered(here))
    assert (first.status, first.body) == (second.status, second.body) == (200, first.body)


async def test_a_hangup_reloads_and_a_bad_one_changes_nothing(here):
    here.lanes = [{"name": "a"}, {"name": "a"}]
    before, read, reads = here.proxy.policy.now, here.read, []
    here.proxy.policy._load = lambda: (reads.append(1), read())[1]
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: reads and not here.proxy._reloads)
    assert here.proxy.policy.now is before
    here.lanes = [{"name": "other"}]
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: here.proxy.policy.now is not before)
    assert (await here.post(CHAT, chat())).headers[LANE] == "other"
