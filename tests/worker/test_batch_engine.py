"""The batch engine on tiny models: whatever happens around a row, it answers as mlx-lm does for it alone."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.sampling import Sampling, noise_key
from tests.worker.exact_sampling import NoiseKey, drawn
from tests.worker.tiny_models import VOCABULARY, Reference, clamped, greedy_alone, tiny
from tests.worker.workbench import Workbench
from worker.engine.flatness import Flatness
from worker.engine.history import History
from worker.engine.model import LoadedModel
from worker.engine.sampler import BatchSampler, Draw

LENGTHS: Final = (1, 2, 3, 5, 16, 17, 18, 39, 41, 42, 100, 245, 256, 300)
TOKENS_MAX: Final = 16
BATCHING: Final = ("llama", "deepseek_v3")


def prompt_of(length: int, variant: int) -> tuple[int, ...]:
    numbers = random.Random(1000 * length + variant)
    return tuple(numbers.randrange(VOCABULARY) for _ in range(length))


@functools.cache
def alone(family: str, length: int, variant: int) -> Reference:
    return greedy_alone(tiny(family).model, prompt_of(length, variant), TOKENS_MAX)


@dataclass(frozen=True, slots=True)
class Deed:
    """Submit a prompt, some turns after the deed before; cancel it after `cancelled_after` turns, if any."""

    turns_before: int
    length: int
    variant: int
    max_tokens: int
    cancelled_after: int | None


deeds = st.builds(
    Deed,
    turns_before=st.integers(0, 6),
    length=st.sampled_from(LENGTHS),
    variant=st.integers(0, 1),
    max_tokens=st.integers(1, TOKENS_MAX),
    cancelled_after=st.none() | st.integers(0, 20),
)


def carry_out(bench: Workbench, schedule: list[Deed]) -> None:
    """Submit and cancel at the turns that the schedule says, then let all that is left end."""
    cancels: dict[int, list[str]] = {}
    turn = 0
    for number, deed in enumerate(schedule):
        for _ in range(deed.turns_before):
            cancel_due(bench, cancels, turn)
            bench.turn()
            turn += 1
        bench.submit(str(number), prompt_of(deed.length, deed.variant), deed.max_tokens)
        if deed.cancelled_after is not None:
            cancels.setdefault(turn + deed.cancelled_after, []).append(str(number))
    while cancels:
        cancel_due(bench, cancels, turn)
        bench.turn()
        turn += 1
    bench.run()


def cancel_due(bench: Workbench, cancels: dict[int, list[str]], turn: int) -> None:
    for name in cancels.pop(turn, []):
        bench.cancel(name)


@pytest.mark.parametrize("family", BATCHING)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(schedule=st.lists(deeds, min_size=1, max_size=10), slots=st.integers(1, 6))
def test_rows_that_come_and_go_get_the_tokens_they_would_get_alone(
    family: str, schedule: list[Deed], slots: int
) -> None:
    """The workbench also checks in each turn that memory stays within what admission counts with."""
    bench = Workbench(tiny(family), slots=slots, kv_bytes_max=0)
    carry_out(bench, schedule)
    for number, deed in enumerate(schedule):
        tokens = bench.answers[str(number)]
        alone(family, deed.length, deed.variant).assert_same(tokens)
        if deed.cancelled_after is None:
            assert len(tokens) == deed.max_tokens


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    schedule=st.lists(deeds, min_size=4, max_size=12),
    kv_bytes_max=st.sampled_from((200_000, 500_000, 1_000_000)),
)
def test_room_is_kept_for_later_only_within_the_budget(schedule: list[Deed], kv_bytes_max: int) -> None:
    bench = Workbench(tiny("llama"), slots=6, kv_bytes_max=kv_bytes_max)
    carry_out(bench, schedule)


def test_room_that_a_busy_batch_keeps_is_given_back_when_rows_are_gone_though_others_prefill() -> None:
    bench = Workbench(tiny("llama"), slots=8)
    for number in range(6):
        bench.submit(str(number), prompt_of(300, 0), 2)
    for _ in range(60):
        bench.turn()
    bench.submit("long", prompt_of(300, 1), 2)
    bench.turn()
    facts = bench.facts
    assert "long" in bench.scheduler.names
    assert 0 < bench.engine.kv_bytes <= facts.batch_bytes([302])
    bench.run()


def test_a_prompt_on_its_way_holds_room_for_itself_from_its_first_chunk_and_no_more() -> None:
    bench = Workbench(tiny("llama"), quantum_ms=40)
    bench.submit("long", prompt_of(300, 0), 2)
    for _ in range(4):
        bench.turn()
        assert bench.engine.kv_bytes == bench.facts.row_bytes(299)
    bench.run()


@pytest.mark.parametrize("family", BATCHING)
def test_whole_prompts_of_similar_lengths_are_prefilled_together(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Workbench(tiny(family), slots=8, quantum_ms=1000)
    calls: list[tuple[int, ...]] = []
    call = type(bench.engine._loaded.model).__call__

    def counted(model: object, ids: mx.array, cache: object) -> mx.array:
        calls.append(ids.shape)
        return call(model, ids, cache)

    monkeypatch.setattr(type(bench.engine._loaded.model), "__call__", counted)
    lengths = (16, 17, 18, 39, 41, 42, 100)
    for length in lengths:
        bench.submit(str(length), prompt_of(length, 0), TOKENS_MAX)
    bench.run()
    assert calls[:4] == [(3, 18), (3, 42), (1, 100), (7, 1)]
    for length in lengths:
        alone(family, length, 0).assert_same(bench.answers[str(length)])


# --- sampled rows -----------------------------------------------------------------------------------------

SAMPLINGS: Final = (
    Sampling(temperature=0.8, seed=1),
    Sampling(temperature=1.0, seed=2, top_k=20),
    Sampling(temperature=1.3, seed=3, top_p=0.9),
    Sampling(temperature=0.7, seed=4, min_p=0.05),
    Sampling(temperature=1.0, seed=5, top_k=50, top_p=0.8, min_p=0.01),
    Sampling(temperature=1.0, seed=5, choice=1, top_k=50, top_p=0.8, min_p=0.01),
    Sampling(temperature=0.0),
)


def sampled_alone(loaded: LoadedModel, samplings: tuple[Sampling, ...]) -> dict[str, list[int]]:
    bench = Workbench(loaded)
    return {
        str(number): bench.answer(prompt_of(5 + number, 0), TOKENS_MAX, sampling=sampling)
        for number, sampling in enumerate(samplings)
    }


@functools.cache
def llama_alone() -> dict[str, list[int]]:
    return sampled_alone(tiny("llama"), SAMPLINGS)


def submit_sampled(bench: Workbench, number: int, sampling: Sampling, emitted: list[int]) -> None:
    bench.submit(
        str(number), prompt_of(5 + number, 0), TOKENS_MAX, sampling=sampling, emitted=emitted, attempt=2
    )


def test_answers_with_other_seeds_or_choices_differ() -> None:
    loaded = tiny("llama")
    answers = {
        tuple(Workbench(loaded).answer((1, 2, 3), 12, sampling=Sampling(seed=seed, choice=choice)))
        for seed in (0, 1)
        for choice in (0, 1)
    }
    assert len(answers) == 4


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6), (6, 4, 2, 0, 5, 3, 1)])
@pytest.mark.parametrize("slots", [3, 8])
def test_sampled_rows_draw_in_a_batch_what_they_draw_alone(order: tuple[int, ...], slots: int) -> None:
    expected = llama_alone()
    bench = Workbench(tiny("llama"), slots=slots)
    for number in order:
        submit_sampled(bench, number, SAMPLINGS[number], [])
        bench.turn()
    bench.run()
    assert bench.answers == expected


@pytest.mark.parametrize("cut", [1, 7, TOKENS_MAX - 1])
def test_a_resumed_answer_goes_on_with_the_tokens_it_would_have_had(cut: int) -> None:
    expected = llama_alone()
    bench = Workbench(tiny("llama"), slots=8)
    for number, sampling in enumerate(SAMPLINGS):
        submit_sampled(bench, number, sampling, expected[str(number)][:cut])
    bench.run()
    assert bench.answers == expected


# --- rows that are drawn again ----------------------------------------------------------------------------

WIDE: Final = 800
FLAT_SAMPLING: Final = tuple(Sampling(top_p=0.99, seed=seed) for seed in range(3))


def flat(family: str = "llama") -> LoadedModel:
    """Its 800 tokens are nearly equally likely: the 512 most likely ones never hold 99 % of the mass."""
    return tiny(family, flat=True, vocabulary=WIDE)


def count_redraws(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    redraws: list[int] = []
    draw_again = BatchSampler.draw_again

    def counted(
        sampler: BatchSampler,
        logits: mx.array,
        keys: list[NoiseKey],
        draw: Draw,
        before: History,
        masks: mx.array | None,
    ) -> Draw:
        redraws.append(logits.shape[0])
        return draw_again(sampler, logits, keys, draw, before, masks)

    monkeypatch.setattr(BatchSampler, "draw_again", counted)
    return redraws


@pytest.mark.parametrize("family", ["llama", "llama_sliding", "qwen3_next"])
@pytest.mark.parametrize("runs", [lambda loaded: loaded, clamped], ids=["batch", "one row"])
def test_rows_that_are_drawn_again_get_the_same_tokens_in_company(
    runs: Callable[[LoadedModel], LoadedModel], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step ahead was computed from a token that didn't hold: it is rolled back and run again."""
    samplings = (*FLAT_SAMPLING, Sampling(temperature=0.0), Sampling(seed=9), Sampling(seed=8, top_k=30))
    redraws = count_redraws(monkeypatch)
    monkeypatch.setattr(Flatness, "missed", lambda *_: None)
    expected = sampled_alone(clamped(flat(family)), samplings)
    assert len(redraws) == len(FLAT_SAMPLING) * TOKENS_MAX
    bench = Workbench(runs(flat(family)), slots=8, kv_bytes_max=0)
    for number, sampling in enumerate(samplings):
        submit_sampled(bench, number, sampling, [])
        bench.turn()
    bench.run()
    assert bench.answers == expected
    assert len(redraws) > len(FLAT_SAMPLING) * TOKENS_MAX


