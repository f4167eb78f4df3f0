"""The worker is replaced on purpose while streams run, several times in a row: the `upgrade` scenario."""

import asyncio
import time
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ops.chaos import checks, timeline, watch
from ops.chaos.client import Client
from ops.chaos.house import House
from ops.chaos.kills import SETTINGS, some_time
from ops.chaos.said import Said, mixed_asks
from ops.chaos.traffic import again_and_again, kept_up, undisturbed
from ops.load.arrivals import dice
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown
from ops.restart_worker import restart_worker
from ops.screen import Screen
from shared.errors import SettingsError

_REPEATS: Final = 5
_STREAMS: Final = 8
_ASKS: Final = 12
_TOKENS: Final = (24, 64)
_TIMEOUT_S: Final = 120.0
_KIND: Final = "restart"


def measure(plan: Plan) -> Figures:
    with House(plan.folder.path, plan.scratch / "upgrade", **SETTINGS) as house:
        with plan.progress.phase("upgrade: the gateway starts"):
            house.open()
        figures = run(_measure(plan, house))
    with plan.progress.phase("upgrade: all of it ends"):
        figures["problems"] += [f"left behind: {line}" for line in house.left_behind()]
    return figures


async def _measure(plan: Plan, house: House) -> Figures:
    asks = mixed_asks(plan.seed, _ASKS, _TOKENS)
    restarts: list[timeline.Fault] = []
    words: list[str] = []
    async with Client(house.port, plan.folder.name, label="upgrade") as client:
        with plan.progress.phase("upgrade: the same answers, undisturbed", told=client.told):
            expected = await undisturbed(client, asks)
        draw = again_and_again(asks, dice(plan.seed, "upgrade"), leaves=0.0)

        def told() -> str:
            return f"{len(words)} restarts, {client.told()}"

        async with watch.liveness(client) as statuses:
            with plan.progress.phase("upgrade: restarts under live streams", told=told):
                async with kept_up(client, draw, _STREAMS):
                    problems = await _restart(plan, house, client, restarts, words)
            problems += await watch.end_problems(client)
    problems += watch.live_problems(statuses)
    return _figures(house, restarts, client.said, expected, problems) | {"words": words}


async def _restart(
    plan: Plan, house: House, client: Client, restarts: list[timeline.Fault], words: list[str]
) -> list[str]:
    """Do what `forebay restart worker` does, again and again; say what made it end before."""
    numbers = dice(plan.seed, "restarts")
    screen = Screen(Console(quiet=True))
    for _ in range(plan.repeats or _REPEATS):
        await some_time(client, numbers)
        at = time.time()
        try:
            said = await asyncio.to_thread(
                restart_worker, house.settings, drain=False, timeout_s=_TIMEOUT_S, screen=screen
            )
        except SettingsError as problem:
            return [f"restart {len(words) + 1}: {problem}"]
        words.append(said)
        restarts.append(timeline.Fault(_KIND, at, time.time()))
    # The last one counts as well: its streams go on.
    await some_time(client, numbers)
    return []


def _figures(
    house: House,
    restarts: list[timeline.Fault],
    said: list[Said],
    expected: dict[int, str],
    problems: list[str],
) -> dict[str, Any]:
    lives = house.lives()
    found = timeline.account(restarts, lives, said, expected)
    refused = [each for one in said for each in one.refusals]
    causes = [life.cause for life in lives if life.ended_at and life.epoch < lives[-1].epoch]
    return {
        "problems": [
            *problems,
            *checks.answer_problems(said, expected),
            *checks.shortened([f"refused: {each.status} {each.code}" for each in refused]),
            *(f"a life ended by {cause}" for cause in causes if cause != "planned"),
            *(f"the life of epoch {epoch} ended by itself" for epoch in found.uncaused),
        ],
        "restarts": timeline.by_kind(found.effects)["all"],
        "requests": len(said),
        "lives": timeline.told(lives),
    }


def table(figures: Figures) -> Table:
    restarts = figures["restarts"]
    rows = [
        (name, str(times["count"]), *(shown(times.get(part), 2, " s") for part in ("p50", "p95", "max")))
        for name, times in (
            ("worker gone", restarts["detect_s"]),
            ("next worker ready", restarts["ready_s"]),
            ("pause of a stream", restarts["pause_s"]),
        )
    ]
    result = rows_table(
        f"upgrade: {restarts['faults']} restarts under {_STREAMS} streams",
        ("from the order", "count", "p50", "p95", "max"),
        rows,
    )
    share = restarts["resumed_share"]
    result.caption = (
        f"{figures['requests']} requests; {restarts['streams']} streams were live at a restart, "
        f"{shown(None if share is None else 100 * share, 1)} % of them went on to their own end; "
        "pause: from the last text before to the first after"
    )
    return result


SCENARIO: Final = Scenario("upgrade", measure, table)
