"""One small script of requests that passes every point of the protocol, and runs of it with deaths."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tests.chaos.faults import Plan, Point
from tests.chaos.house import PATIENCE_S, House, expected, until
from worker.journal import Life

# Houses that are open side by side: they wait more than they compute.
_TOGETHER = 3


@dataclass
class Case:
    """What came of a run with a deed at one point of the first life."""

    point: Point
    lives: list[Life] = field(default_factory=list)
    problem: str = ""

    @property
    def cause(self) -> str:
        """How the first life ended."""
        return self.lives[0].cause or "unknown"


async def play(house: House) -> None:
    """Two streams of the lower lane, one that takes the row of one of them, and one whose client leaves.

    All must be answered, whatever happens meanwhile, and one more after them; then nothing may be held.
    """
    first, parked = asyncio.Event(), asyncio.Event()
    one = asyncio.create_task(house.gets("one", 5, lane="batch", heard=first))
    two = asyncio.create_task(house.gets("two", 4, lane="batch", heard=first))
    await _either(first, one, two)
    three = asyncio.create_task(house.gets("three", 3, heard=parked))
    await _either(parked, three)
    said = await house.ask("four", 20, leaves=True)
    assert said.text, said
    assert expected("four", 20).startswith(said.text)
    await asyncio.gather(one, two, three)
    await house.empty()
    await house.gets("five", 2)
    await house.empty()


async def _either(heard: asyncio.Event, *tasks: asyncio.Task[None]) -> None:
    """Wait for an event, or for one of the tasks to fail before."""
    waiting = asyncio.create_task(heard.wait())
    await asyncio.wait((waiting, *tasks), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def run_with(deed: str, point: Point, **worker: float) -> Case:
    """Play until a deed is done at one point of the first life, and check all that holds whatever it is."""
    case = Case(point)
    async with House(Plan(deeds={1: (point, deed)}), worker=worker) as house:
        async with house.proxy() as proxy, house.supervisor():
            await until(lambda: house.has_been_ready)
            async with asyncio.timeout(PATIENCE_S):
                await play(house)
                while point not in house.points(1):
                    await play(house)
            if deed != "pause":
                await until(lambda: len(house.pids()) == 2 and house.is_ready)
            await house.gets("six", 1)
            assert proxy.quarantine.entries() == []
            assert house.is_ready
        case.lives = house.lives()
    return case


async def run_all(deed: str, points: Sequence[Point], **worker: float) -> list[Case]:
    """Play once for each point, some side by side. A run that fails says so in its case's `problem`."""
    free = asyncio.Semaphore(_TOGETHER)

    async def run(point: Point) -> Case:
        async with free:
            try:
                return await run_with(deed, point, **worker)
            except (AssertionError, TimeoutError, OSError) as problem:
                return Case(point, problem=repr(problem))

    return await asyncio.gather(*map(run, points))


async def run_chain(deed: str, points: Sequence[Point]) -> list[Life]:
    """Play again and again while each life, one after the other, does a deed at its own point.

    What a life has interrupted the next one resumes, and so on till all have died. Return the lives. There is
    no back-off: the test has taken it away.
    """
    plan = Plan(deeds={life: (point, deed) for life, point in enumerate(points, 1)})
    async with House(plan, worker={"restarts_window_s": 1.0}) as house:
        async with house.proxy() as proxy, house.supervisor():
            await until(lambda: house.has_been_ready)
            while len(house.pids()) <= len(points):
                await play(house)
            await play(house)
            assert proxy.quarantine.entries() == []
            assert proxy.link.state.deaths == len(points)
        assert [house.points(life)[-1] for life in range(1, len(points) + 1)] == [*points]
        return house.lives()


async def all_points_of_a_life(names: Collection[str]) -> list[Point]:
    """Return the points that the script passes if nothing happens, played until it passes all those names.

    On a busy machine an answer may be over before somebody can take its row, or leave it.
    How often a Hello is tried until the socket is connected is chance, so only the first try counts.
    """
    async with House() as house:
        async with house.proxy(), house.supervisor():
            await until(lambda: house.has_been_ready)
            async with asyncio.timeout(PATIENCE_S):
                await play(house)
                while not {name for name, _ in house.points(1)} >= set(names):
                    await play(house)
        return [point for point in house.points(1) if not point[0].startswith("Hello") or point[1] == 1]
