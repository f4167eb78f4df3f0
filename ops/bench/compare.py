"""Two results set beside each other: every metric's ratio, and whether noise hides a difference."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from ops.bench.intervals import Interval, Resampled, percentile_ratios
from ops.bench.plan import Point
from shared.errors import SettingsError

Verdict = Literal["better", "worse", "no difference", "unknown"]

WORDS: Final[Mapping[Verdict, str]] = {
    "better": "better",
    "worse": "worse",
    "no difference": "no difference that the noise allows to see",
    "unknown": "one value a side: nobody knows the noise",
}
# What is compared: at which percentiles, and whether more of it is better.
_METRICS: Final = (
    ("output_tokens_per_s", (50,), True),
    ("requests_per_s", (50,), True),
    ("ttft_ms", (50, 95, 99), False),
    ("itl_ms", (50, 95, 99), False),
    ("tpot_ms", (50, 95), False),
    ("e2e_ms", (50, 95), False),
    ("queue_ms", (50, 95), False),
)
_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%?")
_SEED: Final = 1


@dataclass(frozen=True, slots=True)
class Change:
    """B over A of one metric at one place. `value_a`, `value_b` in the metric's unit."""

    target: str
    work: str
    part: str
    point: Point
    metric: str
    percent: int
    value_a: float
    value_b: float
    ratio: float
    interval: Interval | None
    more_is_better: bool

    @property
    def verdict(self) -> Verdict:
        if self.interval is None:
            return "unknown"
        if self.interval.low <= 1 <= self.interval.high:
            return "no difference"
        return "better" if (self.ratio > 1) == self.more_is_better else "worse"

    def is_slower_by(self, share: float) -> bool:
        """Whether all that the noise leaves possible is worse than this share of A; 0.05 is 5 %."""
        if self.interval is None:
            return False
        if self.more_is_better:
            return self.interval.high < 1 - share
        return self.interval.low > 1 + share


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes, and what stands in one of the results only."""

    changes: tuple[Change, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    def slower(self, share: float) -> list[Change]:
        return [change for change in self.changes if change.is_slower_by(share)]


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """Set two results beside each other; SettingsError if one of them isn't whole."""
    try:
        sides = [{_place(each): each for each in result["results"]} for result in (a, b)]
        changes = tuple(
            change
            for place, first in sides[0].items()
            if place in sides[1]
            for change in _changes(place, first["samples"], sides[1][place]["samples"])
        )
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise SettingsError(f"a result lacks something: {type(problem).__name__}: {problem}") from problem
    only_a, only_b = (
        tuple(_name(place) for place in mine if place not in other) for mine, other in (sides, sides[::-1])
    )
    return Comparison(changes, only_a, only_b)


_Place = tuple[str, str, str, Point]


def _place(each: Mapping[str, Any]) -> _Place:
    return each["target"], each["work"], each["part"], Point(**each["point"])


def _name(place: _Place) -> str:
    *words, point = place
    return ", ".join((*filter(None, map(str, words)), str(getattr(point, "name", point))))


def _changes(place: _Place, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    target, work, part, point = place
    for metric, percents, more_is_better in _METRICS:
        if not (_any(a[metric]) and _any(b[metric])):
            continue
        values = [Resampled(side).percentiles(percents) for side in (a[metric], b[metric])]
        ratios = percentile_ratios(b[metric], a[metric], percents, _SEED)
        for percent, value_a, value_b, (ratio, interval) in zip(percents, *values, ratios, strict=True):
            yield Change(
                target, work, part, point, metric, percent, value_a, value_b, ratio, interval, more_is_better
            )


def _any(samples: Sequence[Sequence[Sequence[float]]]) -> bool:
    return any(values for repetition in samples for values in repetition)


def as_json(comparison: Comparison, slower: Sequence[Change]) -> dict[str, Any]:
    """Return it as JSON takes it; what is beyond measure is null."""
    return {
        "changes": [{**_plain(change), "verdict": change.verdict} for change in comparison.changes],
        "only_a": list(comparison.only_a),
        "only_b": list(comparison.only_b),
        "slower": [_plain(change) for change in slower],
    }


def _plain(change: Change) -> dict[str, Any]:
    return {name: _finite(value) for name, value in asdict(change).items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if value == float("inf") else value


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return what else differs between two runs, in words: model, machine, load, or that one was stopped."""
    told = []
    for name, path in (
        ("server", ("targets", "server", "host")),
        ("model", ("targets", "server", "model")),
        ("machine", ("machine",)),
        ("mode", ("mode",)),
        ("prefix in common", ("shared_prefix_tokens",)),
        ("forebay", ("versions", "forebay")),
    ):
        values = [_at(result.get("run"), path) for result in (a, b)]
        if values[0] != values[1]:
            told.append(f"{name}: {_in_short(values[0])} / {_in_short(values[1])}")
    told += [
        f"{side} was stopped: {each['stopped']}" for side, each in (("A", a), ("B", b)) if each.get("stopped")
    ]
    return told


def _at(found: Any, path: Sequence[str]) -> Any:
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _in_short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return str(value)


def share(text: str) -> float:
    """Read 5% or 5 as 0.05. SettingsError if it is no percentage."""
    found = _PERCENT.fullmatch(text.strip())
    if found is None:
        raise SettingsError(f"--fail-if-slower {text}: a percentage like 5%")
    return float(found.group(1)) / 100
