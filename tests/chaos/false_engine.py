"""Stands in for everything of the worker that touches MLX: the engine, the model and the memory readings."""

import importlib
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shared.model_facts import ModelFacts
from shared.readings import NO_PREFIXES, MemoryReading
from tests.chaos.false_model import next_token, token_of
from tests.chaos.faults import Plan, Points, do

_PLENTY: Final = 1 << 30
_KV_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class StepResult:
    rows: tuple[Any, ...]
    tokens: list[int]
    elapsed_ms: float
    logprobs: tuple[Any, ...] = ()


@dataclass(frozen=True)
class PrefillResult:
    elapsed_ms: float
    firsts: StepResult | None


class FalseEngine:
    """As the real one: a step is launched before the one before is read, and tokens stay inside till then.

    It checks what it is told: a row decodes once all its ids are prefilled, in order and once each, but
    perhaps for the last one. Where that is prefilled as well, the next token comes at once.
    """

    plan = Plan()
    points: Points
    prefixes = NO_PREFIXES
    rows_and_groups = (0, 0)
    reuse = "none"
    share_tokens = 0

    def __init__(self, *_given: object) -> None:
        self._prefilled: dict[Any, int] = {}
        self._rows: dict[Any, list[int]] = {}
        self._steps: deque[tuple[tuple[Any, ...], list[int]]] = deque()
        self._poison = {token_of(letter): deed for letter, deed in self.plan.poison.items()}
        self.arrays = 0

    @property
    def kv_bytes(self) -> int:
        return sum(map(len, self._rows.values())) + sum(self._prefilled.values())

    @property
    def under_way(self) -> int:
        return len(self._steps)

    def limit_bytes(self, bytes_max: int) -> None:
        """Nothing is kept for later."""

    def begin(self, sequence: Any) -> int:
        assert sequence not in self._prefilled
        return 0

    def limit_prefixes(self, *, keeps: bool) -> None:
        """Nothing of prompts either."""

    def take_prefix_news(self) -> tuple[list[int], list[int]]:
        return [], []

    def prefix_names(self) -> list[int]:
        return []

    def drop(self, sequences: Sequence[Any]) -> None:
        for sequence in sequences:
            self._prefilled.pop(sequence, None)
            self._rows.pop(sequence, None)

    def prefill(self, chunks: Sequence[Any]) -> PrefillResult:
        self.points.passed("prefill")
        self._suffer("prefill", [chunk.sequence for chunk in chunks])
        for chunk in chunks:
            assert chunk.start == self._prefilled.get(chunk.sequence, 0)
            self._prefilled[chunk.sequence] = chunk.start + chunk.tokens
        self._work()
        rows = tuple(chunk.sequence for chunk in chunks if chunk.brings_token)
        firsts = StepResult(rows, [self._decode(sequence) for sequence in rows], 0.0) if rows else None
        self.points.passed("prefilled")
        return PrefillResult(self.plan.step_ms, firsts)

    def launch(self, rows: Sequence[Any]) -> None:
        self.points.passed("launch")
        self._suffer("launch", rows)
        for gone in set(self._rows) - set(rows):
            del self._rows[gone]
        self._steps.append((tuple(rows), [self._decode(sequence) for sequence in rows]))
        self.points.passed("launched")

    def read(self) -> StepResult:
        self.points.passed("read")
        rows, tokens = self._steps.popleft()
        self._suffer("read", rows)
        self._work()
        self.points.passed("was read")
        return StepResult(rows, tokens, self.plan.step_ms)

    def tidy(self) -> None:
        """There is nothing to tidy."""

    def _decode(self, sequence: Any) -> int:
        if sequence not in self._rows:
            assert self._prefilled.pop(sequence, 0) >= len(sequence.ids) - 1
            self._rows[sequence] = list(sequence.ids)
        ids = self._rows[sequence]
        token = next_token(ids, sequence.sampling.choice)
        ids.append(token)
        return token

    def _suffer(self, call: str, rows: Sequence[Any]) -> None:
        if call == self.plan.poison_in and not Path(self.plan.antidote).exists():
            for token in {token for sequence in rows for token in sequence.ids}:
                if token in self._poison:
                    do(self._poison[token])

    def _work(self) -> None:
        time.sleep(self.plan.step_ms / 1000)


# --- the model and its memory -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Loaded:
    facts: ModelFacts
    way: None = None
    head: bool = True
    arrays: int = 0
    prefill_ms_per_token: float = 0.1
    decode_ms_per_step: float = 2.0

    def reserve(self, _slots: int, _free_bytes: int) -> Any:
        from worker.engine.working_set import Reserve  # noqa: PLC0415 (it must find the stand-ins)
        from worker.plan import UNBOUNDED  # noqa: PLC0415 (likewise)

        return Reserve(0, UNBOUNDED)


@dataclass(frozen=True)
class _Device:
    resource_limit: int = 0
    shares_memory: bool = False
    is_gpu: bool = False


@dataclass(frozen=True)
class _Budget:
    kv_bytes: int = _KV_BYTES
    warning: str = ""


def load(
    folder: Any,
    context_tokens: int | None,
    on_progress: Callable[[], None],
    *_given: object,
    **_named: object,
) -> _Loaded:
    on_progress()
    facts = ModelFacts(
        fingerprint=folder.fingerprint,
        family="false",
        context_tokens=min(folder.context_tokens, context_tokens or folder.context_tokens),
        vocabulary=folder.vocabulary,
        weights_bytes=0,
        kv_bytes_per_token=1,
        kv_pad_tokens=1,
        window_tokens=0,
        window_bytes_per_token=0,
        fixed_bytes_per_row=0,
        batches=True,
        why_not="",
    )
    return _Loaded(facts)


def _nothing(*_given: object, **_named: object) -> None:
    """There is nothing to bound or to give back."""


class _Guides:
    """Nobody asks for a grammar, and what compiles them takes long to import."""

    is_asked = False

    def __init__(self, *_given: object) -> None:
        self.prepare = _nothing

    def made(self) -> list[Any]:
        return []


_MODULES: Final[dict[str, dict[str, Any]]] = {
    "grammar": {"GrammarTokens": _Guides, "Guide": _Guides},
    "grammar_desk": {"GrammarDesk": _Guides},
    "engine.batch_engine": {
        "BatchEngine": FalseEngine,
        "PrefillResult": PrefillResult,
        "StepResult": StepResult,
    },
    "engine.model": {"LoadedModel": _Loaded, "load": load},
    "engine.stored_arrays": {"FORMAT": 0, "weights_digest": lambda _model: ""},
    "memory": {
        "Budget": _Budget,
        "DeviceReport": _Device,
        "bound_buffer_cache": _nothing,
        "device_report": _Device,
        "limit_bytes": lambda *_: _PLENTY,
        "budget": lambda *_: _Budget(),
        "kept_bytes": lambda *_: 0,
        "system_bytes": lambda: _PLENTY,
        "available_bytes": lambda: _PLENTY,
        "reading": lambda: MemoryReading(0, 0, 0, 0),
        "give_back": _nothing,
    },
}


def install() -> None:
    """Put the stand-ins in the real modules' places, before anybody imports those."""
    for name, contents in _MODULES.items():
        module = types.ModuleType(f"worker.{name}")
        module.__dict__.update(contents)
        sys.modules[module.__name__] = module
        package, _, own = module.__name__.rpartition(".")
        setattr(importlib.import_module(package), own, module)
