"""Mixed traffic for long, with a death a minute half of the time: what grows, and what it costs: `soak`."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import psutil
from rich.table import Table

from ops.chaos import checks, faults, timeline, watch
from ops.chaos.client import Client
from ops.chaos.house import House, Role
from ops.chaos.kills import SETTINGS
from ops.chaos.said import Said, mixed_asks
from ops.chaos.slope import slope, thinned
from ops.chaos.traffic import again_and_again, kept_up, undisturbed
from ops.load.arrivals import dice
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown
from ops.load.statistics import median, ratio
from shared.limits import MIB

_SECONDS: Final = 1200.0
_BLOCKS_MAX: Final = 10
_BETWEEN_DEATHS_S: Final = 60.0
_FIRST_DEATH_S: Final = (5.0, 20.0)
_STREAMS: Final = 8
_ASKS: Final = 24
_TOKENS: Final = (8, 48)
_WARM_SHARE: Final = 0.2
_SAMPLE_S: Final = 1.0
_POINTS: Final = 40
_HOUR_S: Final = 3600.0
_KINDS: Final = ("SIGKILL", "SIGABRT", "SIGSEGV")
_ROLES: Final[tuple[Role, ...]] = ("proxy", "worker")
_NAMES: Final = {"proxy": "proxy", "worker": "supervisor"}


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the run, in seconds from its begin; `deaths` are when the worker is killed in it."""

    begin: float
    end: float
    deaths: tuple[float, ...]


