"""The same rows with and without a grammar, on one engine: tokens a second of decode steps."""

import gc
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from llguidance import LLMatcher

from ops.engine.lines import Line, Spread
from ops.engine.ours import Ours, first_times
from ops.engine.side import Request
from ops.engine.stage import Stage, tokens_between
from ops.engine.subject import Subject
from ops.grammar.words import made_up_tokenizer
from ops.load.progress import Progress
from ops.load.statistics import median
from shared.lane_settings import INTERACTIVE
from shared.model_folder import TOKENIZER_FILE
from shared.sampling import Sampling
from worker import memory
from worker.engine.model import warm_up
from worker.grammar import GrammarTokens
from worker.grammar_desk import GrammarDesk

WITH: Final = "json_schema"
WITHOUT: Final = "free"
ROWS: Final = (1, 16)
_PROMPT_TOKENS: Final = 64
_SETTLED_TOKENS: Final = 3  # of each row, before steps are timed
_SPARE_TOKENS: Final = 256
_WARM_STEPS: Final = 8
# What people ask for: objects in a list. It is so long that no answer ends while it is measured.
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "role": {"enum": ["reader", "writer", "owner"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
            "address": {
                "type": "object",
                "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
                "required": ["street", "number"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "age", "role", "tags", "address"],
        "additionalProperties": False,
    },
}

Values = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How many steps are timed, and how often each side runs."""

    steps: int
    repeats: int


class Bench:
    """One model that is warmed up, and the desk that compiles the grammar for it."""

    def __init__(
        self, subject: Subject, device: memory.DeviceReport, plan: Plan, progress: Progress, *, made_up: bool
    ) -> None:
        self._device = device
        self._plan = plan
        self._progress = progress
        with progress.phase("warming up"):
            self._loaded = warm_up(subject.model, subject.folder, None, lambda: None)
        self._times = first_times(self._loaded)
        vocabulary = self._loaded.facts.vocabulary
        folder = Path(subject.folder.path)
        self._desk = GrammarDesk(
            (lambda: _made_up_tokens(vocabulary))
            if made_up
            else (lambda: GrammarTokens.read(folder / TOKENIZER_FILE, vocabulary))
        )
        self._grammar = str(LLMatcher.grammar_from_json_schema(json.dumps(_SCHEMA)))

    def values(self, rows: int) -> Values:
        """Run both sides in turn, in alternating order, after an uncounted run of each."""
        values: Values = {side: {"tokens_per_s": [], "cpu_ms_per_token": []} for side in (WITH, WITHOUT)}
        with self._progress.phase(f"{rows} rows"):
            for number in range(self._plan.repeats + 1):
                for side in (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH):
                    steps = self._plan.steps if number else _WARM_STEPS
                    measured = self._measured(side, rows, steps, number)
                    if number:
                        for name, value in measured.items():
                            values[side][name].append(value)
        return values

    def _measured(self, side: str, rows: int, steps: int, number: int) -> dict[str, float]:
        gc.collect()
        mx.clear_cache()
        ours = Ours(
            self._loaded,
            self._times,
            self._device,
            slots=rows,
            quantum_ms=INTERACTIVE.prefill_quantum_ms,
            grammars=self._desk,
        )
        try:
            return _decode(ours, self._requests(side, rows, number), steps)
        finally:
            ours.close()

    def _requests(self, side: str, rows: int, number: int) -> list[Request]:
        grammar = self._grammar if side == WITH else ""
        dice = random.Random(number)  # noqa: S311 (prompts, not secrets)
        vocabulary = self._loaded.facts.vocabulary
        return [
            Request(
                name=f"row-{row}",
                ids=tuple(dice.choices(range(vocabulary), k=_PROMPT_TOKENS)),
                tokens_max=self._plan.steps + _WARM_STEPS + _SPARE_TOKENS,
                sampling=Sampling(temperature=0.7, seed=row, grammar=grammar),
            )
            for row in range(rows)
        ]


def _decode(ours: Ours, requests: Sequence[Request], steps: int) -> dict[str, float]:
    """Time decode steps alone, once all rows have begun to answer."""
    stage = Stage(ours)
    names = [request.name for request in requests]
    stage.add(requests)
    stage.until(names, _SETTLED_TOKENS)
    since_s, cpu_since_s = stage.now_s, time.process_time()
    stage.on(names[-1], steps)
    until_s, cpu_s = stage.now_s, time.process_time() - cpu_since_s
    tokens = tokens_between(stage.times, since_s, until_s)
    return {"tokens_per_s": tokens / (until_s - since_s), "cpu_ms_per_token": 1000 * cpu_s / tokens}


def _made_up_tokens(vocabulary: int) -> GrammarTokens:
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        file = Path(folder) / TOKENIZER_FILE
        file.write_text(json.dumps(made_up_tokenizer(vocabulary)), "utf-8")
        return GrammarTokens.read(file, vocabulary)


def lines_of(rows: int, values: Values) -> list[Line]:
    """Return what was measured with the grammar over what was without, repeat by repeat."""
    work = f"{rows} row" if rows == 1 else f"{rows} rows"

    def line(measured: str, key: str, unit: Any) -> Line:
        ours, theirs = values[WITH][key], values[WITHOUT][key]
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        return Line(work, measured, unit, median(ours), median(theirs), Spread.of(ratios))

    return [
        line("tokens/s of decode steps", "tokens_per_s", "tokens/s"),
        line("processor time a token", "cpu_ms_per_token", "ms"),
    ]
