"""The caches of a row that prefills, mlx-lm's own: how they are made, kept small, counted and taken over.

mlx-lm's caches grow by steps from wherever they stand, and a window holds a whole chunk on top of itself
until its next token. Here room is allocated once and windows are cut after each chunk, so that what a row
holds is known from its length alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from shared.limits import CONTEXT_TOKENS_MAX
from worker.engine.kinds import KeysValues, Kind, Planes, State
from worker.engine.prefixed_cache import PrefixedCache
from worker.engine.quantised import QuantisedRowCache

TOKENS_STEP: Final = 256


class UnknownKindError(Exception):
    """A cache that can't be kept side by side with others; its text says why."""


class Base(Protocol):
    """The first `tokens` tokens of a row, held once for all rows that begin alike: a lease of the store.

    Of two rows' `blocks` those are the same objects up to where they part.
    """

    @property
    def blocks(self) -> Sequence[Any]: ...
    @property
    def tokens(self) -> int: ...
    def runs(self) -> list[Any]: ...
    def release(self) -> None: ...


@dataclass(slots=True)
class Prefilled:
    """A sequence's prefill: row `row` of caches, one a layer, which hold `length` tokens of it.

    `padded` says that other rows are in the caches too, all from their first token on, and that this one's
    end may be before theirs. `is_last_use` says that nobody else's are needed, so that they may be given back
    one by one.

    Of a beginning that is shared with other rows, `base`, the caches need have nothing: their arrays begin
    with the token at `first`.
    """

    caches: list[Any]
    row: int
    length: int = 0
    padded: bool = False
    is_last_use: bool = True
    base: "Base | None" = None
    first: int = 0

    @property
    def parts(self) -> list[Any]:
        """Return each kind's cache, layer by layer."""
        return [part for cache in self.caches for part in parts_of(cache)]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that stand together: `count` slots of row `row`, from slot `start` on, which go to slot `to`."""

    planes: Planes
    row: int
    start: int
    to: int
    count: int


def parts_of(cache: Any) -> Iterator[Any]:
    """Yield a layer's cache, or if it is a list of caches its parts."""
    if isinstance(cache, CacheList):
        for part in cache.caches:
            yield from parts_of(part)
    else:
        yield cache


def quantise(caches: list[Any], bits: int) -> list[Any]:
    """Put caches that quantise in the place of those that keep all tokens; windows and state stay.

    With 0 bits nothing changes.
    """
    if not bits:
        return caches
    quantised: list[Any] = []
    for cache in caches:
        if isinstance(cache, CacheList):
            quantised.append(CacheList(*quantise(list(cache.caches), bits)))
        else:
            quantised.append(QuantisedRowCache(bits) if type(cache) is KVCache else cache)
    return quantised


def grow_by(caches: Iterable[Any], tokens: int) -> None:
    """Let caches grow by so many tokens at once when they are next full; chunks by no more than they keep."""
    for part in _all_parts(caches):
        if type(part) in (KVCache, QuantisedRowCache) or _is_window(part):
            part.step = tokens
        elif type(part) is ChunkedKVCache:
            part.step = min(tokens, part.chunk_size)


def trim_windows(caches: Iterable[Any]) -> None:
    """Cut windows that a chunk has left too long, as mlx-lm does when they take their next token."""
    for part in _all_parts(caches):
        if _is_window(part) and part.keys is not None and part.keys.shape[2] > part.max_size:
            keys, values, offset, keep, size, _ = part.state
            # Contiguous, because a slice would hold on to all of the array that it is a part of.
            kept = [mx.contiguous(array[..., -size:, :]) for array in (keys, values)]
            part.state = (*kept, offset, keep, size, size)
        elif type(part) is ChunkedKVCache and part.keys is not None:
            part.maybe_trim_front()
            part.keys, part.values = (mx.contiguous(plane) for plane in planes_of(part))


def arrays_in(caches: Iterable[Any]) -> int:
    """Count the arrays that layer caches hold."""
    return sum(_arrays_among(vars(part).values()) for part in _all_parts(caches))


def _arrays_among(values: Iterable[Any]) -> int:
    lists = (value for value in values if isinstance(value, list | tuple))
    return sum(isinstance(value, mx.array) for value in values) + sum(map(_arrays_among, lists))


def _all_parts(caches: Iterable[Any]) -> Iterator[Any]:
    return (part for cache in caches for part in parts_of(cache))


# --- kinds --------------------------------------------------------------------------------------------------


def kinds_of(caches: Iterable[Any]) -> list[list[Kind]]:
    """Return the kinds of each layer's caches, from caches that hold a row; raise UnknownKindError."""
    return [[_kind_of(part) for part in parts_of(cache)] for cache in caches]


def kind_names(caches: Iterable[Any]) -> str:
    """Return in words which kinds of caches there are."""
    return ", ".join(dict.fromkeys(map(_name_of, _all_parts(caches))))


def _kind_of(part: Any) -> Kind:
    if isinstance(part, ArraysCache):
        return State(tuple(None if array is None else (array.shape[1:], array.dtype) for array in part.cache))
    if type(part) is QuantisedRowCache:
        return part.kind_at_rest
    if type(part) is KVCache:
        return _keys_values(part)
    if _is_window(part):
        return _keys_values(part, span=part.max_size)
    if type(part) is ChunkedKVCache:
        return _keys_values(part, span=part.chunk_size, restarts=True)
    raise UnknownKindError(f"its layers use {type(part).__name__}, which this engine runs one row at a time")


