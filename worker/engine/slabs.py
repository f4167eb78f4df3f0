"""Arrays of kept beginnings of prompts: cut out of rows, put together anew, and handed to rows that come.

A slab has many tokens' keys and values one behind the other, a few arrays a layer. A snapshot has what can't
be cut (states, windows that have gone round) as it was at one place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from worker.engine.group import fill
from worker.engine.kinds import KeysValues, Kind, Planes, State
from worker.engine.row_caches import Base, Piece, Prefilled, pieces_of
from worker.prefixes.blocks import Run

States = list[list[mx.array | None]]


def nbytes_of(arrays: Sequence[mx.array | None]) -> int:
    return sum(array.nbytes for array in arrays if array is not None)


@dataclass(slots=True, eq=False)
class Slab:
    """Keys and values of `tokens` tokens: for each kind in the model planes (1, heads, tokens, width).

    Without planes where a kind doesn't have these tokens any more: what its window has left behind.
    """

    tokens: int
    planes: list[Planes]
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(nbytes_of(planes) for planes in self.planes)

    @property
    def arrays(self) -> int:
        return sum(map(len, self.planes))


@dataclass(slots=True, eq=False)
class Snapshot:
    """What can't be cut, behind exactly `tokens` tokens.

    States are (1, …) each, the rings of windows (1, heads, slots, width).
    """

    tokens: int
    states: States
    rings: list[Planes]
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(map(nbytes_of, self.states)) + sum(map(nbytes_of, self.rings))

    @property
    def arrays(self) -> int:
        return sum(map(len, self.states)) + sum(map(len, self.rings))

    @classmethod
    def empty(cls, kinds: Sequence[Kind]) -> "Snapshot":
        """Return one of no tokens, whose arrays are such as all others have."""
        states: States = [
            [None if each is None else mx.zeros((1, *each[0]), dtype=each[1]) for each in kind.arrays]
            for kind in kinds
            if isinstance(kind, State)
        ]
        rings = [
            [] if kind.span is None else kind.empty(1, kind.span)
            for kind in kinds
            if isinstance(kind, KeysValues)
        ]
        return cls(0, states, rings)


@dataclass(frozen=True, slots=True)
class RowSource:
    """A row to cut from: where its tokens stand, kind by kind, and its states.

    `pieces` are those of tokens from `first` on, up to `length`; those before it stand in `base`. States and
    rings go with exactly `length`.
    """

    kinds: Sequence[KeysValues]
    first: int
    length: int
    pieces: Sequence[list[Piece]]
    states: States
    base: Base | None = None

    @property
    def is_cuttable(self) -> bool:
        """Whether any beginning of what is cut out here will do for a row: no window has moved on."""
        return not self.states and all(kind.span is None or self.length < kind.span for kind in self.kinds)

    def slab(self, start: int, end: int, *, cuttable: bool = True, later: bool = False) -> Slab:
        """Copy tokens `start` to `end`, one layer after the other; windows only of what can be `cuttable`.

        With `later` nothing is computed yet: who cuts the row next does it, layer by layer, by `settle`.
        """
        planes = []
        for leaf, kind in enumerate(self.kinds):
            is_whole = kind.span is None or (cuttable and self.is_cuttable)
            planes.append(self._cut(leaf, start, end) if is_whole else [])
            if not later:
                mx.eval(planes[-1])
        return Slab(end - start, planes)

    def _cut(self, leaf: int, start: int, end: int) -> Planes:
        """Copy one kind's tokens, of a row that stands in its base and one piece, from slot 0 on."""
        parts = []
        if start < self.first and self.base is not None:
            parts.append(together(cut(self.base.runs(), start, min(end, self.first)), leaf))
        if end > self.first:
            [piece] = self.pieces[leaf]
            first = piece.start + max(start, self.first) - self.first
            last = piece.start + end - self.first
            parts.append([plane[piece.row : piece.row + 1, :, first:last] for plane in piece.planes])
        if len(parts) == 1:
            return [mx.contiguous(plane) for plane in parts[0]]
        return [mx.concatenate(list(each), axis=2) for each in zip(*parts, strict=True)]

    def snapshot(self) -> Snapshot:
        """Copy what can't be cut."""
        rings = [
            [] if kind.span is None else _ring(kind, self.length, pieces)
            for kind, pieces in zip(self.kinds, self.pieces, strict=True)
        ]
        states = [[None if array is None else mx.contiguous(array) for array in each] for each in self.states]
        mx.eval(rings, states)
        return Snapshot(self.length, states, rings)


def source_of(prefilled: Prefilled, kinds: Sequence[KeysValues]) -> RowSource:
    """Return where a row that prefills, or has, can be copied from, but for what isn't in its own arrays."""
    parts = [part for part in prefilled.parts if not isinstance(part, ArraysCache)]
    pieces = [
        pieces_of(part, kind, prefilled, prefilled.first) for part, kind in zip(parts, kinds, strict=True)
    ]
    row = prefilled.row
    states: States = [
        [None if array is None else array[row : row + 1] for array in part.cache]
        for part in prefilled.parts
        if isinstance(part, ArraysCache)
    ]
    return RowSource(kinds, prefilled.first, prefilled.length, pieces, states, prefilled.base)


def _ring(kind: KeysValues, length: int, pieces: list[Piece]) -> Planes:
    """Copy a window as a group has it: the token at a position in slot position % span."""
    planes = kind.empty(1, length)
    if pieces:
        fill(planes, [pieces])
    return planes


def cut(runs: Sequence[Run], begins: int, ends: int) -> list[Run]:
    """Return the part of runs, which begin with token 0, between two tokens."""
    kept: list[Run] = []
    at = 0
    for run in runs:
        start, end = max(begins, at), min(ends, at + run.count)
        if start < end:
            kept.append(Run(run.slab, run.start + start - at, end - start))
        at += run.count
    return kept


def together(runs: Sequence[Run], leaf: int) -> Planes:
    """Return one kind's planes of tokens that stand in several slabs, one behind the other."""
    parts = [
        [plane[:, :, run.start : run.start + run.count] for plane in _slab_of(run).planes[leaf]]
        for run in runs
    ]
    if len(parts) == 1:
        return parts[0]
    return [mx.concatenate(list(each), axis=2) for each in zip(*parts, strict=True)]


def _slab_of(run: Run) -> Slab:
    assert isinstance(run.slab, Slab)
    return run.slab


def slabs_of(bases: Iterable[Base]) -> list[Slab]:
    """Return the slabs that bases stand in, each once."""
    return list(dict.fromkeys(_slab_of(run) for base in bases for run in base.runs()))


def settle(slabs: Iterable[Slab], leaf: int) -> None:
    """Compute one layer of slabs that were to be copied later; nothing to do for all others."""
    mx.eval([slab.planes[leaf] for slab in slabs])


def moved(runs: Sequence[Run]) -> Slab:
    """Copy runs of one slab to a slab of their own, one layer after the other."""
    planes = []
    for leaf, old in enumerate(_slab_of(runs[0]).planes):
        new = [mx.contiguous(plane) for plane in together(runs, leaf)] if old else []
        mx.eval(new)
        planes.append(new)
    return Slab(sum(run.count for run in runs), planes)
