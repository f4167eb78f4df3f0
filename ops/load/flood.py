"""Does a flood of batch work slow a chat? A trickle alone, the same under a flood, the flood alone."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from rich.table import Table

from ops.figures.processes import Gateway, gateway
from ops.load.arrivals import Lengths, Mix, dice, poisson
from ops.load.client import Client
from ops.load.loops import closed_loop, open_loop, settled
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown, shown_ms
from ops.load.records import Ask, Record, first_token_waits_s, gaps_s, outcomes, tokens_between
from ops.load.statistics import median, percentile_ratio, ratio, summary

_CHATS: Final = 15  # expected in an arm, within these bounds of its length
_SECONDS_MIN: Final = 60.0
_SECONDS_MAX: Final = 180.0
_REPEATS: Final = 3
_BUSY: Final = 0.3  # of one stream's time, which the trickle takes alone
_STREAMS: Final = 24
_SETTLE_S: Final = 4.0
_WARM_S: Final = 15.0
_PATIENCE_S: Final = 60.0
_ATTEMPTS_MAX: Final = 1000
_CHAT: Final = Mix(Lengths(16, 0.4, 6, 30), Lengths(24, 0.0, 24, 24))
_BATCH: Final = Mix(Lengths(100, 0.6, 20, 260), Lengths(100, 0.3, 64, 160))
_ARMS: Final = ("unloaded", "flooded", "batch")


def measure(plan: Plan) -> Figures:
    home = plan.scratch / "flood"
    with plan.progress.around("flood: the gateway", gateway(plan.folder.path, home)) as ours:
        return run(_measure(plan, ours))


async def _measure(plan: Plan, ours: Gateway) -> Figures:
    repeats = plan.repeats or _REPEATS
    arms: dict[str, list[_Arm]] = {name: [] for name in _ARMS}
    with plan.progress.phase("flood: one chat after another, to know the rate"):
        chat_s = await _chat_s(plan, ours.port)
    seconds = plan.seconds or min(_SECONDS_MAX, max(_SECONDS_MIN, _CHATS * chat_s / _BUSY))
    # Unmeasured: a device compiles some kernels when they are first used, and moving averages settle.
    await _Arm(plan, ours.port, "flooded", seconds=_WARM_S, rate_hz=_BUSY / chat_s).run(0)
    for number in range(1, repeats + 1):
        for name in _ARMS:
            arm = _Arm(plan, ours.port, name, seconds=seconds, rate_hz=_BUSY / chat_s)
            await arm.run(number)
            arms[name].append(arm)
    return {"chat_s": chat_s, "rate_hz": _BUSY / chat_s, "seconds": seconds, **_figures(arms, plan.seed)}


async def _chat_s(plan: Plan, port: int) -> float:
    """Return how long one chat takes with nothing beside it."""
    draw = _asks(_CHAT, "interactive", plan.seed, "calibration")
    async with Client(port, plan.folder.name, label="calibration") as client:
        for _ in range(4):
            await client.ask(draw())
        return median([record.ended_at - record.sent_at for record in client.take()[1:]])


def _asks(mix: Mix, lane: str, seed: int, *purpose: str | int) -> Callable[[], Ask]:
    draw = mix.stream(seed, *purpose)
    return lambda: Ask(*draw(), lane=lane)


class _Arm:
    """One arm of one repeat: what it sent, and what came of it."""

    def __init__(self, plan: Plan, port: int, name: str, *, seconds: float, rate_hz: float) -> None:
        self.chats: list[Record] = []
        self.batch: list[Record] = []
        self.began = 0.0
        self.seconds = seconds
        self._plan = plan
        self._port = port
        self._name = name
        self._rate_hz = rate_hz

    async def run(self, number: int) -> None:
        model = self._plan.folder.name
        label = f"{self._name}{number}"
        async with (
            Client(self._port, model, label=f"chat-{label}") as chats,
            Client(self._port, model, label=f"batch-{label}", attempts_max=_ATTEMPTS_MAX) as batch,
        ):

            def told() -> str:
                return f"chats: {chats.told()}; batch: {batch.told()}"

            title = f"flood {number}, {self._name}"
            with self._plan.progress.phase(title, _SETTLE_S + self.seconds, told):
                await self._load(chats, batch, number)
            self.batch = batch.take()

    async def _load(self, chats: Client, batch: Client, number: int) -> None:
        streams = 0 if self._name == "unloaded" else _STREAMS
        draw = _asks(_BATCH, "batch", self._plan.seed, f"batch {number}", self._name)
        async with closed_loop(batch, draw, streams):
            await settled(_SETTLE_S, *[(batch, 1)] * bool(streams))
            self.began = time.monotonic()
            if self._name != "batch":
                timetable = self._timetable(number)
                self.chats = await open_loop(chats, timetable, began=self.began, patience_s=_PATIENCE_S)
            await asyncio.sleep(max(0.0, self.began + self.seconds - time.monotonic()))

    def _timetable(self, number: int) -> list[tuple[float, Ask]]:
        """Return the same moments and lengths for both arms of a repeat."""
        draw = _asks(_CHAT, "interactive", self._plan.seed, f"chat {number}", self._name)
        moments = poisson(self._rate_hz, self.seconds, dice(self._plan.seed, "moments", number))
        return [(moment, draw()) for moment in moments]

    @property
    def tokens_per_s(self) -> float:
        """Of all that ran while the arm was measured, whether or not it came to its end."""
        end = self.began + self.seconds
        everything = [*self.chats, *self.batch]
        return tokens_between(everything, self.began, end, completed=False) / self.seconds


def _figures(arms: dict[str, list[_Arm]], seed: int) -> dict[str, Any]:
    chats = {name: [chat for arm in arms[name] for chat in arm.chats] for name in ("unloaded", "flooded")}
    waits = {name: first_token_waits_s(records) for name, records in chats.items()}
    pace = {name: [arm.tokens_per_s for arm in arms[name]] for name in _ARMS}
    steps = gaps_s(record for arm in arms["batch"] for record in arm.batch)
    interval = percentile_ratio(waits["flooded"], waits["unloaded"], 95, seed=seed)
    p95 = {name: summary(values).get("p95") for name, values in waits.items()}
    return {
        "first_token_s": {name: summary(values) for name, values in waits.items()},
        "first_token_p95_ratio": asdict(interval) if interval else None,
        "gap_s": {name: summary(gaps_s(records)) for name, records in chats.items()},
        "batch_step_s": median(steps) if steps else None,
        "p95_over_unloaded_and_step": _over(p95["flooded"], p95["unloaded"], steps),
        "tokens_per_s": pace,
        "tokens_under_flood_of_batch_alone": ratio(median(pace["flooded"]), median(pace["batch"])),
        "outcomes": {
            **{name: outcomes(records) for name, records in chats.items()},
            "batch": outcomes([record for name in _ARMS for arm in arms[name] for record in arm.batch]),
        },
        "samples_s": waits,
    }


def _over(flooded: float | None, unloaded: float | None, steps: list[float]) -> float | None:
    """Return p95 flooded over (p95 unloaded + one batch step): what comes in a step waits for its end."""
    if flooded is None or unloaded is None or not steps:
        return None
    return flooded / (unloaded + median(steps))


def table(figures: Figures) -> Table:
    rows = []
    for name in _ARMS:
        first, gap = figures["first_token_s"].get(name, {}), figures["gap_s"].get(name, {})
        cells = (shown_ms(first.get("p50")), shown_ms(first.get("p95")), shown_ms(gap.get("p95")))
        rows.append(
            (name, shown(first.get("count")), *cells, shown(median(figures["tokens_per_s"][name]), 1))
        )
    result = rows_table(
        f"flood: chats at {figures['rate_hz']:.2f}/s beside {_STREAMS} streams of batch work",
        ("arm", "chats", "TTFT p50", "TTFT p95", "ITL p95", "tokens/s"),
        rows,
    )
    interval = figures["first_token_p95_ratio"] or {"value": None, "low": None, "high": None}
    result.caption = (
        f"TTFT p95 flooded/unloaded {shown(interval['value'], 2)} "
        f"(95 % of resamples: {shown(interval['low'], 2)} to {shown(interval['high'], 2)}); "
        f"over unloaded + one batch step of {shown_ms(figures['batch_step_s'])}: "
        f"{shown(figures['p95_over_unloaded_and_step'], 2)}; "
        f"tokens/s of batch alone: {shown(figures['tokens_under_flood_of_batch_alone'], 2)}"
    )
    return result


SCENARIO: Final = Scenario("flood", measure, table)
