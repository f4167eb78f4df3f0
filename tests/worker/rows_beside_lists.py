"""A batch of rows and plain lists beside it, changed alike; each step compares what is shown."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from worker.engine.grouping import PlaceCosts
from worker.engine.kinds import KeysValues, Kind, State
from worker.engine.layers import GroupedCache, LayerParts
from worker.engine.quantised import QuantisedRowCache
from worker.engine.row_batch import Layout, RowBatch
from worker.engine.row_caches import Prefilled, grow_by, parts_of, trim_windows

SPAN: Final = 7
PAD: Final = 4
AMPLE: Final = 1 << 40
# Keys and values of different widths, as multi-head latent attention has them.
PLAIN: Final = KeysValues(2, 3, 5, mx.float32)
WINDOW: Final = KeysValues(1, 4, 2, mx.float32, span=SPAN)
CHUNKS: Final = KeysValues(1, 2, 3, mx.float32, span=SPAN, restarts=True)
QUANTISED: Final = KeysValues(1, 32, 64, mx.float32, bits=8)
STATES: Final = State((((2, 3), mx.float32), None, ((4,), mx.float32)))
LAYERS: Final[dict[str, tuple[tuple[Kind, ...], ...]]] = {
    "plain": ((PLAIN,), (KeysValues(1, 4, 2, mx.float32),)),
    "windows": ((WINDOW,), (PLAIN,)),
    "chunks": ((CHUNKS,), (PLAIN,)),
    "quantised": ((QUANTISED,), (WINDOW,)),
    "states": ((STATES,), (PLAIN,), (STATES,)),
    "several in a layer": ((PLAIN, STATES), (STATES, WINDOW), (PLAIN, WINDOW)),
    "states only": ((STATES,), (STATES,)),
}


def layout_of(layers: tuple[tuple[Kind, ...], ...], *, by_rows: bool = False, pad: int = PAD) -> Layout:
    leaves = [kind for kind in itertools.chain(*layers) if isinstance(kind, KeysValues)]
    whole = sum(kind.bytes_per_token for kind in leaves if kind.span is None)
    spans = sum(kind.bytes_per_token for kind in leaves if kind.span is not None)
    return Layout(layers, PlaceCosts(whole, SPAN if spans else 0, spans, pad), by_rows)


def cache_for(kind: Kind) -> Any:
    if isinstance(kind, State):
        return ArraysCache(len(kind.arrays))
    if kind.bits:
        return QuantisedRowCache(kind.bits)
    if kind.span is None:
        return KVCache()
    return ChunkedKVCache(kind.span) if kind.restarts else RotatingKVCache(kind.span)


@dataclass
class Row:
    """What a row should hold: of each kind its tokens' keys and values, or its arrays."""

    length: int = 0
    tokens: dict[int, list[tuple[Any, Any]]] = field(default_factory=dict)
    states: dict[int, list[Any]] = field(default_factory=dict)
    states_before: dict[int, list[Any]] = field(default_factory=dict)


