"""Prefill brings the first token of an answer: the very one that a decode step would have drawn."""

import dataclasses
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from shared.messages import Finished, Step
from shared.sampling import LogitBias, Sampling
from tests.worker.tiny_models import tiny
from tests.worker.workbench import Workbench
from worker.engine.batch_engine import BatchEngine
from worker.engine.hooks import restore
from worker.engine.model import LoadedModel
from worker.engine.output_head import OutputHead, output_head
from worker.engine.trial import Together, Trial

TOKENS: Final = 6
SAMPLINGS: Final = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.9, seed=1),
    Sampling(temperature=1.3, seed=2, top_p=0.8, min_p=0.01),
    Sampling(temperature=1.0, seed=3, top_k=9, repetition_penalty=1.4),
    Sampling(temperature=0.0, presence_penalty=1.0, frequency_penalty=0.7, top_logprobs=3),
    Sampling(temperature=0.8, seed=4, logit_bias=(LogitBias(7, 3.0),), top_logprobs=0),
    Sampling(temperature=0.0, grammar="start: /[a-h]+/"),
)


def prompt_of(length: int, variant: int = 0) -> tuple[int, ...]:
    return tuple((7 * place + 5 + variant) % 43 for place in range(length))


def with_one_pass_more(loaded: LoadedModel) -> LoadedModel:
    """Return a model whose first tokens are decoded like all others."""
    return dataclasses.replace(loaded, head=None)


def answered(loaded: LoadedModel, slots: int) -> Workbench:
    bench = Workbench(loaded, slots=slots, quantum_ms=1000)
    for number, sampling in enumerate(SAMPLINGS):
        bench.submit(str(number), prompt_of(3 + 5 * number), TOKENS, sampling=sampling)
        if number % 2:
            bench.turn()
    bench.run()
    return bench


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_whatever_a_row_asks_for_its_answer_is_that_of_decode_steps_alone(slots: int) -> None:
    loaded = tiny("llama", vocabulary=300)
    one, other = answered(loaded, slots), answered(with_one_pass_more(loaded), slots)
    assert one.answers == other.answers
    assert all(len(answer) == TOKENS for answer in one.answers.values())
    for name, told in one.logprobs.items():
        expected = other.logprobs[name]
        assert [each.top_ids for each in told] == [each.top_ids for each in expected]
        np.testing.assert_allclose(
            [each.logprob for each in told], [each.logprob for each in expected], atol=1e-4
        )
    assert one.logprobs["4"], "nothing was compared"


def test_a_row_that_is_flat_is_drawn_exactly_in_its_first_token_too() -> None:
    loaded = tiny("llama", flat=True, vocabulary=800)
    for seed in range(4):
        sampling = Sampling(top_p=0.99, seed=seed)
        answers = [
            Workbench(each).answer(prompt_of(9), TOKENS, sampling=sampling)
            for each in (loaded, with_one_pass_more(loaded))
        ]
        assert answers[0] == answers[1]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of every decode step that is launched."""
    launched: list[int] = []
    launch = BatchEngine.launch

    def counted(engine: BatchEngine, rows: Any) -> None:
        launched.append(len(rows))
        launch(engine, rows)

    monkeypatch.setattr(BatchEngine, "launch", counted)
    return launched


def test_an_answer_of_one_token_takes_no_decode_step(steps: list[int]) -> None:
    bench = Workbench(tiny("llama"))
    assert len(bench.answer(prompt_of(20), 1)) == 1
    assert steps == []


def test_an_answer_that_stops_at_once_takes_no_decode_step(steps: list[int]) -> None:
    loaded = tiny("llama")
    [first] = Workbench(loaded).answer(prompt_of(20), 1)
    bench = Workbench(loaded)
    bench.submit("a", prompt_of(20), 9, stop_ids=(first,))
    bench.run()
    assert bench.answers["a"] == []
    end = bench.ends["a"]
    assert isinstance(end, Finished)
    assert (end.reason, end.index) == ("stop", 0)
    assert steps == []


def test_the_first_token_is_sent_before_the_step_of_all_rows(steps: list[int]) -> None:
    bench = Workbench(tiny("llama"), slots=2)
    bench.submit("runs", prompt_of(20), 50)
    bench.turn()
    bench.submit("comes", prompt_of(30, 1), 50)
    before = len(steps)
    bench.turn()
    told = [message for message in bench.channel.sent if isinstance(message, Step) and message.rows]
    [first] = [step for step in told if "comes" in {row.sequence for row in step.rows}]
    assert (len(first.rows), first.step_ms, first.row_ms) == (1, 0.0, 0.0)
    assert steps[before:] == [2], "it decodes in the same turn"


@pytest.mark.parametrize("lengths", [(60, 61), (49, 53, 58), (111, 48, 50)])
def test_who_ends_with_his_first_token_is_gone_before_others_of_his_prefill_are_copied(
    lengths: tuple[int, ...],
) -> None:
    """Workbench.turn checks that no more is held than was reserved."""
    bench = Workbench(tiny("llama"), quantum_ms=1000, kv_bytes_max=0)
    for place, length in enumerate(lengths):
        bench.submit(str(place), prompt_of(length, place), 1 + place)
    bench.run()
    assert [len(bench.answers[str(place)]) for place in range(len(lengths))] == [*range(1, 1 + len(lengths))]


def test_a_prompt_of_one_token_needs_no_pass_of_its_own(steps: list[int]) -> None:
    assert len(Workbench(tiny("llama")).answer((5,), 3)) == 3
    assert steps == [1, 1, 1]


# --- what a head is -----------------------------------------------------------------------------------------

VOCABULARY: Final = 40
WIDTH: Final = 32


class Tied(nn.Module):
    """Counts the tokens before each one: what the last one's logits are depends on all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        return self.logits(mx.cumsum(self.embed(ids), axis=1))

    def logits(self, hidden: mx.array) -> mx.array:
        return self.embed.as_linear(hidden)


