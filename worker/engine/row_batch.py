"""The caches of the rows that decode: in groups where they grow, stacked where they don't.

Rows stand in the order of their groups, those first that begin behind a base: a beginning that they share
with others, and that isn't here. A group has what its rows have of their own. A membership change, or a group
that is full, is where arrays are copied, one layer after the other, so that what is copied and the copy exist
together for one layer only.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from worker.engine.group import Group, StepView
from worker.engine.grouping import Arrangement, Bound, PlaceCosts, Placed, Row, Shape
from worker.engine.kinds import KeysValues, Kind, State
from worker.engine.layers import GroupedCache, LayerParts
from worker.engine.row_caches import Base, Prefilled, arrays_in, let_go
from worker.engine.shared_reading import SharedReading
from worker.engine.slabs import RowSource, States, settle, slabs_of
from worker.engine.sources import Sources


@dataclass(frozen=True, slots=True)
class Layout:
    """What each layer of a model caches, what a place for it costs, and whether each row is a group.

    `packed` says that attention reads quantised keys and values as they are, and doesn't unpack them first.
    `lists` are the layers that have a list of caches, be it of one.
    """

    layers: tuple[tuple[Kind, ...], ...]
    costs: PlaceCosts
    by_rows: bool = False
    packed: bool = False
    lists: frozenset[int] = frozenset()

    @property
    def keys_values(self) -> list[KeysValues]:
        """The kinds of keys and values, layer by layer."""
        return [kind for layer in self.layers for kind in layer if isinstance(kind, KeysValues)]


class RowCaches(Protocol):
    """The caches of the rows that decode, and these rows in the order in which a step takes them."""

    layers: list[Any]
    rows: tuple[Any, ...]
    bytes_max: int
    can_roll_back: bool

    def change(
        self, leaving: Collection[Any], joining: dict[Any, Prefilled], elsewhere_bytes: int
    ) -> None: ...
    def put_behind(self, bases: Mapping[Any, Base], elsewhere_bytes: int) -> None: ...
    def base_tokens(self, row: Any) -> int: ...
    def length(self, row: Any) -> int: ...
    def source(self, row: Any) -> RowSource: ...
    def bases_moved(self) -> None: ...
    def make_room(self, elsewhere_bytes: int) -> None: ...
    def begin_step(self, elsewhere_bytes: int) -> None: ...  # both may change the order of rows
    def end_step(self) -> None: ...
    def roll_back(self) -> None: ...
    def release(self) -> None: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def arrays(self) -> int: ...

    @property
    def groups(self) -> int: ...


class RowBatch:
    """Rows are anything hashable. `rows` is their order in the step that comes, and in what it returns."""

    can_roll_back = True

    def __init__(self, layout: Layout, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.rows: tuple[Row, ...] = ()
        self.views: list[StepView] = []
        self.offsets = mx.zeros((0,), dtype=mx.int32)
        self.nbytes = 0
        self.reading: SharedReading | None = None
        self._layout = layout
        self._leaves = layout.keys_values
        self._states = [kind for layer in layout.layers for kind in layer if isinstance(kind, State)]
        self._stacked = [ArraysCache(len(kind.arrays)) for kind in self._states]
        self._stacked_before: list[list[Any]] = []
        self._groups: list[Group] = []
        self._lengths: dict[Row, int] = {}
        self._bases: dict[Row, Base] = {}
        self._made_room: int | None = None
        self._is_read = False
        self.layers = self._layers()

    # --- membership ---------------------------------------------------------------------------------------

    def change(self, leaving: Collection[Row], joining: dict[Row, Prefilled], elsewhere_bytes: int) -> None:
        """Take rows out and copy others in, whose own caches are given back layer by layer.

        `elsewhere_bytes` are held by rows that prefill, and count against `bytes_max` too.
        """
        for row in leaving:
            del self._lengths[row]
        self._lengths |= {row: prefilled.length for row, prefilled in joining.items()}
        freed = [self._bases.pop(row) for row in leaving if row in self._bases]
        self._bases |= {row: each.base for row, each in joining.items() if each.base is not None}
        self._arrange(joining, elsewhere_bytes)
        for base in freed:
            base.release()

    def put_behind(self, bases: Mapping[Row, Base], elsewhere_bytes: int) -> None:
        """Let rows begin behind longer bases from now on, and give back what they have of these."""
        moved = {row: base.tokens - self.base_tokens(row) for row, base in bases.items()}
        assert min(moved.values(), default=1) > 0, "a base is no longer than the one before"
        freed = [self._bases[row] for row in bases if row in self._bases]
        self._bases |= bases
        self._arrange({}, elsewhere_bytes, moved)
        for base in freed:
            base.release()

    def base_tokens(self, row: Row) -> int:
        """Return how many tokens of a row aren't here but in its base."""
        return self._bases[row].tokens if row in self._bases else 0

    def length(self, row: Row) -> int:
        """Return how many tokens a row has, with its base."""
        return self._lengths[row]

    def source(self, row: Row) -> RowSource:
        """Return where a row can be copied from, but for its base."""
        group = next(group for group in self._groups if row in group.shape.rows)
        first, place = self.base_tokens(row), self.rows.index(row)
        own = self._lengths[row] - first
        pieces = [group.pieces_of(row, leaf, kind, own) for leaf, kind in enumerate(self._leaves)]
        states: States = [
            [None if array is None else array[place : place + 1] for array in cache.cache]
            for cache in self._stacked
        ]
        return RowSource(self._leaves, first, self._lengths[row], pieces, states, self._bases.get(row))

    def bases_moved(self) -> None:
        """Look for the bases' tokens anew in the next step."""
        self._is_read = False

    def release(self) -> None:
        """Give all memory back; there must be no rows."""
        assert not self._lengths, "rows are left"
        self._groups = []
        for cache in self._stacked:
            let_go(cache)
        self._stacked_before = []
        self.rows, self.views = (), []
        # It would hold on to the slabs that it reads.
        self.reading, self._is_read = None, False
        self._count()

    def spoil_unused(self, value: float) -> None:
        """Write something where no token stands, which must change nothing."""
        for group in self._groups:
            for kind, planes in zip(self._leaves, group.planes, strict=True):
                lengths = [min(self._own(row), kind.slots(group.shape.room)) for row in group.shape.rows]
                for place in range(group.shape.places):
                    used = lengths[place] if place < len(lengths) else 0
                    for plane in planes:
                        plane[place, :, used:] = value

    @property
    def arrays(self) -> int:
        """How many arrays there are."""
        return sum(len(planes) for group in self._groups for planes in group.planes) + arrays_in(
            self._stacked
        )

    @property
    def groups(self) -> int:
        """How many groups there are; a batch of states only has none, and runs as one."""
        return len(self._groups)

    @property
    def shapes(self) -> list[Shape]:
        """The groups as they are."""
        return [group.shape for group in self._groups]

    # --- a step -------------------------------------------------------------------------------------------

    def make_room(self, elsewhere_bytes: int) -> None:
        """Waste less, if that is needed for so many bytes elsewhere; once, while nothing else changes."""
        room_bytes = self.bytes_max - elsewhere_bytes
        if self.nbytes > room_bytes and room_bytes != self._made_room:
            self._arrange({}, elsewhere_bytes)
            self._made_room = room_bytes

    def begin_step(self, elsewhere_bytes: int) -> None:
        """Set up what all layers share in the coming forward pass of one token a row.

        Where a group is full, or memory is short, groups change, and with them the order of rows.
        """
        if self._is_full():
            self._arrange({}, elsewhere_bytes)
        else:
            self.make_room(elsewhere_bytes)
        self.offsets = mx.array([self._lengths[row] for row in self.rows], dtype=mx.int32)
        self.views = self._views([self._own(row) for row in self.rows])
        self._read_bases()
        self._stacked_before = [list(cache.cache) for cache in self._stacked]

    def end_step(self) -> None:
        self._lengths = {row: length + 1 for row, length in self._lengths.items()}

    def roll_back(self) -> None:
        """Take the last step's token back from every row; its place is overwritten by the next one."""
        self._lengths = {row: length - 1 for row, length in self._lengths.items()}
        for cache, before in zip(self._stacked, self._stacked_before, strict=True):
            cache.cache = list(before)

    def _own(self, row: Row) -> int:
        """Return how many tokens of a row are here."""
        return self._lengths[row] - self.base_tokens(row)

    def _views(self, lengths: list[int]) -> list[StepView]:
        views, first = [], 0
        own = mx.array(lengths, dtype=mx.int32) if self._bases else self.offsets
        for group in self._groups:
            last = first + len(group.shape.rows)
            is_all = last - first == len(lengths)
            offsets = own if is_all else own[first:last]
            views.append(StepView(group, first, last, lengths[first:last], offsets))
            first = last
        return views

    def _is_full(self) -> bool:
        return any(self._own(row) >= group.shape.room for group in self._groups for row in group.shape.rows)

    # --- groups -------------------------------------------------------------------------------------------

    def _arrange(
        self, joining: dict[Row, Prefilled], elsewhere_bytes: int, moved: Mapping[Row, int] | None = None
    ) -> None:
        moved = moved or {}
        self._made_room = None
        state_bytes = len(self._lengths) * sum(kind.nbytes for kind in self._states)
        room_bytes = max(0, self.bytes_max - elsewhere_bytes - state_bytes)
        own = {row: self._own(row) for row in self._lengths}
        bound = Bound.within(self._layout.costs, own.values(), room_bytes)
        arrangement = Arrangement(own, bound, alone=self._layout.by_rows, moved=moved)
        placed = sorted(arrangement.of(self.shapes), key=lambda each: not self._has_base(each.shape))
        if (
            not (joining or moved)
            and all(each.shape == each.old for each in placed)
            and len(placed) == len(self._groups)
        ):
            return
        before = self.rows
        self._build(placed, Sources(self._leaves, self._groups, own, joining, moved))
        self.rows = tuple(row for each in placed for row in each.shape.rows)
        if self.rows != before or joining:
            self._stack(before, joining)
        self._is_read = False
        self._count()

    def _has_base(self, shape: Shape) -> bool:
        return any(row in self._bases for row in shape.rows)

    def _read_bases(self) -> None:
        """Find what rows have in common, once for as long as neither they nor its places change."""
        if self._is_read:
            return
        self._is_read = True
        behind = [view for view in self.views if self._has_base(view.group.shape)]
        self.reading = (
            SharedReading([self._bases.get(row) for row in self.rows[: behind[-1].last]]) if behind else None
        )

    def _build(self, placed: list[Placed], sources: Sources) -> None:
        """Make the groups be these, one layer after the other."""
        olds = {group.shape: group for group in self._groups}
        made = [
            Group(each.shape, [[] for _ in self._leaves]) if each.old is None else olds[each.old]
            for each in placed
        ]
        dissolved = [group for group in self._groups if not any(group is kept for kept in made)]
        shared = slabs_of(self._bases.values())
        for leaf in range(len(self._leaves)):
            settle(shared, leaf)
            for group, each in zip(made, placed, strict=True):
                group.planes[leaf] = sources.planes(leaf, group, each.shape)
            mx.eval([group.planes[leaf] for group in made])
            for group in dissolved:
                group.planes[leaf] = []
            sources.let_go(leaf)
        for group, each in zip(made, placed, strict=True):
            group.shape = each.shape
        self._groups = made

    # --- state --------------------------------------------------------------------------------------------

    def _stack(self, before: Sequence[Row], joining: dict[Row, Prefilled]) -> None:
        """Put the rows' states in the rows' order; a row that has none yet begins with zeros."""
        stay = [(place, row) for place, row in enumerate(before) if row not in joining]
        source = {row: place for place, row in stay} | {
            row: len(before) + number for number, row in enumerate(joining)
        }
        order = [source[row] for row in self.rows]
        states = [_states_of(prefilled) for prefilled in joining.values()]
        rows = [prefilled.row for prefilled in joining.values()]
        for number, (kind, cache) in enumerate(zip(self._states, self._stacked, strict=True)):
            for index, each in enumerate(kind.arrays):
                if each is not None:
                    own = [part[number][index] for part in states]
                    new = [_row_or_zeros(array, row, *each) for array, row in zip(own, rows, strict=True)]
                    cache[index] = _in_order([cache[index], *new], order)
            mx.eval([array for array in cache.cache if array is not None])
        self._stacked_before = []

    # --- layers -------------------------------------------------------------------------------------------

    def _layers(self) -> list[Any]:
        """Return what the model sees, layer by layer."""
        leaves, states, layers = iter(range(len(self._leaves))), iter(self._stacked), []
        for number, kinds in enumerate(self._layout.layers):
            parts: list[Any] = [
                next(states)
                if isinstance(kind, State)
                else GroupedCache(self, next(leaves), kind, self._layout)
                for kind in kinds
            ]
            is_list = len(parts) > 1 or number in self._layout.lists
            layers.append(LayerParts(parts) if is_list else parts[0])
        return layers

    def _count(self) -> None:
        stacked = sum(int(cache.nbytes) for cache in self._stacked)
        self.nbytes = stacked + sum(group.nbytes for group in self._groups)


def _states_of(prefilled: Prefilled) -> list[ArraysCache]:
    return [part for part in prefilled.parts if isinstance(part, ArraysCache)]


def _row_or_zeros(array: mx.array | None, row: int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.zeros((1, *shape), dtype=dtype) if array is None else array[row : row + 1]


def _in_order(parts: list[mx.array | None], order: list[int]) -> mx.array | None:
    """Join rows of several arrays, and put them in an order; None where no row is left."""
    arrays = [part for part in parts if part is not None]
    if not order:
        return None
    together = mx.concatenate(arrays, axis=0)
    if order == list(range(together.shape[0])):
        return together
    return together[mx.array(order, dtype=mx.int32)]
