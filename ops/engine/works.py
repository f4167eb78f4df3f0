"""The works that sides are set to, and what is measured of each."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ops.engine.side import Contestant, Request, Side, held_bytes
from ops.engine.stage import Stage, gaps_ms, tokens_between
from ops.load.statistics import median, percentile
from shared.sampling import LogitBias, Sampling

QUIET_FACTOR: Final = 1.5  # how much slower than undisturbed streams may be, beside a quantum

_SPARE_TOKENS: Final = 256  # what a row may make while others still prefill
_SETTLED_TOKENS: Final = 3  # of each row, before steps are timed
_PROMPTS_SEED: Final = 20
_FIRSTS: Final = 7  # newcomers, one after the other; the first of them isn't counted
_FIRST_TOKENS: Final = 3  # of an answer of which only the first counts

GREEDY: Final = Sampling(temperature=0.0)
USUAL: Final = Sampling(temperature=0.7, seed=1)
MANY: Final = (
    GREEDY,
    Sampling(temperature=0.7, seed=1),
    Sampling(temperature=0.8, top_p=0.9, seed=2),
    Sampling(temperature=0.7, top_k=20, seed=3),
    Sampling(temperature=0.8, min_p=0.05, seed=4),
    Sampling(temperature=0.7, repetition_penalty=1.1, seed=5),
    Sampling(temperature=1.0, seed=6),
    Sampling(temperature=1.0, top_p=0.95, seed=7),
    Sampling(temperature=1.0, top_k=50, seed=8),
    Sampling(temperature=1.0, min_p=0.1, seed=9),
    Sampling(temperature=0.7, presence_penalty=0.5, frequency_penalty=0.3, seed=10),
    Sampling(temperature=0.6, top_p=0.8, seed=11),
    Sampling(temperature=0.9, top_k=40, top_p=0.95, seed=12),
    Sampling(temperature=0.6, top_k=20, top_p=0.95, min_p=0.01, seed=13),
    Sampling(temperature=0.8, logit_bias=(LogitBias(5, 2.0), LogitBias(7, -4.0)), seed=14),
    Sampling(temperature=1.3, seed=15),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How many rows, and their prompts' lengths in tokens. `steps` are timed where throughput is measured.

    `gaps` is how many steps a quiet or disturbed stretch has: its p95 leaves one in twenty out, such as the
    one in which a row joins.
    """

    rows: int
    equal: int
    long: int
    short: int
    streams: int
    arriving: int
    steps: int
    gaps: int

    @property
    def context_tokens(self) -> int:
        """The longest that a row may get."""
        longest = max(self.equal, self.long, self.short, self.arriving)
        return longest + self.steps + 3 * self.gaps + _SPARE_TOKENS


