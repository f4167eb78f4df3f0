"""The wire between the real proxy and a worker misbehaves: nothing is lost silently, and nothing hangs."""

import asyncio
import os
import signal

import pytest

from shared.messages import Ping
from tests.chaos.faults import Plan
from tests.chaos.faulty_channel import KINDS, FaultyRouter
from tests.chaos.house import House, expected, open_house, until

pytestmark = [pytest.mark.usefixtures("early_parks"), pytest.mark.timeout(900)]

PROMPTS = {"one": "batch", "two": "batch", "three": "interactive", "four": "interactive", "five": "batch"}


async def ends(house: House, prompt: str, lane: str) -> None:
    """Ask, and check that the answer is whole and right, or says that it isn't whole."""
    said = await house.ask(prompt, 12, lane=lane)
    if said.whole:
        assert said.text == expected(prompt, 12)
    else:
        assert said.error is not None, said
        assert expected(prompt, 12).startswith(said.text)


async def faulty_run(seed: int) -> None:
    """Play on a wire with faults, and a death in the middle, until each kind of fault was met."""
    wires: list[FaultyRouter] = []

    def wire(endpoint: str) -> FaultyRouter:
        wires.append(FaultyRouter(endpoint, seed, share=0.12))
        return wires[0]

    plan = Plan(deeds={1: (("Step left", 9), "kill")})
    async with House(plan) as house, house.proxy(wire), house.supervisor():
        await until(lambda: house.has_been_ready)
        await asyncio.gather(*(ends(house, prompt, lane) for prompt, lane in PROMPTS.items()))
        while not wires[0].has_met_all:
            await ends(house, "more", "batch")
        await house.empty()
        wires[0].heal()
        await until(lambda: house.is_ready)
        await house.gets("six", 5)
        await house.empty()
    assert set(wires[0].faults) == set(KINDS)


async def test_whatever_the_wire_does_each_answer_is_right_or_ends_with_an_error(all_points: bool) -> None:
    seeds = range(40 if all_points else 3)
    for together in range(0, len(seeds), 3):
        await asyncio.gather(*(faulty_run(seed) for seed in seeds[together : together + 3]))


async def test_a_worker_finds_the_proxy_again_whose_socket_file_was_removed() -> None:
    """What is connected stays so; the next worker needs the file, and it must be there again by then."""
    async with open_house(Plan(step_ms=30.0)) as house:
        await until(lambda: house.is_ready)
        heard = asyncio.Event()
        asking = asyncio.create_task(house.gets("one", 20, heard=heard))
        await heard.wait()
        house.run_folder.socket.unlink()
        await asking
        await house.gets("two", 4)
        os.kill(house.pids()[0], signal.SIGKILL)
        await house.gets("three", 4)
        await house.empty()


async def test_a_worker_that_reads_nothing_loses_nothing() -> None:
    """It is stopped until its queue is full, and goes on: what was sent meanwhile is sent again."""
    async with open_house(Plan(step_ms=30.0), worker={"hang_floor_s": 60.0}) as house:
        await until(lambda: house.is_ready)
        heard = asyncio.Event()
        asking = asyncio.create_task(house.gets("one", 20, heard=heard))
        await heard.wait()
        os.kill(house.pids()[0], signal.SIGSTOP)
        link = house.served.link
        epoch = link.epoch
        while link.epoch is not None:
            for _ in range(1000):
                link.send(Ping(epoch, link.ping))
            await asyncio.sleep(0)
        assert link.state.last_cause == "unreachable"
        later = asyncio.create_task(house.gets("two", 4))
        os.kill(house.pids()[0], signal.SIGCONT)
        await asyncio.gather(asking, later)
        await house.empty()
        assert len(house.pids()) == 1
