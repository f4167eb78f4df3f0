"""The wall clock jumps by an hour, forward and back: nothing expires, and epochs still grow."""

import asyncio
import time

import pytest

from tests.chaos.faults import Plan
from tests.chaos.house import House, until
from worker.epochs import look_back
from worker.journal import folder_of

pytestmark = pytest.mark.timeout(300)

HOUR_S = 3600.0


class WallClock:
    """The machine's, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        now, now_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: now() + self.ahead_s)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + int(1e9 * self.ahead_s))


def next_epoch(house: House) -> int:
    """Return what a supervisor that starts now begins with, by what the last one left behind."""
    now_ms = time.time_ns() // 1_000_000
    past = look_back(folder_of(house.home), port=house.port, now_ms=now_ms, boot="this boot")
    return past.first_epoch


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_an_hours_jump_of_the_wall_clock_harms_nobody(
    jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = WallClock(monkeypatch)
    async with House(Plan(step_ms=30.0), slots=2, proxy={"quarantine_s": HOUR_S}) as house:
        first_epoch = next_epoch(house)
        async with house.proxy() as proxy:
            async with house.supervisor(first_epoch):
                await until(lambda: house.is_ready)
                proxy.quarantine.add("f", cause="crash", detail="", key="", lane="batch", prompt_tokens=1)
                kept = await house.answered_once("key-1")
                heard = asyncio.Event()
                running = [asyncio.create_task(house.gets(each, 20, heard=heard)) for each in ("one", "two")]
                await heard.wait()
                waiting = asyncio.create_task(house.gets("three", 4))
                # On a busy machine a row may be free already.
                await until(lambda: proxy.dispatcher.admission.queued == 1 or waiting.done())
                clock.ahead_s = jump_s
                proxy.dispatcher.tick()
                await asyncio.gather(*running, waiting)
                assert await house.answered_once("key-1") == kept
                assert [entry.fingerprint for entry in proxy.quarantine.entries()] == ["f"]
                assert proxy.link.state.deaths == 0
            assert next_epoch(house) > first_epoch
            async with house.supervisor(next_epoch(house)):
                await until(lambda: house.is_ready)
                await house.gets("four", 4)
        assert [life.cause for life in house.lives()] == ["planned", "planned"]
