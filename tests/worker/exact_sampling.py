"""Which token a row must draw: the sampling rules said again, plainly, in double precision.

Biases and penalties are said again token by token, in single precision: not a bit may differ.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from shared.sampling import Sampling

NoiseKey = tuple[int, int]

_CLOSE: Final = 1e-5
_SCORES_CLOSE: Final = 1e-4
_WORD: Final = 1 << 32
_FACTORS: Final = (0x7FEB352D, 0x846CA68B)


def mixed(x: Any) -> Any:
    """Wellons' lowbias32, on an array of unsigned integers of 64 bits that hold 32."""
    for shift, factor in zip((16, 15), _FACTORS, strict=True):
        x = (x ^ (x >> shift)) * factor % _WORD
    return x ^ (x >> 16)


def unmixed(x: int) -> int:
    """Return what `mixed` makes `x` of."""
    x ^= x >> 16
    x = x * pow(_FACTORS[1], -1, _WORD) % _WORD
    x ^= (x >> 15) ^ (x >> 30)
    x = x * pow(_FACTORS[0], -1, _WORD) % _WORD
    return x ^ (x >> 16)


def key_with(token: int, hashed: int) -> NoiseKey:
    """Return a key under which a token's hash is `hashed`: 0 favours it most, 2^32 - 1 least."""
    return 0, (unmixed(hashed) - int(mixed(np.uint64(token)))) % _WORD


def gumbel(count: int, key: NoiseKey) -> Any:
    """Return the noise of the tokens 0 to count - 1."""
    ids = np.arange(count, dtype=np.uint64)
    hashed = mixed((mixed(ids ^ np.uint64(key[0])) + np.uint64(key[1])) % _WORD)
    return -np.log(-np.log1p(-(hashed.astype(np.float64) + 0.5) / _WORD))


def changed(logits: Any, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> Any:
    """Return float32 logits after biases, then the repetition penalty, then presence and frequency."""
    logits = np.array(logits, dtype=np.float32)
    for each in sampling.logit_bias:
        logits[each.token] += np.float32(each.bias)
    for token in {*prompt, *answer}:
        factor = np.float32(sampling.repetition_penalty)
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token in set(answer):
        times = np.float32(list(answer).count(token))
        toll = np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * times
        logits[token] -= toll
    return logits


def log_softmax(logits: Any) -> Any:
    """Return log probabilities in double precision."""
    shifted = np.asarray(logits, dtype=np.float64) - np.max(logits)
    return shifted - np.log(np.exp(shifted).sum())


def kept_probabilities(logits: Any, sampling: Sampling) -> Any:
    """Return each token's probability, those left out having 0.

    Temperature first, then top_k, top_p and min_p.
    """
    scaled = np.asarray(logits, dtype=np.float64) / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    kept = weights.copy()
    if 0 < sampling.top_k < len(weights):
        kept[order[sampling.top_k :]] = 0.0
    kept[order[~_within(kept[order], sampling.top_p)]] = 0.0
    kept[weights < sampling.min_p] = 0.0
    return kept / kept.sum()


def _within(weights: Any, top_p: float) -> Any:
    """Say which of the weights, the largest first, have less than `top_p` of the mass before them."""
    before = np.cumsum(weights) - weights
    return (before < top_p * weights.sum()) | (top_p == 1)


def is_close_call(logits: Any, sampling: Sampling) -> bool:
    """Whether a token is kept or left out by so little that single precision may decide otherwise."""
    scaled = np.asarray(logits, dtype=np.float64) / sampling.temperature
    weights = np.sort(np.exp(scaled - scaled.max()))[::-1]
    if sampling.min_p and bool((abs(weights[1:] - sampling.min_p) < _CLOSE * sampling.min_p).any()):
        return True
    if 0 < sampling.top_k < len(weights):
        if weights[sampling.top_k] > (1 - _CLOSE) * weights[sampling.top_k - 1]:
            return True
        weights = weights[: sampling.top_k]
    before = (np.cumsum(weights) - weights) / weights.sum()
    return sampling.top_p < 1 and bool((abs(before - sampling.top_p) < _CLOSE).any())


def drawn(logits: Any, sampling: Sampling, key: NoiseKey) -> set[int]:
    """Return the token that a row draws; more than one where their scores are equal but for rounding."""
    if sampling.greedy:
        return {int(np.argmax(logits))}
    probabilities = kept_probabilities(logits, sampling)
    with np.errstate(divide="ignore"):
        scores = np.log(probabilities) + gumbel(len(probabilities), key)
    return set(np.flatnonzero(scores >= scores.max() - _SCORES_CLOSE).tolist())
