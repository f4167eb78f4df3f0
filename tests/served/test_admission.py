"""Lanes, bounds, keys and parking with the real processes, and a small model."""

import asyncio
import functools
import json
import subprocess
import sys

import aiohttp
import pytest

from proxy.keys import KEY_FILE_NAME, KeyFile
from tests.served import client, small_model
from tests.served.client import stream
from tests.served.gateway import running

pytestmark = [pytest.mark.served, pytest.mark.timeout(300)]

chat = functools.partial(client.chat, model=small_model.NAME)
SLOTS, PLACES = 2, 3
# Many times as long as a row must have run before it may be parked.
LONG_TOKENS = 500
# However slow the machine is, nothing is refused for the time it would wait.
PATIENT = {"deadline_s": 600, "target_wait_s": None}
LANES = [
    {"name": "interactive", "queue_places": PLACES, "reserved_slots": 0, **PATIENT},
    {"name": "batch", **PATIENT},
]
# So long that none ends while a test looks at what waits behind it; those who asked leave.
ENDLESS = chat(
    "Tell me a long story about a lighthouse.",
    max_tokens=small_model.CONTEXT_TOKENS // 2,
    ignore_eos=True,
)
SHORT = chat("Tell me a story.", max_tokens=6, temperature=0)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory, small_folder):
    """A gateway of two rows and three places."""
    settings = {"FOREBAY_WORKER__SLOTS": str(SLOTS), "FOREBAY_LANES": json.dumps(LANES)}
    with running(tmp_path_factory.mktemp("narrow"), small_folder, **settings) as gateway:
        yield gateway


def session():
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=180), connector=aiohttp.TCPConnector(limit=0)
    )


async def until(holds):
    for _ in range(1200):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("waited in vain")


def flex(place):
    return {
        **chat(f"Story {place}, please.", max_tokens=LONG_TOKENS, temperature=0, ignore_eos=True),
        "service_tier": "flex",
    }


def running_rows(gateway, lane):
    return gateway.ready_body()["lanes"][lane]["running"]


def parks(gateway):
    return sum(gateway.metric("forebay_parks_total").values())


async def test_batch_rows_make_way_for_chats_and_lose_nothing(narrow):
    """Each text is what it is when it runs alone, however often its row was taken."""
    chats = [chat(f"Name {number} birds.", max_tokens=6, temperature=0) for number in range(2, 5)]
    async with session() as http:
        alone = [(await stream(http, narrow.url, body)).text for body in [flex(0), flex(1), *chats]]
        before = parks(narrow)
        batch = [asyncio.create_task(stream(http, narrow.url, flex(place))) for place in range(2)]
        said = []
        for body in chats:
            # On a fast machine the last one comes when a batch row is over already.
            await until(lambda: running_rows(narrow, "batch") == SLOTS or any(task.done() for task in batch))
            said.append(await stream(http, narrow.url, body))
        whole = [await task for task in batch] + said
    assert [each.text for each in whole] == alone
    assert all(each.done for each in whole)
    assert [each.headers["x-forebay-lane"] for each in whole] == ["batch"] * 2 + ["interactive"] * 3
    assert parks(narrow) > before


async def test_rows_and_places_are_filled_to_the_last_and_the_next_is_refused(narrow):
    """No row is free before all have asked."""
    async with session() as http:
        refusals = []

        async def ask(number):
            body = chat(f"Count to {number}.", max_tokens=6, temperature=0)
            async with http.post(f"{narrow.url}/v1/chat/completions", json=body) as response:
                await response.read()
                if response.status != 200:
                    refusals.append((response.status, response.headers.get("Retry-After")))
                return response.status

        rows = [asyncio.create_task(stream(http, narrow.url, ENDLESS)) for _ in range(SLOTS)]
        await until(lambda: running_rows(narrow, "interactive") == SLOTS)
        asking = [asyncio.create_task(ask(number)) for number in range(PLACES + 4)]
        await until(lambda: len(refusals) == 4)
        assert narrow.ready_body()["queued"] == PLACES
        for task in rows:
            task.cancel()
        statuses = await asyncio.gather(*asking)
    refused = [retry_after for status, retry_after in refusals if status == 503]
    assert statuses.count(200) == PLACES
    assert len(refused) == 4
    assert all(1 <= int(retry_after) <= 60 for retry_after in refused)


async def test_clients_that_leave_the_queue_free_their_places(narrow):
    async with session() as http:
        rows = [asyncio.create_task(stream(http, narrow.url, ENDLESS)) for _ in range(SLOTS)]
        await until(lambda: running_rows(narrow, "interactive") == SLOTS)
        queued = [asyncio.create_task(stream(http, narrow.url, SHORT)) for _ in range(PLACES)]
        await until(lambda: narrow.ready_body()["queued"] == PLACES)
        for task in queued:
            task.cancel()
        await until(lambda: narrow.ready_body()["queued"] == 0)
        again = [asyncio.create_task(stream(http, narrow.url, SHORT)) for _ in range(PLACES)]
        await until(lambda: narrow.ready_body()["queued"] == PLACES)
        for task in rows:
            task.cancel()
        said = await asyncio.gather(*again)
    assert [each.reason for each in said] == ["length"] * PLACES
    await until(lambda: narrow.ready_body()["live"] == 0)
    assert narrow.ready_body()["reserved_bytes"] == 0


def reload(gateway):
    command = [sys.executable, "-m", "ops.cli", "reload", "--port", str(gateway.port)]
    return subprocess.run(
        command, env=gateway.environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_reload_that_can_not_be_done_says_why_and_changes_nothing(narrow):
    keys = narrow.home / KEY_FILE_NAME
    keys.write_text("{")
    told = reload(narrow)
    keys.unlink()
    assert told.returncode == 2
    assert KEY_FILE_NAME in told.stderr
    assert narrow.status("/v1/models") == 200


async def test_keys_come_into_force_by_a_reload_and_a_heavy_one_leaves_room_for_a_light_one(narrow):
    """The last of all: from the first key on, every request needs one.

    One key holds both rows and waits twice; then another one comes, and one row gets free for all three.
    """
    file = KeyFile(narrow.home / KEY_FILE_NAME)
    heavy, light = (file.add(name).text for name in ("heavy", "light"))
    ended = []
    async with session() as http:

        async def ask(key, name, body=SHORT):
            headers = {"Authorization": f"Bearer {key}"}
            async with http.post(f"{narrow.url}/v1/chat/completions", json=body, headers=headers) as response:
                await response.read()
                ended.append(name)
                return response.status

        assert await ask("none", "anyone") == 200
        told = await asyncio.to_thread(reload, narrow)
        assert (told.returncode, "2 keys" in told.stdout) == (0, True), told
        assert await ask("none", "anyone") == 401
        ended.clear()
        rows = [asyncio.create_task(ask(heavy, "endless", ENDLESS)) for _ in range(SLOTS)]
        await until(lambda: running_rows(narrow, "interactive") == SLOTS)
        waiting = [asyncio.create_task(ask(heavy, "heavy")) for _ in range(2)]
        await until(lambda: narrow.ready_body()["queued"] == 2)
        waiting.append(asyncio.create_task(ask(light, "light")))
        await until(lambda: narrow.ready_body()["queued"] == 3)
        rows[0].cancel()
        assert await asyncio.gather(*waiting) == [200, 200, 200]
        assert ended.index("light") < 2, "it was behind all of the other one's"
        rows[1].cancel()
