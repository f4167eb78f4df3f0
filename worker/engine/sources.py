"""Where keys and values are when groups are made: in groups that are, or in caches of rows' own."""

from collections.abc import Mapping, Sequence

from mlx_lm.models.cache import ArraysCache

from worker.engine.group import Group, fill, put
from worker.engine.grouping import Row, Shape
from worker.engine.kinds import KeysValues, Planes
from worker.engine.row_caches import Piece, Prefilled, let_go, pieces_of, planes_of


class Sources:
    """For one change of the groups. A row's tokens in a group are those behind its base.

    `lengths` are the tokens that rows have of their own; `moved` are rows that begin behind a longer base
    from now on, each with how many tokens fewer it has in a group.
    """

    def __init__(
        self,
        leaves: Sequence[KeysValues],
        groups: Sequence[Group],
        lengths: Mapping[Row, int],
        joining: Mapping[Row, Prefilled],
        moved: Mapping[Row, int],
    ) -> None:
        self._leaves = leaves
        self._lengths = lengths
        self._joining = joining
        self._moved = moved
        self._homes = {row: group for group in groups for row in group.shape.rows}
        self._parts = {
            row: [part for part in prefilled.parts if not isinstance(part, ArraysCache)]
            for row, prefilled in joining.items()
        }

    def planes(self, leaf: int, group: Group, shape: Shape) -> Planes:
        """Return a group's arrays of one layer with all rows of a shape in them: its own, if it has some."""
        planes = group.planes[leaf]
        if planes:
            coming = [(place, row) for place, row in enumerate(shape.rows) if self._comes(group, place, row)]
            pieces = [self._taken(leaf, row) for _, row in coming]
            for (place, _), each in zip(coming, pieces, strict=True):
                put(planes, place, each)
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

    def _comes(self, group: Group, place: int, row: Row) -> bool:
        """Whether a row has to be written to a place: it wasn't there, or begins later from now on."""
        there = group.shape.rows
        return place >= len(there) or there[place] != row or row in self._moved

    def _taken(self, leaf: int, row: Row) -> list[Piece]:
        """Return a row's pieces; of one that moves within its group, taken out before others come in."""
        pieces = self._pieces(leaf, row)
        if row not in self._moved:
            return pieces
        return [
            Piece(
                [
                    plane[each.row : each.row + 1, :, each.start : each.start + each.count]
                    for plane in each.planes
                ],
                0,
                0,
                each.to,
                each.count,
            )
            for each in pieces
        ]

    def _pieces(self, leaf: int, row: Row) -> list[Piece]:
        kind = self._leaves[leaf]
        if row in self._joining:
            prefilled = self._joining[row]
            start = prefilled.base.tokens if prefilled.base is not None else 0
            return pieces_of(self._parts[row][leaf], kind, prefilled, start)
        skipped = self._moved.get(row, 0)
        return self._homes[row].pieces_of(row, leaf, kind, self._lengths[row] + skipped, skipped)

    def _adopted(self, leaf: int, shape: Shape) -> Planes | None:
        """Return a lone new row's own arrays, if they are just what a group of it needs."""
        [row, *others] = shape.rows
        if others or shape.places != 1 or row not in self._joining or self._leaves[leaf].span is not None:
            return None
        prefilled = self._joining[row]
        if prefilled.base is not None and prefilled.base.tokens != prefilled.first:
            return None
        planes = planes_of(self._parts[row][leaf])
        fits = bool(planes) and planes[0].shape[0] == 1 and planes[0].shape[2] == shape.room
        return list(planes) if fits else None
