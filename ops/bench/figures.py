"""What records of requests add up to: throughput, and percentiles of times, each with its interval. Pure.

TTFT is the time from when a request was meant to be sent to its first piece of text. ITL is the time between
two tokens: where one event brings several, the time before it is shared by them. TPOT is one answer's mean of
that. All times are of completed requests.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from ops.bench.intervals import Samples, percentile_intervals
from ops.bench.plan import Point, Work
from ops.load.records import Record, outcomes
from ops.load.statistics import median
from shared.limits import BENCH_GAPS_MAX, CONTEXT_TOKENS_MAX

PERCENTS: Final = (50, 95, 99)
RATES: Final = ("output_tokens_per_s", "requests_per_s")
TIMES: Final = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "queue_ms")

_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Arm:
    """What is measured again and again: a work, a part of it, and its load; `target` is whose answers."""

    target: str
    work: Work
    part: str
    point: Point

    @property
    def name(self) -> str:
        """No two arms of a target have the same: prompts are drawn from it."""
        words = ("" if self.work == "sweep" else self.work, self.part, self.point.name)
        return ", ".join(filter(None, words))


@dataclass(frozen=True, slots=True)
class Pass:
    """One repetition of an arm; times are seconds of the monotonic clock. `partial`: it was cut short."""

    records: Sequence[Record]
    began: float
    ended: float
    partial: bool
    peak_bytes: int | None = None

    @property
    def completed(self) -> list[Record]:
        return [record for record in self.records if record.completed]

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def tokens(self) -> int:
        return sum(record.tokens for record in self.completed)


def piece_tokens(chars: Sequence[int], tokens: int) -> list[int]:
    """Return how many of an answer's tokens came in each piece of text, going by the pieces' lengths.

    Each has one at least; what there is beyond goes, one by one, to the piece with the most characters for
    each token that it has been given.
    """
    given = [1] * len(chars)
    heaviest: list[tuple[float, int]] = [(-count, place) for place, count in enumerate(chars)]
    heapq.heapify(heaviest)
    for _ in range(tokens - len(chars) if chars else 0):
        _, place = heaviest[0]
        given[place] += 1
        heapq.heapreplace(heaviest, (-chars[place] / given[place], place))
    return given


def _tokens_of(record: Record) -> list[int]:
    """Return the tokens of each piece; the one that ends an answer by itself has no text."""
    silent = record.finish_reason == "stop"
    tokens = min(record.tokens, CONTEXT_TOKENS_MAX) - silent
    return piece_tokens(record.piece_chars or [1] * len(record.text_times), tokens)


def gaps_ms(record: Record) -> list[float]:
    """Return an answer's times between one token and the next."""
    tokens = _tokens_of(record)
    return [
        1000 * (later - earlier) / count
        for (earlier, later), count in zip(pairwise(record.text_times), tokens[1:], strict=True)
        for _ in range(count)
    ]


def _ttft_ms(record: Record) -> list[float]:
    return [1000 * (record.text_times[0] - record.scheduled_at)] if record.text_times else []


def _tpot_ms(record: Record) -> list[float]:
    if len(record.text_times) < 2:
        return []
    return [1000 * (record.text_times[-1] - record.text_times[0]) / sum(_tokens_of(record)[1:])]


def _e2e_ms(record: Record) -> list[float]:
    return [1000 * (record.ended_at - record.scheduled_at)]


def _queue_ms(record: Record) -> list[float]:
    return [] if record.queue_ms is None else [record.queue_ms]


_VALUES: Final[Mapping[str, Callable[[Record], list[float]]]] = {
    "ttft_ms": _ttft_ms,
    "itl_ms": gaps_ms,
    "tpot_ms": _tpot_ms,
    "e2e_ms": _e2e_ms,
    "queue_ms": _queue_ms,
}


def samples(passes: Sequence[Pass]) -> dict[str, list[list[list[float]]]]:
    """Return every metric's values, by repetition and request; of rates one value for each repetition.

    A rate of a pass that was cut short is none, unless there is no other.
    """
    whole = [each for each in passes if not each.partial] or list(passes)
    found = {
        "output_tokens_per_s": [[[each.tokens / each.seconds]] for each in whole if each.seconds > 0],
        "requests_per_s": [[[len(each.completed) / each.seconds]] for each in whole if each.seconds > 0],
    }
    for name, values in _VALUES.items():
        found[name] = [[values(record) for record in each.completed] for each in passes]
    found["itl_ms"] = thinned(found["itl_ms"], BENCH_GAPS_MAX)
    return {name: _rounded(values) for name, values in found.items()}


