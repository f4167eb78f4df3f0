"""What overload and a death did to requests, and how parts of a scenario compare. Pure."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from ops.bench.figures import Arm, Pass
from ops.bench.intervals import Interval, Samples, percentile_ratios
from ops.bench.schedule import ALONE, BESIDE, OVER, PEAK
from ops.load.records import Record
from ops.load.statistics import median, ratio, summary

# Of two arms: a metric at a percentile.
_OF_LANES: Final = (("ttft_ms", 50), ("ttft_ms", 95), ("itl_ms", 50), ("e2e_ms", 50))
_OF_PEERS: Final = (
    ("output_tokens_per_s", 50), ("ttft_ms", 50), ("ttft_ms", 95), ("itl_ms", 50), ("itl_ms", 95),
    ("e2e_ms", 50),
)  # fmt: skip


def overload_figures(peak: Sequence[Pass], over: Sequence[Pass]) -> dict[str, Any]:
    """Return how a no was said, and what was still done, beside what is done when nobody is too many."""
    refusals = [record for each in over for record in each.records if record.outcome == "refused"]
    rates = [
        median([each.tokens / each.seconds for each in passes if each.seconds > 0] or [0.0])
        for passes in (over, peak)
    ]
    return {
        "refused": len(refusals),
        "refused_with_a_time_to_come_back": sum(_says_when(record) for record in refusals),
        "refusal_ms": summary([1000 * (record.ended_at - record.sent_at) for record in refusals]),
        "tokens_per_s_of_peak": ratio(*rates),
    }


def _says_when(refusal: Record) -> bool:
    return refusal.retry_after_s is not None and refusal.retry_after_s > 0


def death_figures(passes: Sequence[Pass], killed_at: Sequence[float]) -> dict[str, Any]:
    """Return what became of the requests that were under way at a death, and how long they stood still."""
    met = [
        (record, moment)
        for moment in killed_at
        for each in passes
        for record in each.records
        if record.sent_at <= moment < record.ended_at
    ]
    pauses = [pause_ms(record, moment) for record, moment in met if record.completed]
    return {
        "deaths": len(killed_at),
        "under_way": len(met),
        "went_on_to_their_end": sum(record.completed for record, _ in met),
        "pause_ms": summary([pause for pause in pauses if pause is not None]),
    }


def pause_ms(record: Record, moment: float) -> float | None:
    """Return the longest time without text that began after the moment, or held it; None without text after.

    The text that was on its way at the moment still comes, so the pause need not hold it.
    """
    times = [record.sent_at, *record.text_times]
    gaps = [later - earlier for earlier, later in pairwise(times) if later > moment]
    return 1000 * max(gaps) if gaps else None


def lane_ratios(results: Sequence[Mapping[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return chats beside a flood over chats alone."""
    arms = {result["part"]: result for result in results if result["work"] == "lanes"}
    if not {ALONE, BESIDE} <= arms.keys():
        return []
    return _ratios(f"{BESIDE} / {ALONE}", arms[BESIDE], arms[ALONE], _OF_LANES, seed)


def peer_ratios(
    results: Sequence[Mapping[str, Any]], server: str, peer: str, seed: int
) -> list[dict[str, Any]]:
    """Return the server's metrics over the peer's, at each point that both were measured at."""
    theirs = {_place(result): result for result in results if result["target"] == peer}
    return [
        found
        for result in results
        if result["target"] == server and _place(result) in theirs
        for found in _ratios(f"{server} / {peer}", result, theirs[_place(result)], _OF_PEERS, seed)
    ]


def _place(result: Mapping[str, Any]) -> tuple[Any, ...]:
    return (result["work"], result["part"], *result["point"].values())


def _ratios(
    what: str,
    above: Mapping[str, Any],
    below: Mapping[str, Any],
    metrics: Sequence[tuple[str, int]],
    seed: int,
) -> list[dict[str, Any]]:
    found = []
    for metric, percent in metrics:
        sides: tuple[Samples, Samples] = above["samples"][metric], below["samples"][metric]
        for value, interval in percentile_ratios(*sides, (percent,), seed):
            found.append(
                {
                    "what": what,
                    "work": above["work"],
                    "point": above["point"],
                    "metric": metric,
                    "percent": percent,
                    **ratio_figures(value, interval),
                }
            )
    return found


def ratio_figures(value: float, interval: Interval | None) -> dict[str, float | None]:
    """Return a ratio as JSON takes it: what is beyond measure is None."""
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {"ratio": _finite(value), "low": _finite(low), "high": _finite(high)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def scenario_figures(
    passes: Mapping[Arm, Sequence[Pass]], killed_at: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """Return what scenarios found beside every arm's own figures."""
    found: dict[str, dict[str, Any]] = {}
    parts = {(arm.work, arm.part): each for arm, each in passes.items()}
    if ("overload", OVER) in parts:
        found["overload"] = overload_figures(parts["overload", PEAK], parts["overload", OVER])
    if ("death", "") in parts:
        found["death"] = death_figures(parts["death", ""], killed_at)
    return found
