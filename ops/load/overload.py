"""What ten times too many requests do: how fast a no is, whether it is kept, and what is still served."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from rich.table import Table

from ops.figures.processes import Gateway, gateway
from ops.load.arrivals import Lengths, Mix, dice, poisson
from ops.load.client import Client
from ops.load.loops import closed_loop, open_loop, settled
from ops.load.plan import Figures, Plan, Scenario, rows_table, run, shown, shown_ms
from ops.load.records import Ask, Attempt, Record, accepted_waits_s, outcomes, tokens_between
from ops.load.statistics import median, ratio, summary
from shared.lane_settings import INTERACTIVE

_SECONDS: Final = 8.0
_REPEATS: Final = 2
_STREAMS: Final = 16
_TIMES: Final = 10
_SETTLE_S: Final = 4.0
_SETTLE_S_MAX: Final = 20.0
_ATTEMPTS_MAX: Final = 6
_PATIENCE_S: Final = 120.0
_RETRY_S: Final = (1.0, 60.0)
_EXPIRED: Final = "queue_timeout"
_MIX: Final = Mix(Lengths(20, 0.4, 8, 60), Lengths(32, 0.3, 16, 64))


def measure(plan: Plan) -> Figures:
    home = plan.scratch / "overload"
    with plan.progress.around("overload: the gateway", gateway(plan.folder.path, home)) as ours:
        return run(_measure(plan, ours))


async def _measure(plan: Plan, ours: Gateway) -> Figures:
    seconds, repeats = plan.seconds or _SECONDS, plan.repeats or _REPEATS
    rounds = []
    for number in range(1, repeats + 1):
        peak = await _peak(plan, ours.port, seconds, number)
        over = await _overload(plan, ours.port, seconds, number, peak)
        rounds.append({"peak": peak, "over": over})
    return {"seconds": seconds, "deadline_s": INTERACTIVE.deadline_s, "rounds": rounds}


def _draw(seed: int, *purpose: str | int) -> Callable[[], Ask]:
    draw = _MIX.stream(seed, *purpose)
    return lambda: Ask(*draw())


async def _peak(plan: Plan, port: int, seconds: float, number: int) -> dict[str, float]:
    """Keep all rows busy and no more; return what the gateway gives then."""
    async with Client(port, plan.folder.name, label=f"peak{number}") as client:
        draw = _draw(plan.seed, f"overload {number}", "peak")
        with plan.progress.phase(f"overload {number}, peak", _SETTLE_S + seconds, client.told):
            async with closed_loop(client, draw, _STREAMS):
                settle_s = await settled(_SETTLE_S, (client, _STREAMS))
                began = time.monotonic()
                await asyncio.sleep(seconds)
        records = client.take()
    # Those that were cut at the end were being served like all others.
    tokens_per_s = tokens_between(records, began, began + seconds, completed=False) / seconds
    sizes = [record.ask.max_tokens for record in records]
    requests_per_s = tokens_per_s / max(1.0, median(sizes))
    return {"settle_s": settle_s, "tokens_per_s": tokens_per_s, "requests_per_s": requests_per_s}


async def _overload(
    plan: Plan, port: int, seconds: float, number: int, peak: dict[str, float]
) -> dict[str, Any]:
    """Send by timetable and obey every refusal; measure after about what the peak took to settle."""
    rate_hz = max(1.0, _TIMES * peak["requests_per_s"])
    settle_s = min(_SETTLE_S_MAX, peak["settle_s"])
    draw = _draw(plan.seed, f"overload {number}", "over")
    moments = poisson(rate_hz, settle_s + seconds, dice(plan.seed, "overload moments", number))
    async with Client(port, plan.folder.name, label=f"over{number}", attempts_max=_ATTEMPTS_MAX) as client:
        title = f"overload {number}, {len(moments)} requests at {rate_hz:.1f}/s, then their coming back"
        with plan.progress.phase(title, settle_s + seconds + _PATIENCE_S, client.told):
            began = time.monotonic()
            records = await open_loop(
                client, [(moment, draw()) for moment in moments], began=began, patience_s=_PATIENCE_S
            )
    begin = began + settle_s
    tokens = tokens_between(records, begin, begin + seconds, completed=True)
    return {"rate_hz": rate_hz, "tokens_per_s": tokens / seconds, **overload_figures(records)}


def overload_figures(records: list[Record]) -> dict[str, Any]:
    """Return how refusals were said and kept, and what those who were let in met.

    A request that waited in the queue until its deadline is counted beside: its no comes late by design, and
    inside the stream if that was opened by a keep-alive comment.
    """
    attempts = [attempt for record in records for attempt in record.attempts]
    refusals = [attempt for attempt in attempts if attempt.refused]
    at_once = [attempt for attempt in refusals if attempt.code != _EXPIRED]
    tries_of_completed = [len(record.attempts) for record in records if record.completed]
    completed = len(tries_of_completed)
    return {
        "requests": len(records),
        "outcomes": outcomes(records),
        "answers": dict(Counter(f"{attempt.status} {attempt.code}".strip() for attempt in attempts)),
        "refusal_s": summary(_answer_times_s(at_once)),
        "expired": sum(attempt.code == _EXPIRED for attempt in attempts),
        "badly_refused": sum(not _says_when(attempt) for attempt in refusals),
        "attempts_per_success": ratio(len(attempts), completed),
        "attempts_of_completed": ratio(sum(tries_of_completed), completed),
        "succeeded": ratio(completed, len(records)),
        "accepted_first_token_s": summary(accepted_waits_s(records)),
    }


def _answer_times_s(attempts: list[Attempt]) -> list[float]:
    return [attempt.answered_at - attempt.sent_at for attempt in attempts if attempt.answered_at is not None]


def _says_when(refusal: Attempt) -> bool:
    """Whether a refusal says when to come back, within the bounds that Forebay promises."""
    return refusal.retry_after_s is not None and _RETRY_S[0] <= refusal.retry_after_s <= _RETRY_S[1]


def table(figures: Figures) -> Table:
    rows = []
    for number, each in enumerate(figures["rounds"], 1):
        peak, over = each["peak"], each["over"]
        rows.append(
            (
                str(number),
                f"{over['requests']} at {over['rate_hz']:.1f}/s",
                shown_ms(over["refusal_s"].get("p50"), 1),
                shown_ms(over["refusal_s"].get("p99"), 1),
                str(over["badly_refused"]),
                shown(over["attempts_per_success"], 2),
                shown(over["succeeded"], 2),
                shown(ratio(over["tokens_per_s"], peak["tokens_per_s"]), 2),
                shown(over["accepted_first_token_s"].get("p95"), 1, " s"),
            )
        )
    headings = (
        "round", "requests", "no p50", "no p99", "timeless", "tries/success", "succeeded",
        "goodput/peak", "TTFT p95",
    )  # fmt: skip
    result = rows_table(f"overload: {_TIMES} x what {_STREAMS} streams reach", headings, rows)
    told = "; ".join(
        ", ".join(f"{count} x {answer}" for answer, count in each["over"]["answers"].items())
        for each in figures["rounds"]
    )
    result.caption = (
        f"answers: {told}; no: time to a refusal; timeless: refusals without a time to come back in "
        f"[1, 60] s; the lane's deadline is {figures['deadline_s']:.0f} s"
    )
    return result


SCENARIO: Final = Scenario("overload", measure, table)
