"""Puts what is kept of a beginning into a row's own caches, so that its prefill goes on behind it."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from worker.engine.kinds import KeysValues, Planes
from worker.engine.prefixed_cache import PrefixedCache
from worker.engine.quantised import QuantisedRowCache
from worker.engine.row_caches import Base, Prefilled, let_go, parts_of, pieces_of
from worker.engine.slabs import Snapshot, settle, slabs_of, together
from worker.prefixes.blocks import Run


def restore(
    parts: Sequence[Any],
    kinds: Sequence[KeysValues],
    runs: Sequence[Run],
    tokens: int,
    snapshot: Snapshot | None,
    *,
    rows: int = 1,
) -> None:
    """Fill empty caches, `parts` as Prefilled has them, with the tokens in `runs`, which end at `tokens`.

    What can't be cut comes from `snapshot`. In caches behind a shared beginning, which may have several
    `rows`, only their own part is put, the same for all of them.
    """
    states = iter(snapshot.states if snapshot is not None else ())
    for part, leaf in _leaves(parts):
        if isinstance(part, ArraysCache):
            part.cache = [_repeated(array, rows) for array in next(states)]
        elif snapshot is not None and snapshot.rings[leaf]:
            _put_ring(part, kinds[leaf], snapshot.rings[leaf], tokens)
        elif runs:
            _put_all(part, kinds[leaf], together(runs, leaf))
    mx.eval([part.state for part in parts])


def put_behind(
    caches: Sequence[Any], kinds: Sequence[KeysValues], base: Base, rows: int, room: int
) -> list[Any]:
    """Put caches behind a base in the place of those that keep all tokens; states stay.

    They are for so many rows, with room for so many tokens beyond the base.
    """
    leaves = itertools.count()

    def replaced(cache: Any) -> Any:
        if isinstance(cache, CacheList):
            return CacheList(*map(replaced, cache.caches))
        if isinstance(cache, ArraysCache):
            return cache
        leaf = next(leaves)
        return PrefixedCache(kinds[leaf], partial(_planes_of, base, leaf), base.tokens, rows, room)

    return list(map(replaced, caches))


def move(prefilled: Prefilled, kinds: Sequence[KeysValues], caches: Sequence[Any], base: Base) -> None:
    """Move a row that is alone in its caches to others, which are behind a base.

    One layer after the other, so that a layer is there twice for a moment only.
    """
    new = [part for cache in caches for part in parts_of(cache)]
    shared = slabs_of([base])
    for (old, leaf), part in zip(_leaves(prefilled.parts), new, strict=True):
        if isinstance(old, ArraysCache):
            part.cache = list(old.cache)
            continue
        settle(shared, leaf)
        for piece in pieces_of(old, kinds[leaf], prefilled, base.tokens):
            part.put([plane[:, :, piece.start : piece.start + piece.count] for plane in piece.planes])
        mx.eval(part.state)
        let_go(old)


def _planes_of(base: Base, leaf: int) -> list[Planes]:
    """Return one kind's planes of a base, run by run, where they stand now."""
    return [together([run], leaf) for run in base.runs()]


def _repeated(array: mx.array | None, rows: int) -> Any:
    return None if array is None else mx.repeat(array, rows, axis=0)


def _leaves(parts: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """Yield each part with the number of its kind of keys and values, which states have none of."""
    leaf = 0
    for part in parts:
        yield part, leaf
        leaf += not isinstance(part, ArraysCache)


def _put_all(part: Any, kind: KeysValues, planes: Planes) -> None:
    if isinstance(part, PrefixedCache):
        part.put(planes)
    elif type(part) is QuantisedRowCache:
        part.put(kind, planes)
    elif type(part) in (KVCache, ChunkedKVCache):
        part.update_and_fetch(*planes)
    else:
        _put_window(part, planes, planes[0].shape[2])


def _put_window(part: RotatingKVCache, planes: Planes, offset: int) -> None:
    # A copy: a window that is cut later would hold on to all that its arrays are a part of.
    keys, values = map(mx.contiguous, planes)
    part.state = (keys, values, offset, part.keep, part.max_size, keys.shape[2])


def _put_ring(part: Any, kind: KeysValues, ring: Planes, tokens: int) -> None:
    """Put a window's last tokens in their order, which in a ring begins behind the newest one."""
    assert kind.span is not None
    if type(part) is ChunkedKVCache:
        kept = tokens % kind.span
        keys, values = [mx.contiguous(plane[:, :, :kept]) for plane in ring] if kept else (None, None)
        part.state = (keys, values, tokens, part.chunk_size, tokens - kept)
        return
    oldest = tokens % kind.span if tokens >= kind.span else 0
    in_order = [mx.concatenate([plane[:, :, oldest:], plane[:, :, :oldest]], axis=2) for plane in ring]
    _put_window(part, in_order, tokens)
