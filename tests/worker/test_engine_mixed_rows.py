"""Rows drawn in different ways, side by side: each says what it would alone, also when it is resumed."""

import dataclasses
import functools
import random
from collections import Counter
from typing import Final

import mlx.core as mx
import numpy as np
import pytest

from shared.messages import RowLogprobs, Submit
from shared.sampling import LogitBias, Sampling
from tests.worker.tiny_models import VOCABULARY, Reference, tiny
from tests.worker.workbench import Workbench

FAMILIES: Final = ("llama", "qwen3_5")
TOKENS: Final = 20
_CLOSE: Final = 2e-3

# Two tokens are forbidden, and one is wished for.
BIASES: Final = (LogitBias(3, -100.0), LogitBias(250, -100.0), LogitBias(77, 2.5))
GREEDY: Final = Sampling(temperature=0.0)
SAMPLINGS: Final = {
    "greedy": GREEDY,
    "greedy, told": dataclasses.replace(GREEDY, top_logprobs=0),
    "repetition": dataclasses.replace(GREEDY, repetition_penalty=1.8),
    "presence": dataclasses.replace(GREEDY, presence_penalty=1.9, top_logprobs=3),
    "frequency": dataclasses.replace(GREEDY, frequency_penalty=1.9),
    "encouraged": dataclasses.replace(GREEDY, presence_penalty=-2.0, repetition_penalty=0.8),
    "biased": dataclasses.replace(GREEDY, logit_bias=BIASES),
    "all, greedy": dataclasses.replace(
        GREEDY,
        repetition_penalty=1.4,
        presence_penalty=1.0,
        frequency_penalty=1.6,
        logit_bias=BIASES,
        top_logprobs=20,
    ),
    "plain": Sampling(seed=1),
    "plain, told": Sampling(seed=1, choice=1, top_logprobs=5),
    "cut": Sampling(temperature=1.2, seed=2, top_k=20, top_p=0.9),
    "cut, biased": Sampling(temperature=0.9, seed=3, top_k=5, min_p=0.02, logit_bias=BIASES),
    "cut, penalised": Sampling(
        temperature=0.8, seed=4, top_p=0.7, repetition_penalty=1.5, frequency_penalty=2.0
    ),
    "all": Sampling(
        temperature=1.1,
        seed=5,
        top_k=40,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=1.5,
        logit_bias=BIASES,
        top_logprobs=2,
    ),
}
NAMES: Final = tuple(SAMPLINGS)


