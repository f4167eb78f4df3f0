"""The caches of the rows that decode: in groups where they grow, stacked where they don't.

Rows stand in the order of their groups. A membership change, or a group that is full, is where arrays are
copied, one layer after the other, so that what is copied and the copy exist together for one layer only.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from worker.engine.group import Group, StepView, fill, put
from worker.engine.grouping import Arrangement, Bound, PlaceCosts, Placed, Row, Shape
from worker.engine.kinds import KeysValues, Kind, Planes, State
from worker.engine.layers import GroupedCache, LayerParts
from worker.engine.row_caches import Piece, Prefilled, arrays_in, let_go, pieces_of, planes_of


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


class RowBatch:
    """Rows are anything hashable. `rows` is their order in the step that comes, and in what it returns."""

    can_roll_back = True

    def __init__(self, layout: Layout, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.rows: tuple[Row, ...] = ()
        self.views: list[StepView] = []
        self.offsets = mx.zeros((0,), dtype=mx.int32)
        self.nbytes = 0
        self._layout = layout
        kinds = [kind for layer in layout.layers for kind in layer]
        self._leaves = [kind for kind in kinds if isinstance(kind, KeysValues)]
        self._states = [kind for kind in kinds if isinstance(kind, State)]
        self._stacked = [ArraysCache(len(kind.arrays)) for kind in self._states]
        self._stacked_before: list[list[Any]] = []
        self._groups: list[Group] = []
        self._lengths: dict[Row, int] = {}
        self._made_room: int | None = None
        self.layers = self._layers()

    # --- membership ---------------------------------------------------------------------------------------

    def change(self, leaving: Collection[Row], joining: dict[Row, Prefilled], elsewhere_bytes: int) -> None:
        """Take rows out and copy others in, whose own caches are given back layer by layer.

        `elsewhere_bytes` are held by rows that prefill, and count against `bytes_max` too.
        """
        for row in leaving:
            del self._lengths[row]
        self._lengths |= {row: prefilled.length for row, prefilled in joining.items()}
        self._arrange(joining, elsewhere_bytes)

    def release(self) -> None:
        """Give all memory back; there must be no rows."""
        assert not self._lengths, "rows are left"
        self._groups = []
        for cache in self._stacked:
            let_go(cache)
        self._stacked_before = []
        self.rows, self.views = (), []
        self._count()

    def spoil_unused(self, value: float) -> None:
        """Write something where no token stands, which must change nothing."""
        for group in self._groups:
            for kind, planes in zip(self._leaves, group.planes, strict=True):
                lengths = [min(self._lengths[row], kind.slots(group.shape.room)) for row in group.shape.rows]
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
        lengths = [self._lengths[row] for row in self.rows]
        self.offsets = mx.array(lengths, dtype=mx.int32)
        self.views = self._views(lengths)
        self._stacked_before = [list(cache.cache) for cache in self._stacked]

    def end_step(self) -> None:
        self._lengths = {row: length + 1 for row, length in self._lengths.items()}

    def roll_back(self) -> None:
        """Take the last step's token back from every row; its place is overwritten by the next one."""
        self._lengths = {row: length - 1 for row, length in self._lengths.items()}
        for cache, before in zip(self._stacked, self._stacked_before, strict=True):
            cache.cache = list(before)

    def _views(self, lengths: list[int]) -> list[StepView]:
        views, first = [], 0
        for group in self._groups:
            last = first + len(group.shape.rows)
            is_all = last - first == len(lengths)
            offsets = self.offsets if is_all else self.offsets[first:last]
            views.append(StepView(group, first, last, lengths[first:last], offsets))
            first = last
        return views

    def _is_full(self) -> bool:
        return any(
            self._lengths[row] >= group.shape.room for group in self._groups for row in group.shape.rows
        )

    # --- groups -------------------------------------------------------------------------------------------

    def _arrange(self, joining: dict[Row, Prefilled], elsewhere_bytes: int) -> None:
        self._made_room = None
        state_bytes = len(self._lengths) * sum(kind.nbytes for kind in self._states)
        room_bytes = max(0, self.bytes_max - elsewhere_bytes - state_bytes)
        bound = Bound.within(self._layout.costs, self._lengths.values(), room_bytes)
        placed = Arrangement(self._lengths, bound, alone=self._layout.by_rows).of(self.shapes)
        if (
            not joining
            and all(each.shape == each.old for each in placed)
            and len(placed) == len(self._groups)
        ):
            return
        before = self.rows
        self._build(placed, _Sources(self._leaves, self._groups, self._lengths, joining))
        self.rows = tuple(row for each in placed for row in each.shape.rows)
        if self.rows != before or joining:
            self._stack(before, joining)
        self._count()

    def _build(self, placed: list[Placed], sources: "_Sources") -> None:
        """Make the groups be these, one layer after the other."""
        olds = {group.shape: group for group in self._groups}
        made = [
            Group(each.shape, [[] for _ in self._leaves]) if each.old is None else olds[each.old]
            for each in placed
        ]
        dissolved = [group for group in self._groups if not any(group is kept for kept in made)]
        for leaf in range(len(self._leaves)):
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


class _Sources:
    """Where keys and values are when groups are made: in groups that are, or in caches of rows' own."""

    def __init__(
        self,
        leaves: list[KeysValues],
        groups: list[Group],
        lengths: dict[Row, int],
        joining: dict[Row, Prefilled],
    ) -> None:
        self._leaves = leaves
        self._lengths = lengths
        self._joining = joining
        self._homes = {row: group for group in groups for row in group.shape.rows}
        self._parts = {
            row: [part for part in prefilled.parts if not isinstance(part, ArraysCache)]
            for row, prefilled in joining.items()
        }

    def planes(self, leaf: int, group: Group, shape: Shape) -> Planes:
        """Return a group's arrays of one layer with all rows of a shape in them: its own, if it has some."""
        planes = group.planes[leaf]
        if planes:
            for place, row in enumerate(shape.rows):
                if place >= len(group.shape.rows) or group.shape.rows[place] != row:
                    put(planes, place, self._pieces(leaf, row))
            return planes
        adopted = self._adopted(leaf, shape)
        if adopted is not None:
            return adopted
        planes = self._leaves[leaf].empty(shape.places, shape.room)
        fill(planes, [self._pieces(leaf, row) for row in shape.rows])
        return planes

    def let_go(self, leaf: int) -> None:
        """Give back one layer of the caches that rows had of their own."""
        for row, prefilled in self._joining.items():
            if prefilled.is_last_use:
                let_go(self._parts[row][leaf])

    def _pieces(self, leaf: int, row: Row) -> list[Piece]:
        kind = self._leaves[leaf]
        if row in self._joining:
            return pieces_of(self._parts[row][leaf], kind, self._joining[row])
        return self._homes[row].pieces_of(row, leaf, kind, self._lengths[row])

    def _adopted(self, leaf: int, shape: Shape) -> Planes | None:
        """Return a lone new row's own arrays, if they are just what a group of it needs."""
        [row, *others] = shape.rows
        if others or shape.places != 1 or row not in self._joining or self._leaves[leaf].span is not None:
            return None
        planes = planes_of(self._parts[row][leaf])
        fits = bool(planes) and planes[0].shape[0] == 1 and planes[0].shape[2] == shape.room
        return list(planes) if fits else None


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
