"""What is measured: points of load, how each is pressed, and what may be asked for. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

from shared.errors import SettingsError
from shared.limits import (
    BENCH_CONCURRENCY_MAX,
    BENCH_POINTS_MAX,
    BENCH_RATE_HZ_MAX,
    BENCH_REPETITIONS_MAX,
    BENCH_REQUESTS_MAX,
    BENCH_SECONDS_MAX,
    CONTEXT_TOKENS_MAX,
)

Number = TypeVar("Number", int, float)
Work = Literal["sweep", "lanes", "mixed", "overload", "death"]
WORKS: Final[tuple[Work, ...]] = get_args(Work)
USUAL_WORKS: Final[tuple[Work, ...]] = ("sweep", "lanes", "mixed")

_REQUESTS_MIN: Final = 8
_TURNS: Final = 2  # requests of each stream in one pass


@dataclass(frozen=True, slots=True)
class Point:
    """A load: so many streams at a time, prompts and answers of so many tokens.

    With a `rate_hz` requests come by a timetable that waits for nobody, and the streams are what it leads to.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    rate_hz: float | None = None

    @property
    def name(self) -> str:
        load = f"{self.concurrency} streams" if self.rate_hz is None else f"{self.rate_hz:g}/s"
        return f"{load}, {self.prompt_tokens} → {self.output_tokens} tokens"


@dataclass(frozen=True, slots=True)
class Axes:
    """The values of each axis, in order and without doubles."""

    concurrency: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    rates_hz: tuple[float, ...] = ()

    @property
    def middle(self) -> Point:
        rate_hz = _middle(self.rates_hz) if self.rates_hz else None
        return Point(
            _middle(self.concurrency), _middle(self.prompt_tokens), _middle(self.output_tokens), rate_hz
        )

    def points(self) -> tuple[Point, ...]:
        """Return the points of a sweep: along one axis at a time, the others at their middle."""
        at = self.middle
        if self.rates_hz:
            loads = [
                Point(at.concurrency, at.prompt_tokens, at.output_tokens, rate) for rate in self.rates_hz
            ]
        else:
            loads = [Point(streams, at.prompt_tokens, at.output_tokens) for streams in self.concurrency]
        prompts = [
            Point(at.concurrency, prompt, at.output_tokens, at.rate_hz) for prompt in self.prompt_tokens
        ]
        outputs = [
            Point(at.concurrency, at.prompt_tokens, output, at.rate_hz) for output in self.output_tokens
        ]
        return tuple(dict.fromkeys((*loads, *prompts, *outputs)))


def _middle(values: Sequence[Number]) -> Number:
    return values[(len(values) - 1) // 2]


@dataclass(frozen=True, slots=True)
class Plan:
    """One run, with everything bounded. `requests` is of one pass; None: two for each stream, at least 8.

    `warm_up` requests go before every pass and aren't counted. `shared_prefix_tokens` is how much all prompts
    have in common. SettingsError if something is out of bounds.
    """

    works: tuple[Work, ...]
    axes: Axes
    requests: int | None
    warm_up: int
    repetitions: int
    shared_prefix_tokens: int
    seed: int
    seconds_max: float
    timeout_s: float

    def __post_init__(self) -> None:
        _within("requests", (self.requests or 1,), 1, BENCH_REQUESTS_MAX)
        _within("warm-up", (self.warm_up,), 0, BENCH_CONCURRENCY_MAX)
        _within("repetitions", (self.repetitions,), 1, BENCH_REPETITIONS_MAX)
        _within("concurrency", self.axes.concurrency, 1, BENCH_CONCURRENCY_MAX)
        _within("prompt-tokens", self.axes.prompt_tokens, 1, CONTEXT_TOKENS_MAX)
        _within("output-tokens", self.axes.output_tokens, 1, CONTEXT_TOKENS_MAX)
        _within("rate", self.axes.rates_hz, 0.001, BENCH_RATE_HZ_MAX)
        _within("shared-prefix", (self.shared_prefix_tokens,), 0, CONTEXT_TOKENS_MAX)
        _within("max-seconds", (self.seconds_max,), 1, BENCH_SECONDS_MAX)
        _within("timeout", (self.timeout_s,), 1, BENCH_SECONDS_MAX)
        if self.shared_prefix_tokens >= min(self.axes.prompt_tokens):
            raise SettingsError("--shared-prefix is all of the shortest prompt, or more: make it shorter")
        if self.axes.rates_hz and self.requests_of(self.axes.middle) > BENCH_CONCURRENCY_MAX:
            # A server that never answers has all of them at once.
            raise SettingsError(f"--requests goes up to {BENCH_CONCURRENCY_MAX} with --rate")

    def requests_of(self, point: Point) -> int:
        """Return how many requests one pass of this point has."""
        return self.requests or max(_REQUESTS_MIN, _TURNS * point.concurrency)


def _within(option: str, values: Sequence[float], low: float, high: float) -> None:
    if len(values) > BENCH_POINTS_MAX:
        raise SettingsError(f"--{option} takes up to {BENCH_POINTS_MAX} values")
    for value in values:
        if not low <= value <= high:
            raise SettingsError(f"--{option} {value:g}: it goes from {low:g} to {high:g}")


def numbers(option: str, text: str, kind: type[Number]) -> tuple[Number, ...]:
    """Read a list like 1,4,16 in ascending order, without doubles. SettingsError if it is none."""
    try:
        found = tuple(sorted({kind(word) for word in text.split(",")}))
    except ValueError as problem:
        raise SettingsError(f"--{option} {text}: numbers with commas between them, like 1,4,16") from problem
    return found


def works(chosen: Sequence[str]) -> tuple[Work, ...]:
    """Return what was asked for in the order in which it is done; the usual ones if nothing was."""
    unknown = [name for name in chosen if name not in WORKS]
    if unknown:
        raise SettingsError(f"--scenario {unknown[0]}: there are {', '.join(WORKS)}")
    return tuple(work for work in WORKS if work in chosen) if chosen else USUAL_WORKS