class Untied(Tied):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def logits(self, hidden: mx.array) -> mx.array:
        return mx.tanh(self.out(hidden / 2)) * 3


class ByHand(Untied):
    def logits(self, hidden: mx.array) -> mx.array:
        return hidden @ self.out.weight.T


class LooksAround(Untied):
    """Its logits depend on those of the token before."""

    def logits(self, hidden: mx.array) -> mx.array:
        logits = self.out(hidden)
        return logits + mx.cumsum(logits, axis=1)


def head_of(model: nn.Module) -> OutputHead | None:
    mx.eval(model.parameters())
    return output_head(FalseTrial(model), Together.PADDED)  # type: ignore[arg-type]  # has what is used


class FalseTrial:
    """A model without caches, as heads are found in one."""

    ids_of = Trial.ids_of
    vocabulary = VOCABULARY

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def on_progress(self) -> None:
        """Nobody looks."""

    def new_caches(self, _tokens: int) -> list[Any]:
        return []

    def alone(self, ids: tuple[int, ...]) -> mx.array:
        logits: mx.array = self.model(mx.array([ids]))[0, -1]
        return logits

    def agree(self, one: mx.array, other: mx.array) -> bool:
        return bool(mx.allclose(one, other, atol=1e-5).item())


@pytest.mark.parametrize("kind", [Tied, Untied])
@pytest.mark.parametrize("bits", [0, 8])
def test_a_head_makes_logits_of_each_rows_last_token_only(kind: type[Tied], bits: int) -> None:
    model = kind()
    if bits:
        nn.quantize(model, group_size=32, bits=bits)
    head = head_of(model)
    assert head is not None
    ids = mx.array([[1, 2, 3, 4], [5, 6, 6, 6]])
    whole = model(ids)
    assert whole.shape == (2, 4, VOCABULARY), "the model is changed where nobody asks"
    logits = head.last(lambda: model(ids), [4, 2])
    expected = mx.stack([whole[0, 3], whole[1, 1]])
    np.testing.assert_allclose(np.array(logits), np.array(expected), atol=1e-6)


@pytest.mark.parametrize("kind", [ByHand, LooksAround])
def test_a_model_whose_logits_are_not_a_layers_of_its_own_is_left_as_it_was(kind: type[Tied]) -> None:
    model = kind()
    assert head_of(model) is None
    assert {type(module) for _name, module in model.named_modules()} == {kind, nn.Embedding, nn.Linear}


def test_a_head_is_taken_back_with_all_other_hooks() -> None:
    model = Untied()
    assert head_of(model) is not None
    restore(model)
    assert type(model.out) is nn.Linear


def test_a_pass_that_breaks_leaves_the_model_whole() -> None:
    model = Tied()
    head = head_of(model)
    assert head is not None

    def breaks() -> mx.array:
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError):
        head.last(breaks, [3])
    assert model(mx.array([[1, 2, 3]])).shape == (1, 3, VOCABULARY)


def test_every_family_whose_rows_run_side_by_side_has_one(one_family: str) -> None:
    loaded = tiny(one_family)
    assert (loaded.head is not None) == loaded.facts.batches
