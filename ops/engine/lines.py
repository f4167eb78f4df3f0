"""What is made of measured values: lines of two numbers, a ratio, and an aim that was met or missed. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ops.engine.works import QUIET_FACTOR
from ops.load.statistics import median
from worker.engine.grouping import BOUND, SHORT_TOKENS

OURS: Final = "engine"
THEIRS: Final = "mlx-lm"
OURS_8_BIT: Final = "engine, 8-bit"

# By contestant, then by what was measured: one value a repeat.
Values = Mapping[str, Mapping[str, Sequence[float]]]

Unit = Literal["tokens/s", "MB", "ms", "s", "x", "tokens"]


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound that a ratio is to keep on one side of."""

    side: Literal["at least", "at most"]
    bound: float

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.side == "at least" else value <= self.bound


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of the repeats' ratios, and the least and the largest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Spread":
        return cls(median(ratios), min(ratios), max(ratios))


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was measured of one work: medians of both sides, in the unit, and what is judged."""

    work: str
    measured: str
    unit: Unit
    ours: float
    theirs: float
    ratio: Spread | None = None
    aim: Aim | None = None

    @property
    def verdict(self) -> str:
        if self.aim is None or self.ratio is None:
            return ""
        return "met" if self.aim.is_met(self.ratio.median) else "missed"


_HELD: Final = Aim("at most", BOUND)


def lines_of(work: str, values: Values, quantum_ms: float) -> list[Line]:
    """Return the lines that a work's values make."""
    ours, theirs = (OURS_8_BIT, OURS) if work == "kv8" else (OURS, THEIRS)
    pair = _Pair(work, values[ours], values[theirs])
    return _LINES[work](pair, quantum_ms)


class _Pair:
    """The values of the two sides of one work."""

    def __init__(
        self, work: str, ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]
    ) -> None:
        self._work = work
        self._ours = ours
        self._theirs = theirs

    def compared(self, measured: str, unit: Unit, key: str, aim: Aim | None = None) -> Line:
        """Judge ours / theirs, repeat by repeat: each pair ran one after the other."""
        ours, theirs = self._ours[key], self._theirs[key]
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        return Line(self._work, measured, unit, median(ours), median(theirs), Spread.of(ratios), aim)

    def each(self, measured: str, unit: Unit, key: str, aim: Aim | None = None) -> Line:
        """Judge ours alone, if there is an aim; theirs stands beside it."""
        ours, theirs = self._ours[key], self._theirs[key]
        spread = Spread.of(ours) if aim else None
        return Line(self._work, measured, unit, median(ours), median(theirs), spread, aim)

    def held(self) -> Line:
        """Set what the caches take against what the rows in them hold, and judge ours."""
        ours, theirs = (
            [kv / held for kv, held in zip(side["kv_bytes"], side["held_bytes"], strict=True)]
            for side in (self._ours, self._theirs)
        )
        measured = f"KV bytes / what the rows hold ({SHORT_TOKENS} tokens at least)"
        return Line(self._work, measured, "x", median(ours), median(theirs), Spread.of(ours), _HELD)


def _decode(pair: _Pair, speed: Aim | None, memory: Aim | None = None) -> list[Line]:
    return [
        pair.compared("tokens/s of decode steps", "tokens/s", "tokens_per_s", speed),
        pair.compared("processor time a token", "ms", "cpu_ms_per_token"),
        pair.compared("KV bytes", "MB", "kv_bytes", memory),
        pair.held(),
        pair.compared("peak memory beside the weights", "MB", "peak_bytes"),
    ]


def _equal(pair: _Pair, _quantum_ms: float) -> list[Line]:
    return _decode(pair, Aim("at least", 1.0))


def _mixed(pair: _Pair, _quantum_ms: float) -> list[Line]:
    return _decode(pair, Aim("at least", 2.0), Aim("at most", 0.2))


def _kv8(pair: _Pair, _quantum_ms: float) -> list[Line]:
    return _decode(pair, None)


def _samplers(pair: _Pair, _quantum_ms: float) -> list[Line]:
    return _decode(pair, Aim("at least", 2.0))


def _seeded(pair: _Pair, _quantum_ms: float) -> list[Line]:
    return [
        pair.compared("others' p95 beside an unseeded row", "ms", "quiet_p95_ms"),
        pair.each("their p95 beside a seeded one / that", "x", "of_quiet", Aim("at most", 1.1)),
        pair.each("their longest gap beside it", "ms", "longest_ms"),
    ]


def _arrival(pair: _Pair, quantum_ms: float) -> list[Line]:
    allowed = f"{QUIET_FACTOR:g} x quiet + {quantum_ms:.0f} ms"
    return [
        pair.compared("streams' p95, quiet", "ms", "quiet_p95_ms"),
        pair.each("while the prompt prefills", "ms", "p95_ms"),
        pair.each(f"that / ({allowed})", "x", "of_allowed", Aim("at most", 1.0)),
        pair.each("their longest gap (the stall)", "ms", "longest_ms"),
        pair.each("the newcomer's first token", "s", "first_token_s"),
    ]


def _first(pair: _Pair, _quantum_ms: float) -> list[Line]:
    at_most = Aim("at most", 1.0)
    return [
        pair.compared("time to first token, alone", "ms", "alone_ms", at_most),
        pair.compared("among streams", "ms", "among_ms", at_most),
    ]


_LINES: Final[Mapping[str, Callable[[_Pair, float], list[Line]]]] = {
    "equal": _equal,
    "mixed": _mixed,
    "kv8": _kv8,
    "samplers": _samplers,
    "seeded": _seeded,
    "arrival": _arrival,
    "first": _first,
}
