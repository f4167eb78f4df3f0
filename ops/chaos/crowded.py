"""Somebody else takes all of the device's memory for a while, under streams: the `crowded` scenario.

What the worker allocates next fails for real: it dies of want of memory, and finds none when it comes back,
until the other one has gone. For devices whose memory is their own.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from rich.table import Table
from tokenizers import Tokenizer

from ops.chaos import checks, timeline, watch
from ops.chaos.client import Client
from ops.chaos.house import House
from ops.chaos.kills import some_time
from ops.chaos.said import mixed_asks
from ops.chaos.traffic import again_and_again, kept_up, undisturbed
from ops.load.arrivals import dice
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown
from ops.load.statistics import summary
from worker import memory

_TIMES: Final = 3
_STREAMS: Final = 8
_ASKS: Final = 16
_TOKENS: Final = (128, 384)
_TAKEN_S_MAX: Final = 60.0
_DEATH_S_MAX: Final = 30.0
_HELD_S: Final = 8.0  # after the death: the next life finds nothing either
_LOOK_S: Final = 0.05
_KIND: Final = "all memory taken"
_CAUSES: Final = (None, "memory", "planned")
_SETTINGS: Final = {"FOREBAY_PROXY__RESUMES_MAX": "8"}


def measure(plan: Plan) -> Figures:
    device = memory.device_report()
    if not device.is_gpu or device.shares_memory:
        return {"problems": [f"{device.name} has no memory of its own to be taken"], "began": False}
    with House(plan.folder.path, plan.scratch / "crowded", **_SETTINGS) as house:
        with plan.progress.phase("crowded: the gateway starts"):
            house.open()
        figures = run(_measure(plan, house))
    with plan.progress.phase("crowded: all of it ends"):
        figures["problems"] += [f"left behind: {line}" for line in house.left_behind()]
    return {**figures, "device": device.name}


async def _measure(plan: Plan, house: House) -> Figures:
    asks = mixed_asks(plan.seed, _ASKS, _TOKENS)
    numbers = dice(plan.seed, "crowded")
    struck: list[_Taken] = []
    problems: list[str] = []
    async with Client(house.port, plan.folder.name, label="crowded") as client:
        with plan.progress.phase("crowded: the same answers, undisturbed", told=client.told):
            expected = await undisturbed(client, asks)

        def told() -> str:
            return f"{len(struck)} times; {len(house.lives()) - 1} deaths; {client.told()}"

        async with watch.liveness(client) as statuses:
            with plan.progress.phase("crowded: memory is taken under load", told=told):
                async with kept_up(client, again_and_again(asks, numbers), _STREAMS):
                    for _ in range(plan.repeats or _TIMES):
                        await some_time(client, numbers)
                        struck.append(await _crowd(house, client))
                        if await watch.ready_again(client, None) is None:
                            problems.append("no worker became ready again")
                            break
            problems += await watch.end_problems(client)
        _, ready = await client.get("/health/ready")
        said = client.said
    lives = house.lives()
    faults = [each.fault for each in struck]
    found = timeline.account(faults, lives, said, expected)
    tokenizer = Tokenizer.from_file(str(plan.folder.path / "tokenizer.json"))
    apart = checks.differences(said, expected, lambda text: tokenizer.encode(text).ids)
    problems += [
        *watch.live_problems(statuses),
        *checks.answer_problems(said, expected),
        *checks.refusal_problems(said),
        *(
            f"epoch {life.epoch} ended by {life.cause}: {life.detail}"
            for life in lives
            if life.cause not in _CAUSES
        ),
    ]
    if not any(life.cause == "memory" for life in lives):
        problems.append("the worker never died: nothing was tried")
    return {
        "problems": problems,
        "died_s": summary([each.died_s for each in struck if each.fault.kills]),
        "kinds": timeline.by_kind(found.effects),
        **checks.counted(said, apart),
        "quarantined": ready.get("quarantined"),
        "rung": ready.get("worker", {}).get("rung"),
        "lives": timeline.told(lives),
    }


@dataclass(frozen=True, slots=True)
class _Taken:
    """Once that memory was taken: the worker died of it after `died_s`, which is when the fault struck."""

    fault: timeline.Fault
    died_s: float


async def _crowd(house: House, client: Client) -> _Taken:
    """Take everything, wait for the worker's death, hold on for a while, and let go."""
    epoch = await watch.epoch_of(client)
    began_at = time.time()
    async with _hog():
        deadline = time.monotonic() + _DEATH_S_MAX
        while (died_at := _died_at(house, epoch)) is None and time.monotonic() < deadline:  # noqa: ASYNC110 (bounded, and rare)
            await asyncio.sleep(_LOOK_S)
        if died_at is not None:
            await asyncio.sleep(_HELD_S)
    await watch.ready_again(client, None if died_at is None else epoch)
    at = began_at if died_at is None else died_at
    return _Taken(timeline.Fault(_KIND, at, time.time(), kills=died_at is not None), at - began_at)


def _died_at(house: House, epoch: int | None) -> float | None:
    """Return when the life of this epoch ended, in seconds of the wall clock."""
    ends = (life.ended_at for life in house.lives() if life.epoch == epoch)
    return next((ended_at.timestamp() for ended_at in ends if ended_at is not None), None)


@contextlib.asynccontextmanager
async def _hog() -> AsyncIterator[None]:
    """Have all memory taken while the block runs."""
    hog = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "ops.chaos.hog"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert hog.stdout is not None
    try:
        async with asyncio.timeout(_TAKEN_S_MAX):
            await hog.stdout.readline()
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            hog.kill()
        await hog.wait()


def table(figures: Figures) -> Table:
    headings = (
        "",
        "times",
        "deaths",
        "died p50",
        "ready p50",
        "max",
        "token p50",
        "max",
        "streams",
        "resumed",
    )
    each = figures["kinds"]["all"]
    share = each["resumed_share"]
    deaths = [life for life in figures["lives"] if life["cause"] == "memory"]
    row = (
        f"{figures['device']}: {_KIND}",
        str(each["faults"]),
        str(len(deaths)),
        shown(figures["died_s"].get("p50"), 1, " s"),
        *(shown(each["ready_s"].get(part), 1, " s") for part in ("p50", "max")),
        *(shown(each["next_token_s"].get(part), 1, " s") for part in ("p50", "max")),
        str(each["streams"]),
        shown(None if share is None else 100 * share, 1, " %"),
    )
    result = rows_table(f"crowded: {_STREAMS} streams, and somebody else takes all memory", headings, [row])
    result.caption = (
        f"{figures['requests']} requests: "
        + ", ".join(f"{count} x {ending}" for ending, count in figures["endings"].items())
        + f"; tokens lost {figures['tokens_lost']}, added {figures['tokens_added']}; rung {figures['rung']}; "
        f"died: from when it begins to take; ready and token: from the death; it lets go {_HELD_S:.0f} s "
        f"after that; refusals: "
        + (", ".join(f"{count} x {refusal}" for refusal, count in figures["refusals"].items()) or "none")
    )
    return result


SCENARIO: Final = Scenario("crowded", measure, table)
