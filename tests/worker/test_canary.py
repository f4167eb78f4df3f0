"""The canary: one token of a real model through the real engine, and nothing of it left."""

from collections.abc import Callable

import pytest

from tests.worker.tiny_models import VOCABULARY, clamped, tiny
from tests.worker.workbench import PLENTY
from worker.engine import canary
from worker.engine.batch_engine import BatchEngine, StepResult
from worker.engine.model import LoadedModel


def engine_of(loaded: LoadedModel) -> BatchEngine:
    return BatchEngine(loaded, PLENTY)


@pytest.mark.parametrize(
    "make", [lambda: tiny("llama"), lambda: tiny("mamba2"), lambda: clamped(tiny("llama"))]
)
def test_a_canary_makes_a_token_and_leaves_nothing_behind(make: Callable[[], LoadedModel]) -> None:
    engine = engine_of(make())
    arrays = engine.arrays
    canary.prove(engine, VOCABULARY)
    assert engine.kv_bytes == 0
    assert engine.under_way == 0
    assert engine.arrays == arrays


def test_a_token_that_is_no_token_is_found_out() -> None:
    with pytest.raises(RuntimeError, match="outside the vocabulary of 1"):
        canary.prove(engine_of(tiny("qwen3")), 1)


def test_what_goes_wrong_with_a_canary_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_engine: BatchEngine) -> StepResult:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(BatchEngine, "read", read)
    with pytest.raises(RuntimeError, match="the device is gone"):
        canary.prove(engine_of(tiny("llama")), VOCABULARY)