@pytest.mark.parametrize("runs", [lambda loaded: loaded, clamped], ids=["batch", "one row"])
def test_a_row_that_was_flat_once_has_more_sorted_and_draws_the_same_without_a_redraw(
    runs: Callable[[LoadedModel], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    redraws = count_redraws(monkeypatch)
    with monkeypatch.context() as never:
        never.setattr(Flatness, "missed", lambda *_: None)
        expected = sampled_alone(flat("llama"), FLAT_SAMPLING)
    redraws.clear()
    assert sampled_alone(runs(flat("llama")), FLAT_SAMPLING) == expected
    assert len(redraws) == len(FLAT_SAMPLING)


def test_the_tokens_of_a_row_that_is_drawn_again_are_the_exact_ones() -> None:
    """Checked against a full sort of the logits after everything that came before."""
    loaded = flat()
    prompt = prompt_of(5, 0)
    tokens = Workbench(loaded).answer(prompt, 8, sampling=FLAT_SAMPLING[0])
    ids = list(prompt)
    for index, token in enumerate(tokens):
        logits = np.array(loaded.model(mx.array([ids]))[0, -1])
        assert token in drawn(logits, FLAT_SAMPLING[0], noise_key(0, 0, index))
        ids.append(token)


# --- models that run one row at a time --------------------------------------------------------------------

KINDS: Final = ("llama", "mamba2", "gemma3_text", "qwen3_5", "baichuan_m1", "llama4")


@pytest.mark.parametrize("family", KINDS)
def test_a_model_that_does_not_batch_answers_one_after_the_other(family: str) -> None:
    bench = Workbench(clamped(tiny(family)), slots=4)
    lengths = (45, 1, 300)
    for length in lengths:
        bench.submit(str(length), prompt_of(length, 0), TOKENS_MAX)
    bench.run()
    for length in lengths:
        alone(family, length, 0).assert_same(bench.answers[str(length)])
        assert len(bench.answers[str(length)]) == TOKENS_MAX


@pytest.mark.parametrize("family", ["mamba2", "qwen3_5"])
@pytest.mark.parametrize("runs", [lambda loaded: loaded, clamped], ids=["batch", "one row"])
def test_a_cancelled_row_leaves_nothing_to_the_next_one(
    runs: Callable[[LoadedModel], LoadedModel], family: str
) -> None:
    bench = Workbench(runs(tiny(family)))
    bench.submit("first", prompt_of(45, 0), TOKENS_MAX)
    for _ in range(5):
        bench.turn()
    bench.cancel("first")
    tokens = bench.answer(prompt_of(17, 0), TOKENS_MAX)
    alone(family, 17, 0).assert_same(tokens)
