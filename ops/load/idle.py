"""What a thousand streams cost that wait and say nothing, and whether a short request feels them."""

import asyncio
import time
from typing import Any, Final

from rich.table import Table

from ops.load.client import Client
from ops.load.loops import closed_loop
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown, shown_ms
from ops.load.processes import (
    FalseWorkerOptions,
    LoneProxy,
    cpu_s,
    lone_proxy,
    raise_file_limit,
    text_token,
)
from ops.load.records import Ask, first_token_waits_s, outcomes
from ops.load.statistics import median, summary

_SECONDS: Final = 20.0
_REPEATS: Final = 2
_STREAMS: Final = 1000
_FILES_BESIDE: Final = 200
_SLOTS: Final = 8
_STEP_MS: Final = 5.0
# Who asks for more holds its row and is never given a token.
_HELD_OVER: Final = 64
_IDLE_TOKENS: Final = 512
_SHORT_TOKENS: Final = 8
_BETWEEN_S: Final = 0.05
# By then the proxy has opened every stream with its first keep-alive comment.
_SETTLE_S: Final = 12.0
_IDLE_LIFE_S: Final = 3600.0
# Nothing of the batch lane ages, expires or is too much: its streams are to stay where they are.
_SETTINGS: Final = """
[admission]
key_queue_share = 1.0

[[lanes]]
name = "interactive"

[[lanes]]
name = "batch"
queue_places = 4000
queue_s = 1e6
deadline_s = 86400.0
ages_after_s = 86400.0
step_share_min = 0.0
parkable = false
"""


def measure(plan: Plan) -> Figures:
    streams = min(_STREAMS, raise_file_limit() - _FILES_BESIDE)
    config = plan.scratch / "idle.toml"
    config.write_text(_SETTINGS)
    options = FalseWorkerOptions(_SLOTS, _STEP_MS, text_token(plan.folder.path), _HELD_OVER)
    lone = lone_proxy(plan.folder.path, plan.scratch / "idle", options, config)
    with plan.progress.around("idle: the proxy", lone) as proxy:
        return run(_measure(plan, proxy, streams))


async def _measure(plan: Plan, proxy: LoneProxy, streams: int) -> Figures:
    seconds, repeats = plan.seconds or _SECONDS, plan.repeats or _REPEATS
    arms: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    for number in range(1, repeats + 1):
        for name, idle in (("without", 0), ("with", streams)):
            title = f"idle {number} of {repeats}, {name} {streams} idle streams"
            arms[name].append(await _arm(plan, proxy, title, idle, seconds))
    return {"streams": streams, "seconds": seconds, "arms": arms}


async def _arm(plan: Plan, proxy: LoneProxy, title: str, idle: int, seconds: float) -> dict[str, Any]:
    model = plan.folder.name
    async with (
        Client(proxy.port, model, label="idle", timeout_s=_IDLE_LIFE_S) as waiting,
        Client(proxy.port, model, label="short") as short,
    ):

        def told() -> str:
            return f"{waiting.live} idle; short: {short.told()}"

        with plan.progress.phase(title, _SETTLE_S + seconds, told):
            async with closed_loop(waiting, _idle_ask, idle):
                await asyncio.sleep(_SETTLE_S)
                figures = await _measured(proxy, short, seconds)
                ended_early = len(waiting.records)
        return {"idle": idle, "idle_ended_early": ended_early, **figures}


def _idle_ask() -> Ask:
    return Ask("Wait here.", _IDLE_TOKENS, lane="batch")


async def _measured(proxy: LoneProxy, short: Client, seconds: float) -> dict[str, Any]:
    """Send short requests one after another; return their waits, and what the proxy took meanwhile."""
    before_s, began = cpu_s(proxy.process), time.monotonic()
    number = 0
    while time.monotonic() < began + seconds:
        number += 1
        await short.ask(Ask(f"Hello, number {number}.", _SHORT_TOKENS))
        await asyncio.sleep(_BETWEEN_S)
    records = short.take()
    return {
        "cpu_share": (cpu_s(proxy.process) - before_s) / (time.monotonic() - began),
        "resident_bytes": proxy.process.memory_info().rss,
        "first_token_s": summary(first_token_waits_s(records)),
        "outcomes": outcomes(records),
    }


def table(figures: Figures) -> Table:
    rows = []
    for name, repeats in figures["arms"].items():
        first = {part: [each["first_token_s"].get(part) for each in repeats] for part in ("p50", "p95")}
        rows.append(
            (
                name,
                f"{100 * median([each['cpu_share'] for each in repeats]):.1f} %",
                shown(median([each["resident_bytes"] for each in repeats]) / 2**20, 0, " MiB"),
                *(shown_ms(_median(first[part]), 1) for part in ("p50", "p95")),
                str(sum(each["idle_ended_early"] for each in repeats)),
            )
        )
    headings = ("idle streams", "proxy CPU", "memory", "short TTFT p50", "p95", "ended early")
    return rows_table(f"idle: {figures['streams']} streams that wait", headings, rows)


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


SCENARIO: Final = Scenario("idle", measure, table)
