"""The worker dies in every way, at any time, under mixed load: the `kills` scenario."""

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table
from tokenizers import Tokenizer

from ops.chaos import checks, faults, timeline, watch
from ops.chaos.client import Client
from ops.chaos.house import House
from ops.chaos.said import Said, mixed_asks
from ops.chaos.traffic import again_and_again, kept_up, undisturbed
from ops.load.arrivals import dice
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown, shown_ms

_SECONDS: Final = 300.0
_STREAMS: Final = 8
_ASKS: Final = 16
_TOKENS: Final = (8, 48)
_PIECES: Final = 2 * _STREAMS
_PIECES_S_MAX: Final = 20.0
_AFTER_S_MAX: Final = 3.0
_EARLY: Final = 0.2  # of all faults: they come before streams have got far
_LOOK_S: Final = 0.05
# The breaker isn't the subject here: deaths are forgotten as soon as they happen.
SETTINGS: Final = {
    "FOREBAY_PROXY__RESUMES_MAX": "8",
    "FOREBAY_WORKER__RESTARTS_MAX": "100",
    "FOREBAY_WORKER__RESTARTS_WINDOW_S": "1",
}


def measure(plan: Plan) -> Figures:
    with House(plan.folder.path, plan.scratch / "kills", **SETTINGS) as house:
        with plan.progress.phase("kills: the gateway starts"):
            house.open()
        figures = run(_measure(plan, house))
    with plan.progress.phase("kills: all of it ends"):
        figures["problems"] += [f"left behind: {line}" for line in house.left_behind()]
    return figures


async def _measure(plan: Plan, house: House) -> Figures:
    asks = mixed_asks(plan.seed, _ASKS, _TOKENS)
    seconds = plan.seconds or _SECONDS
    struck: list[timeline.Fault] = []
    problems: list[str] = []
    async with Client(house.port, plan.folder.name, label="kills") as client:
        with plan.progress.phase("kills: the same answers, undisturbed", told=client.told):
            expected = await undisturbed(client, asks)
        began = time.monotonic()

        def told() -> str:
            return f"{len(struck)} faults, {client.told()}"

        async with watch.liveness(client) as statuses:
            draw = again_and_again(asks, dice(plan.seed, "kills"))
            with plan.progress.phase("kills: faults under load", seconds, told):
                async with kept_up(client, draw, _STREAMS):
                    problems += await _strike_until(plan, house, client, struck, began + seconds)
            with plan.progress.phase("kills: nothing is asked any more"):
                problems += await watch.end_problems(client)
        _, ready = await client.get("/health/ready")
        said = client.said
    problems += watch.live_problems(statuses)
    if ready.get("quarantined") != 0:
        problems.append(f"{ready.get('quarantined')} requests are quarantined, and none is guilty")
    return _figures(plan, house, _Seen(struck, said, expected, problems, ready))


async def _strike_until(
    plan: Plan, house: House, client: Client, struck: list[timeline.Fault], until: float
) -> list[str]:
    """Strike at random times until then, once at least; say what made it end before."""
    numbers = dice(plan.seed, "faults")
    for kind in faults.in_bags(numbers):
        await some_time(client, numbers)
        if struck and time.monotonic() >= until:
            break
        try:
            struck.append(await faults.strike(house, client, kind))
        except faults.NotBack as problem:
            return [str(problem)]
    return []


async def some_time(client: Client, numbers: random.Random) -> None:
    """Wait at random; most often until streams have said something since the last fault."""
    if numbers.random() >= _EARLY:
        enough, deadline = client.pieces + _PIECES, time.monotonic() + _PIECES_S_MAX
        while client.pieces < enough and time.monotonic() < deadline:  # noqa: ASYNC110 (bounded, and rare)
            await asyncio.sleep(_LOOK_S)
    await asyncio.sleep(numbers.uniform(0, _AFTER_S_MAX))


@dataclass(frozen=True, slots=True)
class _Seen:
    """All that was seen from outside. `ready` is what /health/ready said at the end."""

    struck: list[timeline.Fault]
    said: list[Said]
    expected: dict[int, str]
    problems: list[str]
    ready: dict[str, Any]


def _figures(plan: Plan, house: House, seen: _Seen) -> Figures:
    said, expected, ready = seen.said, seen.expected, seen.ready
    found = timeline.account(seen.struck, house.lives(), said, expected)
    tokenizer = Tokenizer.from_file(str(plan.folder.path / "tokenizer.json"))
    apart = checks.differences(said, expected, lambda text: tokenizer.encode(text).ids)
    problems = [
        *seen.problems,
        *checks.answer_problems(said, expected),
        *checks.refusal_problems(said),
        *faults.cause_problems(found.effects),
        *(f"a {kind} ended no life" for kind in found.without_effect),
        *(f"the life of epoch {epoch} ended, and nobody had done anything to it" for epoch in found.uncaused),
    ]
    kinds = timeline.by_kind(found.effects)
    if not kinds["all"]["streams"]:
        problems.append("no stream was live at any fault: nothing was tried")
    return {
        "problems": problems,
        "kinds": kinds,
        **checks.counted(said, apart),
        "resumed": ready.get("resumed"),
        "rung": ready.get("worker", {}).get("rung"),
        "lives": timeline.told(house.lives()),
    }


def table(figures: Figures) -> Table:
    headings = (
        "fault", "times", "cause", "detect p50", "p95", "back-off p50", "load p50", "ready p50", "p95",
        "token p50", "p95", "max", "streams", "resumed",
    )  # fmt: skip
    rows = [_row(kind, each) for kind, each in figures["kinds"].items()]
    result = rows_table("kills: what each fault did to 8 streams", headings, rows)
    lanes = figures["kinds"]["all"]["next_token_of_lane_s"]
    result.caption = (
        f"{figures['requests']} requests: "
        + ", ".join(f"{count} x {ending}" for ending, count in figures["endings"].items())
        + f"; tokens lost {figures['tokens_lost']}, added {figures['tokens_added']}; next token, by lane: "
        + ", ".join(_of_lane(lane, times) for lane, times in lanes.items())
        + "; "
        "detect: from the signal to the journal's word of the exit; ready and token: from the signal to the "
        "next worker, and to each stream's next text after that, back-off included"
    )
    return result


def _of_lane(lane: str, times: dict[str, Any]) -> str:
    return f"{lane} p50 {shown(times.get('p50'), 1, ' s')}, p95 {shown(times.get('p95'), 1, ' s')}"


def _row(kind: str, each: dict[str, Any]) -> tuple[str, ...]:
    next_token, ready = each["next_token_s"], each["ready_s"]
    share = each["resumed_share"]
    return (
        kind,
        str(each["faults"]),
        " ".join(each["causes"]) or "-",
        shown_ms(each["detect_s"].get("p50")),
        shown_ms(each["detect_s"].get("p95")),
        shown(each["waited_s"].get("p50"), 1, " s"),
        shown(each["load_s"].get("p50"), 1, " s"),
        shown(ready.get("p50"), 1, " s"),
        shown(ready.get("p95"), 1, " s"),
        *(shown(next_token.get(part), 1, " s") for part in ("p50", "p95", "max")),
        str(each["streams"]),
        shown(None if share is None else 100 * share, 1, " %"),
    )


SCENARIO: Final = Scenario("kills", measure, table)