def thinned(values: Samples, count_max: int) -> list[list[list[float]]]:
    """Return about so many values at most, of each request those that stand evenly among its sorted ones."""
    count = sum(len(request) for repetition in values for request in repetition)
    share = min(1.0, count_max / count) if count else 1.0
    return [[_evenly(request, share) for request in repetition] for repetition in values]


def _evenly(values: Sequence[float], share: float) -> list[float]:
    kept = max(1, int(len(values) * share)) if values else 0
    if kept == len(values):
        return list(values)
    ordered = sorted(values)
    return [ordered[int((place + 0.5) * len(ordered) / kept)] for place in range(kept)]


def _rounded(values: Samples) -> list[list[list[float]]]:
    return [[[round(value, _DIGITS) for value in request] for request in repetition] for repetition in values]


def arm_figures(arm: Arm, passes: Sequence[Pass], seed: int) -> dict[str, Any]:
    """Return all that is known of an arm, as JSON takes it."""
    records = [record for each in passes for record in each.records]
    values = samples(passes)
    metrics: dict[str, Any] = {name: _told(values[name], (50,), seed).get("p50") for name in RATES}
    metrics |= {name: _told(values[name], PERCENTS, seed) for name in TIMES}
    return {
        "target": arm.target,
        "work": arm.work,
        "part": arm.part,
        "point": asdict(arm.point),
        "repetitions": len(passes),
        "passes": [_pass_figures(each) for each in passes],
        "requests": request_figures(records),
        "metrics": metrics,
        "peak_memory_bytes": max((each.peak_bytes for each in passes if each.peak_bytes), default=None),
        "tokens": token_figures([record for record in records if record.completed]),
        "samples": values,
    }


def _told(values: Samples, percents: Sequence[int], seed: int) -> dict[str, Any]:
    flat = [value for repetition in values for request in repetition for value in request]
    if not flat:
        return {"count": 0}
    told: dict[str, Any] = {"count": len(flat), "mean": sum(flat) / len(flat), "max": max(flat)}
    for percent, (value, interval) in zip(
        percents, percentile_intervals(values, percents, seed), strict=True
    ):
        told[f"p{percent}"] = {
            "value": value,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
        }
    return told


def _pass_figures(each: Pass) -> dict[str, Any]:
    seconds = each.seconds
    return {
        "seconds": seconds,
        "partial": each.partial,
        "completed": len(each.completed),
        "output_tokens": each.tokens,
        "output_tokens_per_s": each.tokens / seconds if seconds > 0 else None,
        "peak_memory_bytes": each.peak_bytes,
    }


def request_figures(records: Sequence[Record]) -> dict[str, Any]:
    """Return how many requests ended how; cut ones are those that were under way when it was stopped."""
    counts = outcomes(records)
    completed, cut = counts.pop("completed", 0), counts.pop("cut", 0)
    return {"sent": len(records), "completed": completed, "cut": cut, "failed": counts}


def token_figures(completed: Sequence[Record]) -> dict[str, Any]:
    """Return lengths as they were measured, and whether a piece of text was a token.

    `by_usage`: the server counted its answers' tokens; where it doesn't, each piece of text counts as one.
    """
    spoken = [record for record in completed if record.text_times]
    larger = [record for record in spoken if max(_tokens_of(record)) > 1]
    prompts = [record.prompt_tokens for record in completed if record.prompt_tokens is not None]
    return {
        "by_usage": bool(prompts),
        "prompt_tokens": _lengths(prompts),
        "output_tokens": _lengths([record.tokens for record in completed]),
        "cached_tokens": sum(record.cached_tokens or 0 for record in completed),
        "pieces": sum(len(record.text_times) for record in completed),
        "answers_with_several_tokens_in_a_piece": len(larger),
        "answers_without_text": len(completed) - len(spoken),
    }


def _lengths(values: Sequence[int]) -> dict[str, float] | None:
    return {"min": min(values), "median": median(values), "max": max(values)} if values else None
