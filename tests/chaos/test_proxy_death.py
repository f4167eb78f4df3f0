"""The proxy itself is killed: its worker drops what nobody waits for, and the next proxy finds it loaded."""

import asyncio
import contextlib

import aiohttp

from tests.chaos.faults import Plan
from tests.chaos.house import House, until


async def ready_epoch(house: House) -> int:
    """Wait until the gateway is ready, and return its worker's epoch."""
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            status, health = await house.health()
            if status == 200:
                return health["worker"]["epoch"]
        await asyncio.sleep(0.02)


async def test_a_killed_proxys_orphans_are_cancelled_and_the_next_finds_the_model_loaded() -> None:
    async with House(Plan(step_ms=100.0)) as house, house.supervisor():
        first = await house.process_of_proxy()
        epoch = await ready_epoch(house)
        heard = asyncio.Event()
        asking = asyncio.create_task(house.ask("one", 50, heard=heard))
        await heard.wait()
        hellos = house.hellos(1)
        first.kill()
        await asyncio.to_thread(first.communicate)
        with contextlib.suppress(aiohttp.ClientError):
            assert not (await asking).whole
        await until(lambda: house.hellos(1) > hellos)
        ran = [name for name, _ in house.points(1)]
        alone = ran[len(ran) - ran[::-1].index("Hello to be sent") :]
        assert "launch" not in alone
        second = await house.process_of_proxy()
        try:
            assert await ready_epoch(house) == epoch
            assert len(house.pids()) == 1
            await house.gets("two", 4)
        finally:
            second.terminate()
            await asyncio.to_thread(second.communicate)
        assert second.returncode == 0
