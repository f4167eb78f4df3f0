"""The proxy is killed under load, and a new one finds the model loaded: the `proxy` scenario."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from rich.table import Table

from ops.chaos import timeline, watch
from ops.chaos.client import Client
from ops.chaos.house import House
from ops.chaos.said import Ask, Said, mixed_asks
from ops.chaos.traffic import undisturbed
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown
from ops.load.processes import cpu_s
from ops.load.statistics import summary

_REPEATS: Final = 3
_STREAMS: Final = 8
_TOKENS: Final = (8, 16)
_LONG_TOKENS: Final = 1000
_BEGIN_S_MAX: Final = 60.0
_LATER_S: Final = 5.0
_IDLE_S: Final = 1.0
_IDLE_SHARE: Final = 0.25  # of a core
_ARMS: Final = {"at once": 0.0, "later": _LATER_S}
_READY_EVENT: Final = "worker ready"


@dataclass(frozen=True, slots=True)
class Death:
    """One death of the proxy; seconds. `orphans_s` is known where a new proxy was there to be told.

    A worker cancels what it runs in the moment in which it says Hello to anybody.
    """

    orphans_s: float | None
    ready_s: float
    same_epoch: bool
    still_busy: bool
    broken: int


def measure(plan: Plan) -> Figures:
    with House(plan.folder.path, plan.scratch / "proxy") as house:
        with plan.progress.phase("proxy: the gateway starts"):
            house.open()
        figures = run(_measure(plan, house))
    with plan.progress.phase("proxy: all of it ends"):
        figures["problems"] += [f"left behind: {line}" for line in house.left_behind()]
    return figures


async def _measure(plan: Plan, house: House) -> Figures:
    asks = mixed_asks(plan.seed, _STREAMS, _TOKENS)
    problems: list[str] = []
    deaths: dict[str, list[Death]] = {name: [] for name in _ARMS}
    async with Client(house.port, plan.folder.name, label="short") as client:
        with plan.progress.phase("proxy: short answers, undisturbed", told=client.told):
            expected = await undisturbed(client, asks)
        for number in range(1, (plan.repeats or _REPEATS) + 1):
            for arm, after_s in _ARMS.items():
                with plan.progress.phase(f"proxy {number}: killed under load, the next one {arm}"):
                    try:
                        deaths[arm].append(await _death(plan, house, client, after_s))
                    except NoNewProxy as problem:
                        problems.append(str(problem))
                        break
                    problems += await watch.end_problems(client)
                    after = await undisturbed(client, asks)
                if after != expected:
                    problems.append("the same requests have other answers after that")
    everything = [death for arm in deaths.values() for death in arm]
    lives = house.lives()
    problems += [f"epoch {life.epoch} ended by {life.cause}" for life in lives if life.ended_at]
    return {
        "problems": [*problems, *death_problems(everything)],
        "arms": {
            name: {
                "deaths": [asdict(death) for death in each],
                "orphans_s": summary([death.orphans_s for death in each if death.orphans_s is not None]),
                "ready_s": summary([death.ready_s for death in each]),
            }
            for name, each in deaths.items()
        },
        "lives": timeline.told(lives),
    }


class NoNewProxy(Exception):
    """The proxy that was started in the dead one's place never became ready."""


async def _death(plan: Plan, house: House, client: Client, after_s: float) -> Death:
    """Kill the proxy under streams that would run on for long, and start the next one `after_s` later."""
    async with _streaming(plan, house) as streams:
        epoch, known = await watch.epoch_of(client), len(house.log_events("proxy"))
        killed_at = time.time()
        house.kill("proxy")
        still_busy = await _is_busy_later(house, after_s)
        started_at = time.time()
        house.start("proxy")
        ready = await watch.until(client, lambda status, _: status == 200)
        if ready is None:
            raise NoNewProxy("the next proxy never became ready")
        ready_at = time.time()
        said = await asyncio.gather(*streams)
    heard_at = _logged_at(house.log_events("proxy")[known:])
    return Death(
        orphans_s=None if after_s or heard_at is None else heard_at - killed_at,
        ready_s=ready_at - started_at,
        same_epoch=ready["worker"]["epoch"] == epoch,
        still_busy=still_busy,
        broken=sum(one.endings[-1].startswith("broken") for one in said),
    )


@contextlib.asynccontextmanager
async def _streaming(plan: Plan, house: House) -> AsyncIterator[list[asyncio.Task[Said]]]:
    """Begin streams, and enter the block once all of them speak."""
    async with Client(house.port, plan.folder.name, label="long", attempts_max=1) as client:
        tasks = [
            asyncio.create_task(client.ask(Ask(-1 - number, f"Count to {number + 1000}.", _LONG_TOKENS)))
            for number in range(_STREAMS)
        ]
        deadline = time.monotonic() + _BEGIN_S_MAX
        while client.speaking < _STREAMS and time.monotonic() < deadline:  # noqa: ASYNC110 (bounded, and rare)
            await asyncio.sleep(0.05)
        try:
            yield tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _is_busy_later(house: House, after_s: float) -> bool:
    """Wait so long; say whether the worker still computes in the last second of it."""
    if not after_s:
        return False
    worker = house.worker()
    if worker is None:
        return False
    await asyncio.sleep(after_s - _IDLE_S)
    before_s = cpu_s(worker)
    await asyncio.sleep(_IDLE_S)
    return cpu_s(worker) - before_s > _IDLE_SHARE * _IDLE_S


def _logged_at(events: list[dict[str, Any]]) -> float | None:
    moments = [event["timestamp"] for event in events if event["event"] == _READY_EVENT]
    return datetime.fromisoformat(moments[0]).timestamp() if moments else None


def death_problems(deaths: list[Death]) -> list[str]:
    """Say what was wrong with any of them."""
    problems = []
    for number, death in enumerate(deaths, 1):
        if not death.same_epoch:
            problems.append(f"death {number}: the model was loaded again")
        if death.still_busy:
            problems.append(f"death {number}: the worker still ran its orphans after {_LATER_S:.0f} s")
        if death.broken != _STREAMS:
            problems.append(f"death {number}: only {death.broken} of {_STREAMS} streams ran, and broke")
    return problems or ([] if deaths else ["no proxy died: nothing was tried"])


def table(figures: Figures) -> Table:
    rows = [
        (
            name,
            str(len(arm["deaths"])),
            *(shown(arm["orphans_s"].get(part), 2, " s") for part in ("p50", "max")),
            *(shown(arm["ready_s"].get(part), 2, " s") for part in ("p50", "max")),
        )
        for name, arm in figures["arms"].items()
    ]
    headings = ("the next proxy", "deaths", "orphans gone p50", "max", "ready p50", "max")
    result = rows_table(f"proxy: SIGKILL under {_STREAMS} streams", headings, rows)
    result.caption = (
        "orphans gone: from the kill to the worker's Hello, before which it cancels what it runs (aim: 3 s "
        "and a step); ready: from the new proxy's start to /health/ready 200 (aim: 2 s; one that is started "
        "at once waits for the worker to miss three pings)"
    )
    return result


SCENARIO: Final = Scenario("proxy", measure, table)
