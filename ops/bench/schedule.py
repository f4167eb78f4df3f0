"""What is done in which order: repetitions around everything, so that a slow minute meets all alike. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ops.bench.figures import Arm
from ops.bench.plan import Plan, Point, Work
from ops.load.arrivals import Lengths, dice
from shared.limits import BENCH_CONCURRENCY_MAX

ALONE: Final = "interactive alone"
BESIDE: Final = "interactive beside batch"
PEAK: Final = "peak"
OVER: Final = "overload"

TIMES_TOO_MANY: Final = 10
_CHATS: Final = 8
_SPREAD: Final = 0.5  # of mixed lengths' logarithms: one in twenty is beyond 2.3 times the median
_WIDTH: Final = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One pass to be made; `points` has one for each request, with its own lengths."""

    arm: Arm
    repetition: int
    points: tuple[Point, ...]

    @property
    def title(self) -> str:
        return f"{self.arm.target} {self.repetition}: {self.arm.name}"


def schedule(plan: Plan, targets: Sequence[str], works: Sequence[Work]) -> tuple[Step, ...]:
    """Return all steps. The first target is the server; lanes, overload and death are its alone.

    A worker is killed once, however many repetitions there are.
    """
    return tuple(step for work in works for step in _steps(plan, targets, work))


def requests(plan: Plan, steps: Sequence[Step]) -> int:
    """Return how many requests that is, the warm-up ones among them."""
    return sum(len(step.points) + plan.warm_up for step in steps)


def _steps(plan: Plan, targets: Sequence[str], work: Work) -> Iterator[Step]:
    server = targets[0]
    for number in range(1, plan.repetitions + 1):
        # Who goes second finds a warmer machine; so each does in turn.
        order = targets if number % 2 else tuple(reversed(targets))
        if work == "sweep":
            for point in plan.axes.points():
                points = (point,) * plan.requests_of(point)
                yield from (Step(Arm(target, work, "", point), number, points) for target in order)
        elif work == "mixed":
            at = plan.axes.middle
            mixed = mixed_points(at, plan.requests_of(at), plan.seed, number)
            yield from (Step(Arm(target, work, "", at), number, mixed) for target in order)
        elif work == "death" and number == 1:
            at = plan.axes.middle
            yield Step(Arm(server, work, "", at), number, (at,) * plan.requests_of(at))
        elif work != "death":
            yield from _pair(plan, server, work, number)


def _pair(plan: Plan, server: str, work: Work, number: int) -> Iterator[Step]:
    at = plan.axes.middle
    if work == "lanes":
        chat = Point(1, at.prompt_tokens, at.output_tokens)
        for part in (ALONE, BESIDE):
            yield Step(Arm(server, work, part, chat), number, (chat,) * min(plan.requests or _CHATS, _CHATS))
        return
    full = Point(max(plan.axes.concurrency), at.prompt_tokens, at.output_tokens)
    yield Step(Arm(server, work, PEAK, full), number, (full,) * plan.requests_of(full))
    too_many = min(BENCH_CONCURRENCY_MAX, TIMES_TOO_MANY * full.concurrency)
    yield Step(Arm(server, work, OVER, full), number, (full,) * too_many)


def mixed_points(at: Point, count: int, seed: int, repetition: int) -> tuple[Point, ...]:
    """Return points around this one: lengths of a log-normal kind, up to four times as long or short."""
    numbers = dice(seed, "mixed", repetition)
    prompts, outputs = (
        Lengths(middle, _SPREAD, max(1, middle // _WIDTH), _WIDTH * middle)
        for middle in (at.prompt_tokens, at.output_tokens)
    )
    return tuple(
        Point(at.concurrency, prompts.draw(numbers), outputs.draw(numbers), at.rate_hz) for _ in range(count)
    )
