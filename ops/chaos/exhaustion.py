"""A request that no memory is left for, in a worker that believes there is: the `exhaustion` scenario.

The worker's address space is bounded a little above what the loaded model takes, and its KV budget far above
that. So nobody refuses the large request, and the process dies of it without an exception or a word. Linux.
"""

import asyncio
import contextlib
import sys
from dataclasses import asdict, replace
from typing import Final

from rich.table import Table

from ops.chaos import checks, watch
from ops.chaos.client import Client
from ops.chaos.house import House
from ops.chaos.said import Ask, Said, mixed_asks
from ops.chaos.traffic import again_and_again, kept_up, undisturbed
from ops.load.arrivals import dice, prompt
from ops.load.plan import Figures, Plan, Scenario, rows_table, run
from shared.limits import MIB
from worker.journal import Life

_HEADROOM_BYTES: Final = 96 * MIB
_LARGE_WORDS: Final = 2000
_LARGE_TOKENS: Final = 16
_STREAMS: Final = 3
_ASKS: Final = 6
_TOKENS: Final = (8, 24)
_DEATHS_MAX: Final = 2
_PATIENCE_S: Final = 240.0
_SHOWN_CHARS: Final = 100
_QUARANTINED: Final = "request_quarantined"
_SETTINGS: Final = {
    "FOREBAY_WORKER__KV_BUDGET_MB": "4096",
    # A prefill that takes its time is no hang: it is the memory that is the subject.
    "FOREBAY_WORKER__HANG_FLOOR_S": "60",
}


def measure(plan: Plan) -> Figures:
    if sys.platform != "linux":
        return {"problems": ["only Linux bounds a process's address space"], "lives": []}
    worker = (sys.executable, "-P", "-m", "ops.chaos.bounded_worker", str(_HEADROOM_BYTES))
    with House(plan.folder.path, plan.scratch / "exhaustion", worker, **_SETTINGS) as house:
        with plan.progress.phase("exhaustion: the gateway starts"):
            house.open()
        figures = run(_measure(plan, house))
    with plan.progress.phase("exhaustion: all of it ends"):
        figures["problems"] += [f"left behind: {line}" for line in house.left_behind()]
    return figures


async def _measure(plan: Plan, house: House) -> Figures:
    # In the patient lane: two deaths and two trials take longer than a chat may wait.
    asks = [replace(ask, lane="batch") for ask in mixed_asks(plan.seed, _ASKS, _TOKENS)]
    large = Ask(-1, prompt(_LARGE_WORDS, dice(plan.seed, "large")), _LARGE_TOKENS)
    async with (
        Client(house.port, plan.folder.name, label="small") as small,
        Client(house.port, plan.folder.name, label="large") as client,
    ):
        with plan.progress.phase("exhaustion: the small answers, undisturbed", told=small.told):
            expected = await undisturbed(small, asks)
        draw = again_and_again(asks, dice(plan.seed, "exhaustion"))

        def told() -> str:
            return f"small: {small.told()}; {len(house.lives()) - 1} deaths"

        async with watch.liveness(small) as statuses:
            with plan.progress.phase("exhaustion: a large one among small ones", told=told):
                async with kept_up(small, draw, _STREAMS):
                    ended = await _ask_patiently(client, large)
                    _, ready = await small.get("/health/ready")
            with plan.progress.phase("exhaustion: the same once more"):
                again = await _ask_patiently(client, large)
                problems = await watch.end_problems(small)
    problems += [*watch.live_problems(statuses), *checks.answer_problems(small.said, expected)]
    lives = house.lives()
    return {
        "problems": [*problems, *death_problems(lives), *large_problems(ended, again, lives)],
        "headroom_mb": _HEADROOM_BYTES // MIB,
        "large": [_in_words(ended), _in_words(again)],
        "small": len(small.said),
        "last_death": ready.get("worker", {}).get("last_death"),
        "rung": ready.get("worker", {}).get("rung"),
        "lives": [
            {"epoch": life.epoch, "cause": life.cause, "detail": life.detail, "rung": life.rung}
            | {"rows": [asdict(row) for row in life.rows]}
            for life in lives
            if life.ended_at is not None
        ],
    }


async def _ask_patiently(client: Client, ask: Ask) -> Said:
    """Ask, and give up after a while."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            return await client.ask(ask)
    return client.said[-1]


def death_problems(lives: list[Life]) -> list[str]:
    """Say what is wrong with the deaths: too many or none, another cause than memory, no step down."""
    deaths = [life for life in lives if life.ended_at is not None and life.cause != "planned"]
    others = [life for life in deaths if life.cause != "memory"]
    problems = [f"epoch {life.epoch} ended by {life.cause}: {life.detail}" for life in others]
    if len(deaths) > _DEATHS_MAX:
        problems.append(f"one request killed the worker {len(deaths)} times")
    if not deaths:
        problems.append("nothing was exhausted: the worker lives")
    elif deaths[-1].rung < 1:
        problems.append("the supervisor didn't step down")
    return problems


def large_problems(ended: Said, again: Said, lives: list[Life]) -> list[str]:
    """Say what is wrong with the large request's two ends: it is refused for good, or ends cleanly."""
    problems = []
    if ended.completed:
        problems.append("the large request was answered: there was memory enough for it")
    if len(ended.endings) != 1 and not all(each.startswith("refused") for each in ended.endings):
        problems.append(f"the large request ended more than once: {', '.join(ended.endings)}")
    convicted = any(_QUARANTINED in ending for ending in ended.endings)
    deaths = sum(life.ended_at is not None for life in lives)
    if deaths >= _DEATHS_MAX and not convicted:
        problems.append(f"it killed twice and wasn't quarantined: {', '.join(ended.endings)}")
    if convicted and again.endings != (f"refused 422 {_QUARANTINED}",):
        problems.append(f"sent once more it got {', '.join(again.endings)}")
    return problems


def _in_words(said: Said) -> str:
    return ", ".join(said.endings) + (f" after {said.tokens} tokens" if said.tokens else "")


def table(figures: Figures) -> Table:
    rows = [
        (str(number), life["cause"], str(len(life["rows"])), str(life["rung"]), life["detail"][:_SHOWN_CHARS])
        for number, life in enumerate(figures["lives"], 1)
    ]
    headings = ("death", "cause", "rows", "rung", "detail")
    result = rows_table("exhaustion: a request that the address space has no room for", headings, rows)
    if "large" in figures:
        result.caption = (
            f"{figures['headroom_mb']} MiB above the loaded model; the large request: "
            f"{'; once more: '.join(figures['large'])}; {figures['small']} small ones beside it; "
            f"/health/ready: last death {figures['last_death']}, rung {figures['rung']}"
        )
    return result


SCENARIO: Final = Scenario("exhaustion", measure, table)