def _name_of(part: Any) -> str:
    if isinstance(part, ArraysCache):
        return "state"
    if type(part) is QuantisedRowCache:
        return "quantised attention"
    if type(part) is KVCache:
        return "attention"
    if _is_window(part):
        return "window"
    return "chunks" if type(part) is ChunkedKVCache else type(part).__name__


def _keys_values(part: Any, span: int | None = None, *, restarts: bool = False) -> KeysValues:
    if part.keys is None:
        raise UnknownKindError("some of its caches stay empty")
    heads, key_width = part.keys.shape[1], part.keys.shape[3]
    return KeysValues(heads, key_width, part.values.shape[3], part.keys.dtype, span, restarts)


def _is_window(part: Any) -> bool:
    return type(part) is RotatingKVCache and part.keep == 0


# --- taking a row over --------------------------------------------------------------------------------------


def planes_of(part: Any) -> Planes:
    """Return the arrays of keys and values, (rows, heads, tokens, width); none where nothing was written."""
    if isinstance(part, QuantisedRowCache | PrefixedCache):
        return part.planes
    return [] if part.keys is None else [part.keys, part.values]


def pieces_of(part: Any, kind: KeysValues, prefilled: Prefilled, start: int = 0) -> list[Piece]:
    """Return where the tokens of a prefilled row stand, from `start` on, and to which slots they go.

    Windows, which have no bases, are taken as a whole.
    """
    planes, length = planes_of(part), prefilled.length
    if not planes or length <= start:
        return []
    if kind.span is None:
        return [Piece(planes, prefilled.row, start - prefilled.first, 0, length - start)]
    end = length if prefilled.padded else _end_of(part)
    if _is_window(part) and not prefilled.padded:
        planes = [part._temporal_order(plane) for plane in planes]  # noqa: SLF001 (undoes its own rotation)
        end = planes[0].shape[2]
    kept = length % kind.span if kind.restarts else min(length, kind.span)
    run = Piece(planes, prefilled.row, end - kept, (length - kept) % kind.span, kept)
    return _cut_at(kind.span, run)


def _end_of(part: Any) -> int:
    """Return how many tokens stand in the arrays."""
    start = part.start_position if type(part) is ChunkedKVCache else 0
    return int(part.offset - start)


def _cut_at(span: int, run: Piece) -> list[Piece]:
    """Cut a run of tokens where it goes over the end of the ring of `span` slots."""
    before_end = min(run.count, span - run.to)
    pieces = [
        replace(run, count=before_end),
        replace(run, start=run.start + before_end, to=0, count=run.count - before_end),
    ]
    return [piece for piece in pieces if piece.count]


def let_go(part: Any) -> None:
    """Give a cache's arrays back."""
    if isinstance(part, QuantisedRowCache | PrefixedCache):
        part.planes = []
    elif isinstance(part, ArraysCache):
        part.cache = [None] * len(part.cache)
    else:
        part.keys = part.values = None


# --- costs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Bytes of one row, all layers together: as ModelFacts has them."""

    kv_bytes_per_token: int = 0
    window_tokens: int = 0
    window_bytes_per_token: int = 0
    fixed_bytes: int = 0


def row_costs(caches: list[Any], tokens: int, prefilled: Callable[[int], list[Any]]) -> RowCosts:
    """Return what a row costs, from caches that hold one of `tokens`.

    Where layers have windows of different sizes, all count as the largest. Of a kind that isn't known a line
    is drawn through what it holds at two lengths; `prefilled` makes caches of a length.
    """
    parts = list(_all_parts(caches))
    spans = [part for part in parts if _span_of(part)]
    whole = [part for part in parts if type(part) in (KVCache, QuantisedRowCache)]
    per_token, fixed = _line(parts, tokens, prefilled)
    return RowCosts(
        kv_bytes_per_token=per_token + sum(map(_bytes_per_token, whole)),
        window_tokens=min(CONTEXT_TOKENS_MAX, max(map(_span_of, spans), default=0)),
        window_bytes_per_token=sum(map(_bytes_per_token, spans)),
        fixed_bytes=fixed + sum(int(part.nbytes) for part in parts if isinstance(part, ArraysCache)),
    )


def _span_of(part: Any) -> int:
    if type(part) is ChunkedKVCache:
        return int(part.chunk_size)
    return int(part.max_size) if _is_window(part) else 0


def _is_known(part: Any) -> bool:
    known = type(part) in (KVCache, QuantisedRowCache, ChunkedKVCache)
    return known or _is_window(part) or isinstance(part, ArraysCache)


def _bytes_per_token(part: Any) -> int:
    planes = planes_of(part)
    return int(part.nbytes) // int(planes[0].shape[2]) if planes else 0


def _line(parts: list[Any], tokens: int, prefilled: Callable[[int], list[Any]]) -> tuple[int, int]:
    """Return (bytes a token, fixed bytes) of the kinds that aren't known.

    They may grow by a step from anywhere, so one step more than they need is counted as fixed.
    """
    held = sum(int(part.nbytes) for part in parts if not _is_known(part))
    if not held:
        return 0, 0
    caches = prefilled(tokens + 2 * TOKENS_STEP)
    longer = sum(int(part.nbytes) for part in _all_parts(caches) if not _is_known(part))
    per_token = -(-max(0, longer - held) // (2 * TOKENS_STEP))
    return per_token, max(held, per_token * TOKENS_STEP)
