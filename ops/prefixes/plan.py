"""What every work is given: how long prompts are, how often it is done, and where."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.load.progress import Progress
from shared.model_folder import ModelFolder

# By what was measured, after the name of who did it: `shared.kv_bytes`. One value a repeat.
Values = dict[str, list[float]]
Measured = dict[str, float]


class NotMeasured(RuntimeError):
    """Something didn't happen that was to be measured; the message says what."""


@dataclass(frozen=True, slots=True)
class Arm:
    """So many rows on one beginning of so many tokens."""

    rows: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.tokens}"


@dataclass(frozen=True, slots=True)
class Span:
    """A number of tokens, from `least` to `most`."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Crowd:
    """Rows that have nothing in common: `waves` times so many, each wave when the one before has ended."""

    rows: int
    waves: int
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Scale:
    """How much there is of everything; all lengths are in tokens.

    In process: rows have suffixes of `own` tokens, and `steps` are timed once all have begun to answer;
    `spare` is what a row may say while others still prefill. Served: `requests` are asked on a system prompt
    of `system`; a conversation has `turns` of `turn` tokens each, and answers of `answer`; a worker is killed
    when a stream on a prompt of `resumed` has said `killed_after`, and it ends after as many more.
    """

    arms: tuple[Arm, ...]
    own: Span
    steps: int
    spare: int
    crowd: Crowd
    requests: int
    system: int
    turns: int
    turn: Span
    answer: int
    resumed: int
    killed_after: int

    @property
    def arm_context_tokens(self) -> int:
        """The longest that a row of an arm may get."""
        return max(arm.tokens for arm in self.arms) + self.own.most + self.answer_most

    @property
    def answer_most(self) -> int:
        """What a row of an arm may say."""
        return self.steps + self.spare

    @property
    def crowd_context_tokens(self) -> int:
        return self.crowd.prompt_tokens + self.crowd.answer_tokens


_SERVED_REQUESTS: Final = 10
_SERVED_TURNS: Final = 10

SCALES: Final[Mapping[str, Scale]] = {
    "small": Scale(
        arms=(Arm(3, 320),), own=Span(8, 16), steps=4, spare=32,
        crowd=Crowd(rows=3, waves=2, prompt_tokens=80, answer_tokens=4),
        requests=3, system=300, turns=3, turn=Span(70, 90), answer=16, resumed=400, killed_after=24,
    ),
    "cpu": Scale(
        arms=(Arm(16, 1000),), own=Span(32, 64), steps=64, spare=256,
        crowd=Crowd(rows=16, waves=2, prompt_tokens=256, answer_tokens=32),
        requests=_SERVED_REQUESTS, system=1000, turns=_SERVED_TURNS, turn=Span(200, 400), answer=64,
        resumed=4000, killed_after=96,
    ),
    "gpu": Scale(
        arms=(Arm(16, 8192), Arm(32, 4096)), own=Span(32, 64), steps=128, spare=512,
        crowd=Crowd(rows=16, waves=4, prompt_tokens=2048, answer_tokens=128),
        requests=_SERVED_REQUESTS, system=1000, turns=_SERVED_TURNS, turn=Span(200, 400), answer=64,
        resumed=4000, killed_after=96,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `folder` is the model's, None of one that is on no disk; gateways live in `scratch`."""

    folder: ModelFolder | None
    scratch: Path
    scale: Scale
    repeats: int
    progress: Progress

    @property
    def served(self) -> ModelFolder:
        """What is served; only models on a disk can be."""
        assert self.folder is not None, "a model with random weights is on no disk"
        return self.folder


def in_turn(
    what: str,
    names: Sequence[str],
    measure: Callable[[str, int], Measured],
    plan: Plan,
    *,
    warms_up: bool = True,
) -> Values:
    """Let all of them do it, again and again; the order alternates. Run 0 warms up and isn't counted.

    What else the machine does meets all of them. Values are named after who they are of.
    """
    values: Values = {}
    for number in range(0 if warms_up else 1, plan.repeats + 1):
        for name in names if number % 2 else reversed(names):
            told = f"run {number} of {plan.repeats}" if number else "warm-up"
            with plan.progress.phase(f"{what}, {name}: {told}"):
                measured = measure(name, number)
            if number:
                for key, value in measured.items():
                    values.setdefault(f"{name}.{key}", []).append(value)
    return values