class Both:
    """A batch, and plain lists beside it that are changed alike; each step compares what is shown."""

    def __init__(self, layout: Layout, bytes_max: int = AMPLE) -> None:
        self.layout = layout
        self.kinds: list[Kind] = [kind for layer in layout.layers for kind in layer]
        self.batch = RowBatch(layout, bytes_max)
        self.rows: dict[str, Row] = {}
        self.numbers = np.random.default_rng(0)
        self.named = map(str, itertools.count())

    def numbers_of(self, *shape: int) -> Any:
        return self.numbers.standard_normal(shape).astype(np.float32)

    # --- prefill ---

    def caches(self, room: int) -> list[Any]:
        made = [[cache_for(kind) for kind in kinds] for kinds in self.layout.layers]
        caches = [each[0] if len(each) == 1 else CacheList(*each) for each in made]
        grow_by(caches, room)
        return caches

    def alone(self, length: int, chunk: int) -> tuple[Row, Prefilled]:
        """Prefill a row in chunks, as the engine does."""
        [row], caches = [Row()], self.caches(self.layout.costs.room(length))
        for start in range(0, length, chunk):
            count = min(chunk, length - start)
            self.write([row], caches, count, [count])
            trim_windows(caches)
        return row, Prefilled(caches, 0, length)

    def together(self, lengths: Sequence[int]) -> tuple[list[Row], list[Prefilled]]:
        """Prefill rows as one batch, padded on the right."""
        rows, caches = [Row() for _ in lengths], self.caches(self.layout.costs.room(max(lengths)))
        if max(lengths):
            self.write(rows, caches, max(lengths), lengths)
        return rows, [Prefilled(caches, place, length, padded=True) for place, length in enumerate(lengths)]

    def write(self, rows: list[Row], caches: list[Any], count: int, lengths: Sequence[int]) -> None:
        """Let caches take `count` tokens of each row, of which `lengths` are its own."""
        parts = [part for cache in caches for part in parts_of(cache)]
        for leaf, (kind, part) in enumerate(zip(self.kinds, parts, strict=True)):
            if isinstance(kind, State):
                self.set_states(leaf, kind, part, rows)
                continue
            if isinstance(part, ChunkedKVCache):
                part.maybe_trim_front()
            keys, values = self.keys_and_values(kind, len(rows), count)
            part.update_and_fetch(mx.array(keys), mx.array(values))
            for row, length, own_keys, own_values in zip(rows, lengths, keys, values, strict=True):
                row.tokens.setdefault(leaf, []).extend(
                    (own_keys[:, place], own_values[:, place]) for place in range(length)
                )
        for row, length in zip(rows, lengths, strict=True):
            row.length += length

    def keys_and_values(self, kind: KeysValues, rows: int, count: int) -> tuple[Any, Any]:
        return (
            self.numbers_of(rows, kind.heads, count, kind.key_width),
            self.numbers_of(rows, kind.heads, count, kind.value_width),
        )

    def set_states(self, leaf: int, kind: State, cache: Any, rows: Sequence[Row]) -> None:
        for index, each in enumerate(kind.arrays):
            if each is not None:
                arrays = self.numbers_of(len(rows), *each[0])
                cache[index] = mx.array(arrays)
                for row, array in zip(rows, arrays, strict=True):
                    row.states.setdefault(leaf, [None] * len(kind.arrays))[index] = array

    # --- membership ---

    def change(self, leaving: Sequence[str], joining: Sequence[tuple[Row, Prefilled]]) -> None:
        new = {next(self.named): each for each in joining}
        self.batch.change(leaving, {name: prefilled for name, (_row, prefilled) in new.items()}, 0)
        for name in leaving:
            del self.rows[name]
        self.rows |= {name: row for name, (row, _prefilled) in new.items()}
        self.check_bytes()

    def join(self, length: int, chunk: int = 1000) -> None:
        self.change((), [self.alone(length, chunk)])

    # --- steps ---

    def step(self) -> None:
        """Decode one token a row, and check what each layer is shown of every row."""
        self.batch.begin_step(0)
        rows = [self.rows[name] for name in self.batch.rows]
        assert len(rows) == len(self.rows)
        assert self.batch.offsets.tolist() == [row.length for row in rows]
        for row in rows:
            row.states_before = {leaf: list(arrays) for leaf, arrays in row.states.items()}
        shown = [part for layer in self.batch.layers for part in _parts_shown(layer)]
        for leaf, (kind, cache) in enumerate(zip(self.kinds, shown, strict=True)):
            if isinstance(kind, State):
                self.compare_states(leaf, kind, cache, rows)
                self.set_states(leaf, kind, cache, rows)
            else:
                self.write_and_compare(leaf, kind, cache, rows)
        self.batch.end_step()
        for row in rows:
            row.length += 1
        self.check_bytes()

    def write_and_compare(self, leaf: int, kind: KeysValues, cache: GroupedCache, rows: list[Row]) -> None:
        keys, values = self.keys_and_values(kind, len(rows), 1)
        token, again = cache.update_and_fetch(mx.array(keys), mx.array(values))
        assert token is again is cache
        for row, own_keys, own_values in zip(rows, keys, values, strict=True):
            row.tokens.setdefault(leaf, []).append((own_keys[:, 0], own_values[:, 0]))
        for view in self.batch.views:
            stored = [np.array(array) for array in kind.decode(view.read(cache.leaf, kind))]
            mask = view.mask(kind, None)
            for place, row in enumerate(rows[view.first : view.last]):
                slots = np.arange(stored[0].shape[2])
                seen = slots if mask is None else slots[np.array(mask)[place, 0, 0]]
                self.compare(kind, row.tokens[leaf], [array[place][:, seen] for array in stored])

    def compare(self, kind: KeysValues, tokens: list[tuple[Any, Any]], shown: list[Any]) -> None:
        """A ring shows its tokens in any order; each must be there once, and no other."""
        newest = len(tokens) - 1
        first = 0 if kind.span is None else max(0, newest - kind.span + 1)
        if kind.restarts and kind.span:
            first = newest - newest % kind.span
        assert shown[0].shape[1] == newest - first + 1
        expected = [np.stack([token[part] for token in tokens[first:]], axis=1) for part in (0, 1)]
        if kind.bits:
            expected = [np.array(array) for array in kind.decode(kind.encode(*map(mx.array, expected)))]
        for ours, theirs in zip(shown, expected, strict=True):
            turn = 0 if kind.span is None or kind.restarts else first % kind.span
            assert np.array_equal(ours, np.roll(theirs, turn, axis=1))

    def compare_states(self, leaf: int, kind: State, cache: Any, rows: list[Row]) -> None:
        for index, each in enumerate(kind.arrays):
            if each is not None:
                zeros = np.zeros(each[0], np.float32)
                theirs = [row.states[leaf][index] if leaf in row.states else zeros for row in rows]
                assert np.array_equal(np.array(cache[index]), np.stack(theirs))

    def roll_back(self) -> None:
        self.batch.roll_back()
        for row in self.rows.values():
            row.length -= 1
            row.states = row.states_before
            for tokens in row.tokens.values():
                tokens.pop()

    def check_bytes(self) -> None:
        arrays = [plane for group in self.batch._groups for planes in group.planes for plane in planes]
        states = [array for cache in self.batch._stacked for array in cache.cache if array is not None]
        assert self.batch.nbytes == sum(array.nbytes for array in [*arrays, *states])
        assert self.batch.arrays == len(arrays) + len(states)


def _parts_shown(layer: Any) -> list[Any]:
    return list(layer.caches) if isinstance(layer, LayerParts) else [layer]
