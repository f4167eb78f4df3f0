"""Batches to try the sampler on: logits, parameters of every kind, noise, and what each row said so far."""

from dataclasses import dataclass, replace
from typing import Any, Final

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st

from shared.sampling import LogitBias, Sampling
from tests.worker.exact_sampling import NoiseKey
from worker.engine.history import NO_HISTORY, History, Ids
from worker.engine.sampler import BatchSampler, Draw

WORD_MAX: Final = (1 << 32) - 1

keys = st.tuples(st.integers(0, WORD_MAX), st.integers(0, WORD_MAX))


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows side by side. `logits` is float32, (rows, vocabulary)."""

    logits: Any
    rows: list[Sampling]
    keys: list[NoiseKey]
    texts: list[Ids]

    @property
    def vocabulary(self) -> int:
        return int(self.logits.shape[-1])

    def only(self, places: list[int]) -> "Batch":
        """Return these rows of it, in this order."""
        return Batch(
            self.logits[places],
            [self.rows[place] for place in places],
            [self.keys[place] for place in places],
            [self.texts[place] for place in places],
        )

    def draw(self) -> Draw:
        """Draw, and draw again what isn't covered, as the engine does."""
        sampler = BatchSampler(self.rows, self.vocabulary)
        logits, before = mx.array(self.logits), sampler.start(self.texts)
        return exactly(sampler, logits, self.keys, before)


def exactly(
    sampler: BatchSampler, logits: mx.array, noise: list[NoiseKey], before: History = NO_HISTORY
) -> Draw:
    draw = sampler.draw(logits, noise, before)
    return draw if draw.covered is None else sampler.draw_again(logits, noise, draw, before)


def parts(text: Ids) -> tuple[list[int], list[int]]:
    """Return a text's prompt and answer."""
    prompt = len(text.ids) - text.answered
    return list(text.ids[:prompt]), list(text.ids[prompt:])


@st.composite
def biases(draw: st.DrawFn, vocabulary: int) -> tuple[LogitBias, ...]:
    tokens = draw(st.lists(st.integers(0, vocabulary - 1), max_size=8, unique=True))
    values = st.one_of(st.sampled_from((-100.0, 100.0, 0.0)), st.floats(-10, 10))
    return tuple(LogitBias(token, draw(values)) for token in tokens)


@st.composite
def samplings(draw: st.DrawFn, vocabulary: int) -> Sampling:
    """Return parameters, of which each is as often left alone as not."""
    none = Sampling(
        temperature=draw(st.one_of(st.just(0.0), st.just(1.0), st.floats(0.05, 2.0))),
        top_logprobs=draw(st.one_of(st.just(-1), st.integers(0, 20))),
    )
    return replace(
        none,
        top_p=draw(st.one_of(st.just(1.0), st.floats(0.01, 0.999))),
        top_k=draw(st.one_of(st.just(0), st.integers(1, 40), st.integers(1, vocabulary))),
        min_p=draw(st.one_of(st.just(0.0), st.floats(0.0, 1.0))),
        repetition_penalty=draw(st.one_of(st.just(1.0), st.floats(0.5, 2.0))),
        presence_penalty=draw(st.one_of(st.just(0.0), st.floats(-2.0, 2.0))),
        frequency_penalty=draw(st.one_of(st.just(0.0), st.floats(-2.0, 2.0))),
        logit_bias=draw(st.one_of(st.just(()), biases(vocabulary))),
    )


@st.composite
def texts(draw: st.DrawFn, vocabulary: int) -> Ids:
    """Return ids, few of them different, so that some come often."""
    few = draw(st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=12))
    ids = tuple(draw(st.lists(st.sampled_from(few), min_size=1, max_size=30)))
    return Ids(ids, draw(st.integers(0, len(ids) - 1)))


@st.composite
def batches(draw: st.DrawFn, rows_max: int = 16) -> Batch:
    """Return a batch. Its vocabulary may be smaller than a narrow sort; logits may be minus infinity."""
    count = draw(st.integers(1, rows_max))
    vocabulary = draw(st.one_of(st.integers(2, 60), st.integers(500, 1500)))
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    logits = numbers.standard_normal((count, vocabulary)) * numbers.choice((0.01, 1.0, 4.0, 20.0), (count, 1))
    logits[numbers.random(logits.shape) < draw(st.sampled_from((0.0, 0.3)))] = -np.inf
    logits[:, draw(st.integers(0, vocabulary - 1))] = numbers.standard_normal()
    return Batch(
        logits.astype(np.float32),
        [draw(samplings(vocabulary)) for _ in range(count)],
        [draw(keys) for _ in range(count)],
        [draw(texts(vocabulary)) for _ in range(count)],
    )
