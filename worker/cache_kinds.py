"""What each kind of mlx-lm's layer caches holds of a row, and how it is kept from holding more than that.

mlx-lm's caches grow by steps from wherever they stand, and a window holds a whole chunk on top of itself
until its next token. Here growth ends at multiples of one step and windows are cut after each chunk, so that
what a row holds is known from its length alone.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from shared.limits import CONTEXT_TOKENS_MAX

TOKENS_STEP: Final = 256


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Bytes of one row, all layers together: as ModelFacts has them."""

    kv_bytes_per_token: int = 0
    window_tokens: int = 0
    window_bytes_per_token: int = 0
    fixed_bytes: int = 0


def padded(count: int, step: int) -> int:
    """Round up to a multiple of `step`."""
    return -(-count // step) * step


def grow_by(caches: Iterable[Any], tokens: int) -> None:
    """Let caches grow by so many tokens at once when they are next full."""
    for part in _parts(caches):
        if type(part) is KVCache or _is_window(part):
            part.step = tokens


def trim_windows(caches: Iterable[Any]) -> None:
    """Cut windows that a chunk has left too long, as mlx-lm does when they take their next token."""
    for part in _parts(caches):
        if _is_window(part) and part.keys is not None and part.keys.shape[2] > part.max_size:
            keys, values, offset, keep, size, _ = part.state
            # Contiguous, because a slice would hold on to all of the array that it is a part of.
            kept = [mx.contiguous(array[..., -size:, :]) for array in (keys, values)]
            part.state = (*kept, offset, keep, size, size)


def arrays_in(caches: Iterable[Any]) -> int:
    """Count the arrays that layer caches hold."""
    return sum(_arrays_among(vars(part).values()) for part in _parts(caches))


def _arrays_among(values: Iterable[Any]) -> int:
    lists = (value for value in values if isinstance(value, list | tuple))
    return sum(isinstance(value, mx.array) for value in values) + sum(map(_arrays_among, lists))


def row_costs(caches: list[Any], tokens: int, prefilled: Callable[[int], list[Any]]) -> RowCosts:
    """Return what a row costs, from caches that hold one of `tokens`.

    Where layers have windows of different sizes, all count as the largest. Of a kind that isn't known a line
    is drawn through what it holds at two lengths; `prefilled` makes caches of a length.
    """
    parts = list(_parts(caches))
    windows = [part for part in parts if _is_window(part)]
    per_token, fixed = _line(parts, tokens, prefilled)
    return RowCosts(
        kv_bytes_per_token=per_token + sum(_bytes_per_token(part) for part in parts if type(part) is KVCache),
        window_tokens=min(CONTEXT_TOKENS_MAX, max((part.max_size for part in windows), default=0)),
        window_bytes_per_token=sum(_bytes_per_token(part) for part in windows),
        fixed_bytes=fixed + sum(int(part.nbytes) for part in parts if isinstance(part, ArraysCache)),
    )


def _parts(caches: Iterable[Any]) -> Iterator[Any]:
    """Yield caches, and in the place of a list of caches its parts."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from _parts(cache.caches)
        else:
            yield cache


def _is_window(part: Any) -> bool:
    return type(part) is RotatingKVCache and part.keep == 0


def _is_known(part: Any) -> bool:
    return type(part) is KVCache or _is_window(part) or isinstance(part, ArraysCache)


def _bytes_per_token(part: Any) -> int:
    return 0 if part.keys is None else int(part.nbytes) // int(part.keys.shape[2])


def _line(parts: list[Any], tokens: int, prefilled: Callable[[int], list[Any]]) -> tuple[int, int]:
    """Return (bytes a token, fixed bytes) of the kinds that aren't known.

    They may grow by a step from anywhere, so one step more than they need is counted as fixed.
    """
    held = sum(int(part.nbytes) for part in parts if not _is_known(part))
    if not held:
        return 0, 0
    caches = prefilled(tokens + 2 * TOKENS_STEP)
    longer = sum(int(part.nbytes) for part in _parts(caches) if not _is_known(part))
    per_token = -(-max(0, longer - held) // (2 * TOKENS_STEP))
    return per_token, max(held, per_token * TOKENS_STEP)