SCALES: Final[Mapping[str, Scale]] = {
    "small": Scale(rows=4, equal=12, long=120, short=8, streams=3, arriving=100, steps=4, gaps=4),
    "cpu": Scale(rows=16, equal=64, long=2048, short=64, streams=7, arriving=2048, steps=32, gaps=40),
    "gpu": Scale(rows=16, equal=512, long=16_384, short=256, streams=7, arriving=2048, steps=128, gaps=200),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a work is done: its lengths, the model's vocabulary, and what a piece of prefill may take."""

    scale: Scale
    vocabulary: int
    quantum_ms: float


Measured = dict[str, float]
Measure = Callable[[Side, Contestant, Setting], Measured]


# --- throughput -------------------------------------------------------------------------------------------


def _equal(side: Side, who: Contestant, setting: Setting) -> Measured:
    rows = _rows("row", setting, setting.scale.equal, [GREEDY] * setting.scale.rows)
    return _decode(side, who, setting, (rows,))


def _mixed(side: Side, who: Contestant, setting: Setting) -> Measured:
    """Let the long one in first, so that the short ones are short when steps are timed."""
    scale = setting.scale
    long = _rows("long", setting, scale.long, [GREEDY])
    short = _rows("short", setting, scale.short, [GREEDY] * (scale.rows - 1))
    return _decode(side, who, setting, (long, short))


def _samplers(side: Side, who: Contestant, setting: Setting) -> Measured:
    scale = setting.scale
    samplings = [MANY[number * len(MANY) // scale.rows] for number in range(scale.rows)]
    return _decode(side, who, setting, (_rows("row", setting, scale.equal, samplings),))


def _decode(side: Side, who: Contestant, setting: Setting, arrivals: Sequence[Sequence[Request]]) -> Measured:
    """Let rows in, one group after another; time decode steps alone, once all have begun to answer."""
    stage = Stage(side)
    for requests in arrivals:
        stage.add(requests)
        stage.until([request.name for request in requests], _SETTLED_TOKENS)
    since_s, cpu_s = stage.now_s, time.process_time()
    stage.on(arrivals[-1][-1].name, setting.scale.steps)
    until_s, cpu_s = stage.now_s, time.process_time() - cpu_s
    tokens = tokens_between(stage.times, since_s, until_s)
    return {
        "tokens_per_s": tokens / (until_s - since_s),
        "cpu_ms_per_token": 1000 * cpu_s / tokens,
        "kv_bytes": float(side.kv_bytes),
        "held_bytes": float(held_bytes(who.facts, stage.lengths)),
    }


# --- what others feel -------------------------------------------------------------------------------------


def _seeded(side: Side, _who: Contestant, setting: Setting) -> Measured:
    """Measure others' gaps beside an unseeded row, then a seeded one, then an unseeded one again.

    So only the seed differs, and what steps get longer by meanwhile cancels out.
    """
    scale = setting.scale
    others = _rows("other", setting, scale.equal, [USUAL] * (scale.rows - 1))
    own = Sampling(temperature=USUAL.temperature, seed=77)
    guests = [
        *_rows("before", setting, scale.equal, [USUAL], tokens_max=scale.gaps),
        *_rows("seeded", setting, scale.equal, [own], tokens_max=scale.gaps, seeded=True),
        *_rows("after", setting, scale.equal, [USUAL], tokens_max=scale.gaps),
    ]
    stage = Stage(side)
    names = _begun(stage, others)
    gaps: list[list[float]] = []
    for guest in guests:
        came_s = stage.now_s
        stage.add([guest])
        stage.until([guest.name], scale.gaps)
        gaps.append(gaps_ms(stage.times, names, came_s, stage.now_s))
    before, beside, after = gaps
    return _felt((percentile(before, 95) + percentile(after, 95)) / 2, beside)


def _arrival(side: Side, _who: Contestant, setting: Setting) -> Measured:
    """Measure others' gaps before, and while a long prompt prefills, up to its first token."""
    scale = setting.scale
    [newcomer] = _rows("newcomer", setting, scale.arriving, [GREEDY])
    stage = Stage(side)
    names = _begun(stage, _rows("stream", setting, scale.equal, [GREEDY] * scale.streams))
    began_s = stage.now_s
    stage.on(names[0], scale.gaps)
    came_s = stage.now_s
    stage.add([newcomer])
    stage.until([newcomer.name], 1)
    first_s = stage.now_s
    quiet = gaps_ms(stage.times, names, began_s, came_s)
    felt = _felt(percentile(quiet, 95), gaps_ms(stage.times, names, came_s, first_s))
    allowed_ms = QUIET_FACTOR * felt["quiet_p95_ms"] + setting.quantum_ms
    return {**felt, "of_allowed": felt["p95_ms"] / allowed_ms, "first_token_s": first_s - came_s}


def _first(side: Side, _who: Contestant, setting: Setting) -> Measured:
    """Measure the time to the first token of short prompts, alone and then among streams."""
    stage = Stage(side)
    alone_ms = _firsts_ms(stage, "alone", setting)
    _begun(stage, _rows("stream", setting, setting.scale.equal, [GREEDY] * (setting.scale.rows - 1)))
    return {"alone_ms": median(alone_ms), "among_ms": median(_firsts_ms(stage, "among", setting))}


def _firsts_ms(stage: Stage, name: str, setting: Setting) -> list[float]:
    """Let newcomers in, each when the one before has ended; return the time to each one's first token."""
    took_ms: list[float] = []
    samplings = [GREEDY] * _FIRSTS
    for newcomer in _rows(name, setting, setting.scale.short, samplings, tokens_max=_FIRST_TOKENS):
        came_s = stage.now_s
        stage.add([newcomer])
        stage.until([newcomer.name], _FIRST_TOKENS)
        took_ms.append(1000 * (stage.times[newcomer.name][0] - came_s))
    return took_ms[1:]


def _begun(stage: Stage, requests: Sequence[Request]) -> list[str]:
    """Let rows in and wait until all answer; return their names."""
    names = [request.name for request in requests]
    stage.add(requests)
    stage.until(names, _SETTLED_TOKENS)
    return names


def _felt(quiet_ms: float, disturbed: Sequence[float]) -> Measured:
    p95_ms = percentile(disturbed, 95)
    return {
        "quiet_p95_ms": quiet_ms,
        "p95_ms": p95_ms,
        "of_quiet": p95_ms / quiet_ms,
        "longest_ms": max(disturbed),
    }


def _rows(
    name: str,
    setting: Setting,
    prompt_tokens: int,
    samplings: Sequence[Sampling],
    *,
    tokens_max: int | None = None,
    seeded: bool = False,
) -> list[Request]:
    """Make rows whose prompts are random, and the same in every run."""
    scale = setting.scale
    numbers = random.Random(f"{_PROMPTS_SEED} {name}")  # noqa: S311 (prompts, not secrets)
    most = tokens_max or scale.steps + 3 * scale.gaps + _SPARE_TOKENS
    return [
        Request(
            name=f"{name}-{place}",
            ids=tuple(numbers.choices(range(setting.vocabulary), k=prompt_tokens)),
            tokens_max=most,
            sampling=sampling,
            seeded=seeded,
        )
        for place, sampling in enumerate(samplings)
    ]


WORKS: Final[Mapping[str, Measure]] = {
    "equal": _equal,
    "mixed": _mixed,
    "kv8": _mixed,
    "samplers": _samplers,
    "seeded": _seeded,
    "arrival": _arrival,
    "first": _first,
}
