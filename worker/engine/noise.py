"""The noise that tokens are drawn with: a hash of the row's key and the token's id, made a Gumbel number."""

from typing import Final

import mlx.core as mx

NoiseKey = tuple[int, int]

_SERIES_BELOW: Final = 0.02
_BELOW_ONE: Final = 1 - 2.0**-24


def with_noise(scaled: mx.array, ids: mx.array, noise: mx.array) -> mx.array:
    """Return scaled + Gumbel noise; -log of an exponential number is a Gumbel number.

    To be compiled into one pass: by itself it is some thirty.
    """
    return scaled - mx.log(exponential(ids, noise))


def exponential(ids: mx.array, noise: mx.array) -> mx.array:
    """Return exponential numbers, float32, hashed from ids (1 or rows, n) and keys, uint32 (rows, 2).

    The smallest ones decide, so they keep their full precision: below _SERIES_BELOW, -log(1 - w) is a series.
    """
    hashed = _mixed(_mixed(ids ^ noise[:, :1]) + noise[:, 1:])
    # Float32 rounds the largest hashes up to 1, whose exponential number would be infinite: no token could
    # bear it, however likely.
    w = mx.minimum((hashed.astype(mx.float32) + 0.5) * 2.0**-32, _BELOW_ONE)
    return mx.where(w < _SERIES_BELOW, w * (1 + w * (0.5 + w / 3)), -mx.log(1 - w))


def _mixed(x: mx.array) -> mx.array:
    """Mix the bits of uint32 numbers (Wellons' "lowbias32", a bijection with nearly ideal avalanche)."""
    x = (x ^ (x >> 16)) * mx.array(0x7FEB352D, dtype=mx.uint32)
    x = (x ^ (x >> 15)) * mx.array(0x846CA68B, dtype=mx.uint32)
    return x ^ (x >> 16)
