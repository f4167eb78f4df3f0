"""The other side: mlx-lm's BatchGenerator with its defaults, its own samplers and logits processors."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from ops.engine.side import Contestant, Request, Token
from shared.model_facts import ModelFacts
from shared.sampling import Sampling

Sampler = Callable[[mx.array], mx.array]


class MlxLm:
    """One BatchGenerator. A token is there when `next` returns, which may prefill before it does."""

    def __init__(self, model: Any) -> None:
        self._generator: Any = BatchGenerator(model)  # its methods carry no annotations
        self._rows: dict[int, str] = {}
        self._samplers: dict[Sampling, Sampler] = {}

    def add(self, requests: Sequence[Request]) -> None:
        numbers = self._generator.insert(
            [list(request.ids) for request in requests],
            max_tokens=[request.tokens_max for request in requests],
            samplers=[self._sampler(request) for request in requests],
            logits_processors=[processors_of(request.sampling) for request in requests],
        )
        self._rows.update(zip(numbers, (request.name for request in requests), strict=True))

    def _sampler(self, request: Request) -> Sampler:
        """Share one sampler among rows that draw alike: only then does mlx-lm draw for all in one call."""
        if request.seeded:
            return seeded_sampler(request.sampling)
        return self._samplers.setdefault(request.sampling, sampler_of(request.sampling))

    def turn(self) -> list[Token]:
        _prompts, answers = self._generator.next()
        now = time.perf_counter()
        return [Token(self._rows[answer.uid], now) for answer in answers]

    @property
    def kv_bytes(self) -> int:
        return int(self._generator.prompt_cache_nbytes)

    def close(self) -> None:
        mx.synchronize(self._generator.stream)
        self._generator.close()


def sampler_of(sampling: Sampling) -> Sampler:
    """Return mlx-lm's sampler that draws as this says, with mlx-lm's own noise."""
    sampler: Sampler = make_sampler(
        temp=0.0 if sampling.greedy else sampling.temperature,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        top_k=sampling.top_k,
    )
    return sampler


def processors_of(sampling: Sampling) -> list[Any]:
    """Return mlx-lm's processors for biases and penalties, which look back for 20 tokens."""
    processors: list[Any] = make_logits_processors(
        logit_bias={each.token: each.bias for each in sampling.logit_bias},
        repetition_penalty=sampling.repetition_penalty if sampling.repetition_penalty != 1 else None,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
    )
    return processors


def seeded_sampler(sampling: Sampling) -> Sampler:
    """Return a sampler with a key of its own: BatchGenerator has no seeds, so whoever embeds it writes this.

    (mlx_lm.server has seeds, and runs a seeded request alone, after all others have ended.)
    """
    key = mx.random.key(sampling.seed)

    def draw(logprobs: mx.array) -> mx.array:
        nonlocal key
        key, noise = mx.random.split(key)
        return mx.random.categorical(logprobs / sampling.temperature, key=noise)

    return draw


def contestant(model: Any, facts: ModelFacts) -> Contestant:
    return Contestant("mlx-lm", facts, lambda: MlxLm(model))