def prompt_of(name: str) -> tuple[int, ...]:
    """A prompt in which tokens recur; some are of one length, so that they are prefilled together."""
    numbers = random.Random(f"{name} 4")
    some = [numbers.randrange(VOCABULARY) for _ in range(6)]
    return tuple(numbers.choice(some) for _ in range(numbers.choice((1, 9, 9, 9, 30, 64))))


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What one row said, and what it told beside it."""

    tokens: list[int]
    logprobs: list[RowLogprobs]


@functools.cache
def alone(family: str, name: str) -> Answer:
    bench = Workbench(tiny(family))
    bench.submit(name, prompt_of(name), TOKENS, sampling=SAMPLINGS[name])
    bench.run()
    return Answer(bench.answers[name], bench.logprobs[name])


def assert_same_logprobs(told: list[RowLogprobs], expected: list[RowLogprobs]) -> None:
    """The numbers are the same but for rounding; so is who is named, but for equals that change places."""
    assert len(told) == len(expected)
    for ours, theirs in zip(told, expected, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=_CLOSE)
        assert ours.top_logprobs == pytest.approx(theirs.top_logprobs, abs=_CLOSE)
        known = dict(zip(theirs.top_ids, theirs.top_logprobs, strict=True))
        for id_, logprob in zip(ours.top_ids, ours.top_logprobs, strict=True):
            assert known.get(id_, theirs.top_logprobs[-1]) == pytest.approx(logprob, abs=_CLOSE)


def assert_as_alone(family: str, bench: Workbench) -> None:
    for name, sampling in SAMPLINGS.items():
        expected = alone(family, name)
        assert bench.answers[name] == expected.tokens, name
        assert len(bench.answers[name]) == TOKENS
        assert_same_logprobs(bench.logprobs[name], expected.logprobs)
        assert len(expected.logprobs) == (TOKENS if sampling.wants_logprobs else 0)


@pytest.mark.parametrize(
    ("order", "slots"),
    [(NAMES, len(NAMES)), (NAMES[::-1], 3), (NAMES[::2] + NAMES[1::2], len(NAMES))],
    ids=["on", "back", "odd"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_says_what_it_would_alone(family: str, order: tuple[str, ...], slots: int) -> None:
    bench = Workbench(tiny(family), slots=slots, quantum_ms=1000)
    for place, name in enumerate(order):
        bench.submit(name, prompt_of(name), TOKENS, sampling=SAMPLINGS[name])
        if place % 3 == 0:
            bench.turn()
    bench.run()
    assert_as_alone(family, bench)


@pytest.mark.parametrize("turns", [1, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_are_dropped_and_come_back_go_on_as_they_would_have(family: str, turns: int) -> None:
    """Every third row at a time, in the midst of the others; those go on meanwhile."""
    bench = Workbench(tiny(family), slots=len(NAMES), quantum_ms=1000)
    for name in NAMES:
        bench.submit(name, prompt_of(name), TOKENS, sampling=SAMPLINGS[name])
    for first in range(3):
        turn_often(bench, turns)
        dropped = [held for name in NAMES[first::3] if (held := bench.drop(name)) is not None]
        turn_often(bench, 2)
        bring_back(bench, dropped)
    bench.run()
    assert_as_alone(family, bench)


@pytest.mark.parametrize("kept", [1, 7, TOKENS - 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_a_worker_has_never_seen_go_on_where_another_left_them(family: str, kept: int) -> None:
    bench = Workbench(tiny(family), slots=len(NAMES), quantum_ms=1000)
    for name, sampling in SAMPLINGS.items():
        emitted = alone(family, name).tokens[:kept]
        bench.submit(name, prompt_of(name), TOKENS, sampling=sampling, emitted=emitted, attempt=2)
    bench.run()
    for name in NAMES:
        expected = alone(family, name)
        assert bench.answers[name] == expected.tokens, name
        assert_same_logprobs(bench.logprobs[name], expected.logprobs[kept:])


def turn_often(bench: Workbench, turns: int) -> None:
    for _ in range(turns):
        bench.turn()


def bring_back(bench: Workbench, dropped: list[Submit]) -> None:
    for held in dropped:
        bench.resume(held)


# --- what a row says alone is right -----------------------------------------------------------------------


def changed(logits: np.ndarray, sampling: Sampling, prompt: tuple[int, ...], said: list[int]) -> np.ndarray:
    """Biases and penalties as the documentation of Sampling has them, one token after another."""
    logits = logits.astype(np.float64)
    for each in sampling.logit_bias:
        logits[each.token] += each.bias
    for token in {*prompt, *said}:
        factor = sampling.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, times in Counter(said).items():
        logits[token] -= sampling.presence_penalty + times * sampling.frequency_penalty
    return logits


@pytest.mark.parametrize("name", [name for name in NAMES if SAMPLINGS[name].greedy])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_greedy_row_takes_the_most_likely_token_after_penalties(family: str, name: str) -> None:
    model, prompt, sampling = tiny(family).model, prompt_of(name), SAMPLINGS[name]
    tokens = alone(family, name).tokens
    every = np.array(model(mx.array([(*prompt, *tokens)]))[0])
    for place, token in enumerate(tokens):
        logits = changed(every[len(prompt) - 1 + place], sampling, prompt, tokens[:place])
        assert logits[token] > logits.max() - Reference.TIE, place


@pytest.mark.parametrize("name", [name for name in NAMES if SAMPLINGS[name].wants_logprobs])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_the_models_own(family: str, name: str) -> None:
    model, prompt = tiny(family).model, prompt_of(name)
    answer = alone(family, name)
    every = np.array(model(mx.array([(*prompt, *answer.tokens)]))[0]).astype(np.float64)
    for place, (token, told) in enumerate(zip(answer.tokens, answer.logprobs, strict=True)):
        logits = every[len(prompt) - 1 + place]
        logprobs = logits - np.logaddexp.reduce(logits)
        highest = np.sort(logprobs)[::-1][: max(0, SAMPLINGS[name].top_logprobs)]
        assert told.logprob == pytest.approx(logprobs[token], abs=_CLOSE)
        assert told.top_logprobs == pytest.approx(highest.tolist(), abs=_CLOSE)
        assert told.top_logprobs == pytest.approx(logprobs[list(told.top_ids)].tolist(), abs=_CLOSE)


@pytest.mark.parametrize(
    "name", [name for name, row in SAMPLINGS.items() if row.has_penalties or row.logit_bias]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_penalties_and_biases_make_a_difference_here(family: str, name: str) -> None:
    """Otherwise rows that got each other's would say the same."""
    plain = dataclasses.replace(
        SAMPLINGS[name],
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias=(),
    )
    tokens = Workbench(tiny(family)).answer(prompt_of(name), TOKENS, sampling=plain)
    assert tokens != alone(family, name).tokens