def blocks(seconds: float, numbers: random.Random) -> list[Block]:
    """Return equal blocks, without deaths and with: one way round and the other, so that drift cancels."""
    count = max(2, min(_BLOCKS_MAX, 2 * int(seconds / (2 * _BETWEEN_DEATHS_S))))
    length = seconds / count
    result = []
    for number in range(count):
        begin, deaths = number * length, tuple[float, ...]()
        if number % 4 in (1, 2):
            first = begin + numbers.uniform(*_FIRST_DEATH_S)
            deaths = tuple(first + _BETWEEN_DEATHS_S * each for each in range(max(1, round(length / 60))))
        result.append(Block(begin, begin + length, tuple(each for each in deaths if each < begin + length)))
    return result


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process held at one moment."""

    at: float
    resident_bytes: int
    descriptors: int
    threads: int


@dataclass(slots=True)
class _Seen:
    """All that was seen from outside."""

    began: float
    expected: dict[int, str]
    samples: dict[Role, list[Sample]] = field(default_factory=lambda: {role: [] for role in _ROLES})
    struck: list[timeline.Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)


def measure(plan: Plan) -> Figures:
    with House(plan.folder.path, plan.scratch / "soak", **SETTINGS) as house:
        with plan.progress.phase("soak: the gateway starts"):
            house.open()
        figures = run(_measure(plan, house))
    with plan.progress.phase("soak: all of it ends"):
        figures["problems"] += [f"left behind: {line}" for line in house.left_behind()]
    return figures


async def _measure(plan: Plan, house: House) -> Figures:
    asks = mixed_asks(plan.seed, _ASKS, _TOKENS)
    seconds = plan.seconds or _SECONDS
    timetable = blocks(seconds, dice(plan.seed, "soak deaths"))
    async with Client(house.port, plan.folder.name, label="soak") as client:
        with plan.progress.phase("soak: the same answers, undisturbed", told=client.told):
            seen = _Seen(time.time(), await undisturbed(client, asks))
        draw = again_and_again(asks, dice(plan.seed, "soak"))

        def told() -> str:
            return f"{len(seen.struck)} deaths, {client.told()}"

        async with watch.liveness(client) as statuses, _sampled(house, seen):
            with plan.progress.phase(
                "soak: traffic, and a death a minute in every other block", seconds, told
            ):
                async with kept_up(client, draw, _STREAMS):
                    seen.began = time.time()
                    await _follow(house, client, timetable, seen)
            seen.problems += await watch.end_problems(client)
        seen.said = client.said
    seen.problems += watch.live_problems(statuses)
    return _figures(house, timetable, seen)


async def _follow(house: House, client: Client, timetable: list[Block], seen: _Seen) -> None:
    """Kill the worker when the timetable says so, and stay until its end."""
    moments = [moment for block in timetable for moment in block.deaths]
    for number, moment in enumerate(moments):
        await asyncio.sleep(max(0.0, seen.began + moment - time.time()))
        try:
            seen.struck.append(await faults.strike(house, client, _KINDS[number % len(_KINDS)]))
        except faults.NotBack as problem:
            seen.problems.append(str(problem))
            return
    await asyncio.sleep(max(0.0, seen.began + timetable[-1].end - time.time()))


@contextlib.asynccontextmanager
async def _sampled(house: House, seen: _Seen) -> AsyncIterator[None]:
    """Look at proxy and supervisor each second while the block runs."""

    async def sample() -> None:
        while True:
            for role in _ROLES:
                seen.samples[role].append(sample_of(house.process(role)))
            await asyncio.sleep(_SAMPLE_S)

    sampling = asyncio.create_task(sample())
    try:
        yield
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)


def sample_of(process: psutil.Process) -> Sample:
    with process.oneshot():
        return Sample(time.time(), process.memory_info().rss, process.num_fds(), process.num_threads())


def _figures(house: House, timetable: list[Block], seen: _Seen) -> Figures:
    lives = house.lives()
    found = timeline.account(seen.struck, lives, seen.said, seen.expected)
    paces: dict[bool, list[float]] = {False: [], True: []}
    for block in timetable:
        begin, end = seen.began + block.begin, seen.began + block.end
        paces[bool(block.deaths)].append(goodput(seen.said, begin, end))
    false_kills = [f"the life of epoch {epoch} ended, and nobody had killed it" for epoch in found.uncaused]
    return {
        "problems": [
            *seen.problems,
            *checks.answer_problems(seen.said, seen.expected),
            *checks.refusal_problems(seen.said),
            *faults.cause_problems(found.effects),
            *false_kills,
        ],
        "seconds": timetable[-1].end,
        "processes": {_NAMES[role]: growth(samples) for role, samples in seen.samples.items()},
        "deaths": timeline.by_kind(found.effects)["all"],
        "false_kills": len(false_kills),
        "goodput_with": paces[True],
        "goodput_without": paces[False],
        "goodput_ratio": ratio(median(paces[True]), median(paces[False])),
        "requests": len(seen.said),
        "endings": dict(Counter(" ".join(one.endings[-1:]) for one in seen.said)),
        "lives": timeline.told(lives),
    }


def goodput(said: list[Said], begin: float, end: float) -> float:
    """Return the tokens a second, in [begin, end), of answers that came to their end.

    An answer's tokens are spread evenly over its pieces of text.
    """
    tokens = sum(
        (one.tokens or 0) * sum(begin <= moment < end for moment in one.piece_times) / len(one.piece_times)
        for one in said
        if one.completed and one.piece_times
    )
    return tokens / (end - begin)


def growth(samples: list[Sample]) -> dict[str, Any]:
    """Return how memory grew after a warm-up, in MiB an hour, and what stood open at both ends."""
    warm = samples[int(_WARM_SHARE * len(samples)) :]
    points = thinned([(each.at - samples[0].at, each.resident_bytes / MIB) for each in warm], _POINTS)
    fitted = slope([at for at, _ in points], [value for _, value in points])
    ends = {"begin": warm[0], "end": samples[-1]} if warm else {}
    return {
        "mib_per_hour": None if fitted is None else fitted.per_s * _HOUR_S,
        "mib_per_hour_error": None if fitted is None else fitted.error_per_s * _HOUR_S,
        "resident_mib": {name: each.resident_bytes / MIB for name, each in ends.items()},
        "descriptors": {name: each.descriptors for name, each in ends.items()},
        "threads": {name: each.threads for name, each in ends.items()},
    }


def table(figures: Figures) -> Table:
    headings = ("process", "MiB/h", "±", "resident", "at the end", "files", "at the end", "threads", "end")
    rows = [_row(name, each) for name, each in figures["processes"].items()]
    result = rows_table(f"soak: {figures['seconds']:.0f} s of mixed traffic", headings, rows)
    deaths = figures["deaths"]
    result.caption = (
        f"{deaths['faults']} deaths, {figures['false_kills']} that nobody caused; goodput with a death a "
        f"minute over that without: {shown(figures['goodput_ratio'], 2)} "
        f"({', '.join(f'{each:.1f}' for each in figures['goodput_with'])} and "
        f"{', '.join(f'{each:.1f}' for each in figures['goodput_without'])} tokens/s); "
        f"{figures['requests']} requests: "
        + ", ".join(f"{count} x {ending}" for ending, count in figures["endings"].items())
    )
    return result


def _row(name: str, each: dict[str, Any]) -> tuple[str, ...]:
    return (
        name,
        shown(each["mib_per_hour"], 1),
        shown(each["mib_per_hour_error"], 1),
        *(shown(each["resident_mib"].get(end), 1) for end in ("begin", "end")),
        *(shown(each["descriptors"].get(end)) for end in ("begin", "end")),
        *(shown(each["threads"].get(end)) for end in ("begin", "end")),
    )


SCENARIO: Final = Scenario("soak", measure, table)
