"""One group: rows of similar length side by side in arrays, and what a decode step asks of them.

Rows are right-padded: a row's tokens start at slot 0 and its next one goes to its own length. So a row that
comes is copied once into a free place and one that leaves is overwritten, and nobody else moves. (mlx-lm's
batch caches are left-padded and copy the whole batch at each join.)
"""

from dataclasses import dataclass, field
from typing import Final

import mlx.core as mx

from worker.engine.grouping import Row, Shape
from worker.engine.kinds import KeysValues, Planes
from worker.engine.row_caches import Piece

# In multiples of how many slots a row's own tokens are read where it has others in common.
_PADDING: Final = 64


@dataclass(slots=True)
class Group:
    """The arrays of a group, `planes` for each kind of keys and values that the model has, layer by layer."""

    shape: Shape
    planes: list[Planes]

    @property
    def nbytes(self) -> int:
        return sum(plane.nbytes for planes in self.planes for plane in planes)

    def pieces_of(self, row: Row, leaf: int, kind: KeysValues, length: int, skipped: int = 0) -> list[Piece]:
        """Return where a row's tokens stand: in the same slots that they have in any other group.

        Without the first `skipped`, which the row begins behind from now on; then it has no windows.
        """
        count = min(length, kind.slots(self.shape.room)) - skipped
        place = self.shape.rows.index(row)
        return [Piece(self.planes[leaf], place, skipped, 0, count)] if count > 0 else []


def put(planes: Planes, place: int, pieces: list[Piece]) -> None:
    """Copy a row's tokens to a place, and clear what somebody else has left there.

    No weight is given to what a mask hides, but nothing times infinity is no number.
    """
    for plane in planes:
        plane[place] = mx.zeros(plane.shape[1:], dtype=plane.dtype)
    for piece in pieces:
        for plane, source in zip(planes, piece.planes, strict=True):
            taken = source[piece.row, :, piece.start : piece.start + piece.count]
            plane[place, :, piece.to : piece.to + piece.count] = taken


def fill(planes: Planes, pieces: list[list[Piece]]) -> None:
    """Copy rows to the first places; neighbours that stay neighbours are copied together."""
    place = 0
    while place < len(pieces):
        run = _run(pieces, place)
        if run == 1:
            put(planes, place, pieces[place])
        else:
            first = pieces[place][0]
            counts = [each[0].count for each in pieces[place : place + run]]
            for plane, source in zip(planes, first.planes, strict=True):
                taken = _own(source[first.row : first.row + run, :, : max(counts)], counts)
                plane[place : place + run, :, : max(counts)] = taken
        place += run


def _own(rows: mx.array, counts: list[int]) -> mx.array:
    """Clear what stands behind each row's own tokens."""
    if min(counts) == max(counts):
        return rows
    own = mx.arange(rows.shape[2])[None] < mx.array(counts)[:, None]
    return mx.where(own[:, None, :, None], rows, mx.zeros((), dtype=rows.dtype))


def _run(pieces: list[list[Piece]], place: int) -> int:
    """Return how many rows from here on stand in the same order in the same arrays, from slot 0 on."""
    count = 1
    while place + count < len(pieces) and _follows(pieces[place + count - 1], pieces[place + count]):
        count += 1
    return count


def _follows(one: list[Piece], other: list[Piece]) -> bool:
    if len(one) != 1 or len(other) != 1:
        return False
    a, b = one[0], other[0]
    at_zero = a.start == a.to == b.start == b.to == 0
    return at_zero and a.planes[0] is b.planes[0] and b.row == a.row + 1


@dataclass(slots=True)
class StepView:
    """A group in one decode step: batch rows `first` to `last`, and where each row's token goes.

    `lengths` are the tokens that the rows have here before this step, `offsets` the same as int32 (rows,).
    """

    group: Group
    first: int
    last: int
    lengths: list[int]
    offsets: mx.array
    shortest: int = 0
    longest: int = 0
    _rows: mx.array | None = None
    _masks: dict[tuple[int | None, bool, int | None], mx.array | None] = field(default_factory=dict)
    _slots: dict[int, mx.array] = field(default_factory=dict)
    _padded_mask: mx.array | None = None

    def __post_init__(self) -> None:
        self.shortest, self.longest = min(self.lengths), max(self.lengths)

    def visible(self, kind: KeysValues) -> int:
        """Return how many slots hold tokens once this step's are written."""
        count = self.longest + 1
        return count if kind.span is None else min(count, kind.span)

    def write(self, leaf: int, kind: KeysValues, planes: Planes) -> None:
        """Write this step's token of each row, encoded: planes (rows, heads, 1, width)."""
        count = self.last - self.first
        for plane, new in zip(self.group.planes[leaf], planes, strict=True):
            if self.shortest == self.longest:
                slot = self.longest if kind.span is None else self.longest % kind.span
                plane[:count, :, slot : slot + 1] = new
            else:
                if self._rows is None:
                    self._rows = mx.arange(count, dtype=mx.int32)
                plane[self._rows, :, self._slots_of(kind)] = new[:, :, 0]

    def read(self, leaf: int, kind: KeysValues) -> Planes:
        """Return all that is visible, encoded: planes (rows, heads, visible, width)."""
        count, visible = self.last - self.first, self.visible(kind)
        return [plane[:count, :, :visible] for plane in self.group.planes[leaf]]

    def read_padded(self, leaf: int, kind: KeysValues) -> Planes:
        """Return what `read` does and some slots more, so that shapes stay the same for some steps."""
        count, slots = self.last - self.first, self._padded(kind)
        return [plane[:count, :, :slots] for plane in self.group.planes[leaf]]

    def padded_mask(self, kind: KeysValues) -> mx.array:
        """Return which of these slots a row sees, bool (rows, 1, 1, slots), where all are kept."""
        if self._padded_mask is None:
            slots = mx.arange(self._padded(kind), dtype=mx.int32)
            self._padded_mask = (slots[None] <= self.offsets[:, None])[:, None, None, :]
        return self._padded_mask

    def _padded(self, kind: KeysValues) -> int:
        return min(self.group.shape.room, -(-self.visible(kind) // _PADDING) * _PADDING)

    def mask(self, kind: KeysValues, window: int | None) -> mx.array | None:
        """Return which slots a row sees, bool (rows, 1, 1, visible); None if all do.

        `window` bounds how far back a token sees, beyond what the kind itself does.
        """
        key = (kind.span, kind.restarts, window)
        if key not in self._masks:
            self._masks[key] = None if self._sees_all(kind, window) else self._mask(kind, window)
        return self._masks[key]

    def _slots_of(self, kind: KeysValues) -> mx.array:
        if kind.span is None:
            return self.offsets
        if kind.span not in self._slots:
            self._slots[kind.span] = self.offsets % kind.span
        return self._slots[kind.span]

    def _sees_all(self, kind: KeysValues, window: int | None) -> bool:
        visible = self.visible(kind)
        if window is not None and window < visible:
            return False
        if kind.restarts and self.longest >= (kind.span or 0):
            return False
        return self.shortest + 1 >= visible

    def _mask(self, kind: KeysValues, window: int | None) -> mx.array:
        slots, offsets = mx.arange(self.visible(kind), dtype=mx.int32)[None], self.offsets[:, None]
        newest = offsets if kind.span is None or not kind.restarts else offsets % kind.span
        mask = slots <= newest
        if window is not None:
            age = offsets - slots if kind.span is None else (offsets - slots) % kind.span
            mask = mask & (age < window)
        return mask[:, None, None, :]
