"""Nobody there to answer: how fast and how well that is said, in three ways of it: the `down` scenario."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from rich.table import Table

from ops.chaos import checks
from ops.chaos.client import Client
from ops.chaos.house import House
from ops.chaos.said import Ask, Said
from ops.chaos.watch import until
from ops.figures.processes import wait_until_ok
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown_ms
from ops.load.statistics import summary

_SECONDS: Final = 5.0
_RATE_HZ: Final = 200.0
_WARM: Final = 20
_AIM_S: Final = 0.005
_ASK: Final = Ask(0, "Is anybody there? Tell a long story about it.", 64)
# Says nothing and never gets anywhere: the model is being loaded, for all that can be seen.
_IDLER: Final = (sys.executable, "-c", "import time; time.sleep(600)")
_BREAKER: Final = {"FOREBAY_WORKER__RESTARTS_MAX": "1", "FOREBAY_WORKER__BREAKER_OPEN_S": "120"}
_ARMS: Final = ("no supervisor", "loading", "breaker open")


def measure(plan: Plan) -> Figures:
    arms: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for name in _ARMS:
        with _house(plan, name) as house:
            said, state = run(_measure(plan, house, name))
        arms[name] = {**figures_of(said), "state": state}
        problems += [f"{name}: {problem}" for problem in down_problems(said)]
        with plan.progress.phase(f"down, {name}: all of it ends"):
            problems += [f"left behind: {line}" for line in house.left_behind()]
    return {"problems": problems, "arms": arms, "rate_hz": _RATE_HZ, "aim_s": _AIM_S}


@contextmanager
def _house(plan: Plan, name: str) -> Iterator[House]:
    """Start what the arm needs: a proxy alone, with a worker that never gets ready, or with a real one."""
    home = plan.scratch / f"down-{_ARMS.index(name)}"
    worker = _IDLER if name == "loading" else ()
    variables = _BREAKER if name == "breaker open" else {}
    with House(plan.folder.path, home, worker, **variables) as house:
        with plan.progress.phase(f"down, {name}: the processes start"):
            if name == "breaker open":
                house.open()
            else:
                wait_until_ok(house.port, "/health/live", house.start("proxy"))
                if name == "loading":
                    house.start("worker")
        yield house


async def _measure(plan: Plan, house: House, name: str) -> tuple[list[Said], str]:
    seconds = plan.seconds or _SECONDS
    async with Client(house.port, plan.folder.name, label="down", attempts_max=1) as client:
        with plan.progress.phase(f"down, {name}: until it is so"):
            state = await _until_down(house, client, name)
        for _ in range(_WARM):
            await client.ask(_ASK)
        client.said.clear()
        with plan.progress.phase(f"down, {name}: {_RATE_HZ:.0f} requests/s", seconds, client.told):
            await _ask_by_timetable(client, seconds)
        return client.said, state


async def _until_down(house: House, client: Client, name: str) -> str:
    """Wait for the state that the arm is about; return what /health/ready calls it."""
    if name == "breaker open":
        for _ in range(2):
            epoch = (await client.get("/health/ready"))[1]["worker"]["epoch"]
            worker = house.worker()
            assert worker is not None, "it was ready"
            worker.kill()
            await until(client, partial(_is_another_or_none, epoch))
        body = await until(client, lambda _, body: body["worker"]["breaker"] == "open", 30)
    elif name == "loading":
        body = await until(client, lambda _, body: body["status"] == "loading", 30)
    else:
        body = (await client.get("/health/ready"))[1]
    return "not so at all" if body is None else f"{body['status']}, breaker {body['worker']['breaker']}"


def _is_another_or_none(epoch: int, status: int, body: dict[str, Any]) -> bool:
    """Whether the next worker is ready, or none is to come."""
    worker = body["worker"]
    return worker["breaker"] == "open" or (status == 200 and worker["epoch"] != epoch)


async def _ask_by_timetable(client: Client, seconds: float) -> None:
    began = time.monotonic()
    tasks = []
    for number in range(int(_RATE_HZ * seconds)):
        await asyncio.sleep(max(0.0, began + number / _RATE_HZ - time.monotonic()))
        tasks.append(asyncio.create_task(client.ask(_ASK)))
    await asyncio.gather(*tasks)


def figures_of(said: list[Said]) -> dict[str, Any]:
    refusals = [refused for one in said for refused in one.refusals]
    waits = [each.retry_after_s for each in refusals if each.retry_after_s is not None]
    return {
        "requests": len(said),
        "answers": dict(Counter(f"{each.status} {each.code}" for each in refusals)),
        "refusal_s": summary([each.took_s for each in refusals]),
        "retry_after_s": [min(waits), max(waits)] if waits else None,
    }


def down_problems(said: list[Said]) -> list[str]:
    """Say what wasn't refused with a 503, and which refusals didn't say well when to come back."""
    others = Counter(" ".join(one.endings) for one in said if not _is_503(one))
    return [*(f"{count} x {ending}" for ending, count in others.items()), *checks.refusal_problems(said)]


def _is_503(one: Said) -> bool:
    return len(one.refusals) == 1 and one.refusals[0].status == 503 and len(one.endings) == 1


def table(figures: Figures) -> Table:
    rows = [_row(name, arm) for name, arm in figures["arms"].items()]
    headings = ("nobody there", "requests", "p50", "p95", "p99", "max", "come back after", "answers")
    title = f"down: time to a refusal at {figures['rate_hz']:.0f} requests/s"
    result = rows_table(title, headings, rows)
    states = "; ".join(f"{name}: {arm['state']}" for name, arm in figures["arms"].items())
    result.caption = f"aim: p99 below {1000 * figures['aim_s']:.0f} ms; {states}"
    return result


def _row(name: str, arm: dict[str, Any]) -> tuple[str, ...]:
    waits = arm["retry_after_s"]
    return (
        name,
        str(arm["requests"]),
        *(shown_ms(arm["refusal_s"].get(part), 1) for part in ("p50", "p95", "p99", "max")),
        f"{waits[0]:.1f}-{waits[1]:.1f} s" if waits else "-",
        ", ".join(f"{count} x {answer}" for answer, count in arm["answers"].items()),
    )


SCENARIO: Final = Scenario("down", measure, table)
