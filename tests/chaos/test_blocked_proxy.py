"""The proxy's event loop stands still for seconds: that is nobody's death."""

import asyncio
import time
from typing import Final

import pytest

from tests.chaos.faults import Plan
from tests.chaos.house import House, until

pytestmark = pytest.mark.timeout(300)

STEP_MS = 150.0


# How long it stands still, and how many tokens are asked for, so that some are left after that.
_BLOCKS: Final = ((1.0, 12), (4.5, 30))


async def test_a_blocked_proxy_costs_its_worker_nothing() -> None:
    """After three seconds its worker takes it for dead, drops what runs, and resumes it when it is back."""
    house = House(Plan(step_ms=STEP_MS))
    async with house, house.proxy() as proxy, house.process_of_supervisor():
        await until(lambda: house.is_ready)
        epoch = proxy.link.epoch
        for blocked_s, tokens in _BLOCKS:
            heard = asyncio.Event()
            asking = [
                asyncio.create_task(house.gets(prompt, tokens, heard=heard)) for prompt in ("one", "two")
            ]
            await heard.wait()
            hellos = house.hellos(1)
            time.sleep(blocked_s)  # noqa: ASYNC251 (that is the fault)
            taken_for_dead = house.hellos(1) > hellos
            assert taken_for_dead == (blocked_s > 3)
            await asyncio.gather(*asking)
            assert (proxy.link.epoch, proxy.link.state.deaths, len(house.pids())) == (epoch, 0, 1)
            assert (proxy.dispatcher.resumed > 0) == taken_for_dead
            await house.empty()
        await house.gets("three", 2)
