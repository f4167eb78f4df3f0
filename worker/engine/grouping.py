"""Which rows share a padded cache: few groups, little padding, and seldom anything copied. Pure.

A group is an array of `places` rows with `room` tokens each, so what its rows don't fill is waste. More
groups waste less and cost more time, since attention runs once for each. Here groups are as few as keep them
all within a bound: bytes of the arrays over bytes of what their rows hold. A row joins a group only well
within it and two groups are made one even further within it, while a group is taken apart only beyond it; so
lengths that change a little move nothing.
"""

import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shared.model_facts import room_tokens

BOUND: Final = 1.3
# Shorter rows waste little, whatever they are padded to.
SHORT_TOKENS: Final = 256
_JOIN_SHARE: Final = 0.6
_MERGE_SHARE: Final = 0.5
# Where memory is all but full, what is merged has to be taken apart again soon.
_MERGE_ABOVE: Final = 1.05
_SPARE_PART: Final = 8

Row = Hashable


@dataclass(frozen=True, slots=True)
class Shape:
    """A group as its arrays are: its rows in the order of their places, which may be more, and their room."""

    rows: tuple[Row, ...]
    places: int
    room: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A group to be. `old` is the one in whose arrays it goes on, None if it gets new ones."""

    shape: Shape
    old: Shape | None


@dataclass(frozen=True, slots=True)
class PlaceCosts:
    """What a place costs: bytes a token of layers that keep all, and of those that keep the last ones."""

    kv_bytes_per_token: int
    window_tokens: int
    window_bytes_per_token: int
    pad_tokens: int

    def place_bytes(self, room: int) -> int:
        return room * self.kv_bytes_per_token + min(room, self.window_tokens) * self.window_bytes_per_token

    def room(self, length: int) -> int:
        """Return the least room in which a row of `length` tokens has its next one."""
        return room_tokens(length, self.pad_tokens)


@dataclass(frozen=True, slots=True)
class Bound:
    """How many bytes the arrays may have for each byte that rows hold.

    `tight` counts what a row alone would take to the byte; otherwise a short row counts as SHORT_TOKENS.
    """

    costs: PlaceCosts
    ratio: float
    tight: bool

    @classmethod
    def within(cls, costs: PlaceCosts, lengths: Iterable[int], bytes_max: int) -> "Bound":
        """Return the loosest bound up to BOUND by which rows of these lengths keep within `bytes_max`.

        Where not even rows alone would, each is alone.
        """
        lengths = list(lengths)
        loose = cls(costs, BOUND, tight=False)
        if BOUND * sum(map(loose.held, lengths)) <= bytes_max:
            return loose
        tight = cls(costs, 1.0, tight=True)
        held = sum(map(tight.held, lengths))
        return cls(costs, min(BOUND, max(1.0, bytes_max / max(1, held))), tight=True)

    def held(self, length: int) -> int:
        """Return the bytes that a row of `length` tokens is said to hold."""
        costs = self.costs
        if self.tight:
            return costs.place_bytes(costs.room(length))
        return costs.place_bytes(max(length + 1, SHORT_TOKENS))

    def holds(self, lengths: Sequence[int], places: int, room: int, share: float = 1.0) -> bool:
        """Whether a group keeps within this `share` of what the bound allows beyond 1."""
        allowed = 1 + (self.ratio - 1) * share
        return places * self.costs.place_bytes(room) <= allowed * sum(map(self.held, lengths))


@dataclass(slots=True)
class _Draft:
    """A group to be: rows that are in `old` already, and rows that come."""

    old: Shape | None
    stay: list[Row] = field(default_factory=list)
    come: list[Row] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return self.stay + self.come


class Arrangement:
    """One decision: from the groups that are and the rows that there must be to the groups that shall be."""

    def __init__(
        self,
        lengths: Mapping[Row, int],
        bound: Bound,
        *,
        alone: bool = False,
        moved: Collection[Row] = (),
    ) -> None:
        self._lengths = lengths
        self._bound = bound
        self._alone = alone
        self._moved = moved

    def of(self, shapes: Sequence[Shape]) -> list[Placed]:
        """Return the groups. Rows without a length have left, lengths without a row are new; moved are both.

        A group that goes on in its arrays takes nobody in from another group, and gives nobody away.
        """
        drafts = [
            part
            for shape in shapes
            for part in self._parts(shape, [row for row in shape.rows if self._stays(row)])
        ]
        present = {row for shape in shapes for row in shape.rows if row not in self._moved}
        newcomers = [row for row in self._lengths if row not in present]
        for row in sorted(newcomers, key=lambda new: -self._lengths[new]):
            self._place(row, drafts)
        if not self._alone and self._bound.ratio > _MERGE_ABOVE:
            self._merge_one_pair(drafts)
        return [self._placed(draft) for draft in drafts]

    def _stays(self, row: Row) -> bool:
        return row in self._lengths and row not in self._moved

    def _parts(self, shape: Shape, stay: list[Row]) -> list[_Draft]:
        """Keep a group together, or take it apart into as few as keep within the bound."""
        if not stay:
            return []
        whole = _Draft(shape, stay)
        if self._fits_in_place(whole) or self._holds(stay):
            return [whole]
        parts: list[list[Row]] = []
        for row in sorted(stay, key=lambda each: -self._lengths[each]):
            if parts and self._holds([*parts[-1], row], _JOIN_SHARE):
                parts[-1].append(row)
            else:
                parts.append([row])
        return [_Draft(None, [], part) for part in parts]

    def _place(self, row: Row, drafts: list[_Draft]) -> None:
        """Add a row to the group that grows least by it, or start one."""
        near = [] if self._alone else [each for each in drafts if self._holds([*each.rows, row], _JOIN_SHARE)]
        if near:
            min(near, key=lambda each: self._bytes([*each.rows, row]) - self._bytes(each.rows)).come.append(
                row
            )
        else:
            drafts.append(_Draft(None, [], [row]))

    def _merge_one_pair(self, drafts: list[_Draft]) -> None:
        """Make one of the two neighbours that are cheapest to copy, if any may be: one pair at a time."""
        ordered = sorted(drafts, key=lambda each: self._longest(each.rows))
        pairs = [
            (one, other)
            for one, other in itertools.pairwise(ordered)
            if self._holds(one.rows + other.rows, _MERGE_SHARE)
        ]
        if pairs:
            one, other = min(pairs, key=lambda pair: self._bytes(pair[0].rows + pair[1].rows))
            drafts.remove(one)
            drafts.remove(other)
            drafts.append(_Draft(None, [], one.rows + other.rows))

    def _placed(self, draft: _Draft) -> Placed:
        old, rows = draft.old, tuple(draft.rows)
        room = self._room(rows)
        spare = len(rows) // _SPARE_PART
        # With a row fewer, too: a place that must be given back as soon as one leaves is for nothing.
        roomy = self._bound.holds(sorted(self._lengths_of(rows))[:-1], len(rows) + spare, room)
        places = len(rows) + (spare if roomy else 0)
        if old is not None and (self._fits_in_place(draft) or (old.places, old.room) == (places, room)):
            return Placed(Shape(_filled(old, draft), old.places, old.room), old)
        return Placed(Shape(rows, places, room), None)

    def _fits_in_place(self, draft: _Draft) -> bool:
        old, rows = draft.old, draft.rows
        if old is None or len(rows) > old.places or self._longest(rows) + 1 > old.room:
            return False
        return self._bound.holds(self._lengths_of(rows), old.places, old.room)

    def _holds(self, rows: Sequence[Row], share: float = 1.0) -> bool:
        return self._bound.holds(self._lengths_of(rows), len(rows), self._room(rows), share)

    def _bytes(self, rows: Sequence[Row]) -> int:
        return len(rows) * self._bound.costs.place_bytes(self._room(rows)) if rows else 0

    def _room(self, rows: Sequence[Row]) -> int:
        return self._bound.costs.room(self._longest(rows))

    def _longest(self, rows: Sequence[Row]) -> int:
        return max(self._lengths[row] for row in rows)

    def _lengths_of(self, rows: Iterable[Row]) -> list[int]:
        return [self._lengths[row] for row in rows]


def _filled(old: Shape, draft: _Draft) -> tuple[Row, ...]:
    """Return the rows by place: newcomers take the gaps, or, if there are too few, the last rows do."""
    stay, come = set(draft.stay), list(draft.come)
    count = len(draft.rows)
    places: list[Row | None] = [row if row in stay else None for row in old.rows]
    places += [None] * (old.places - len(places))
    gaps = [place for place, row in enumerate(places) if row is None and place < count]
    late = [row for row in places[count:] if row is not None]
    for place, row in zip(gaps, [*late, *come], strict=True):
        places[place] = row
    filled = tuple(row for row in places[:count] if row is not None)
    assert len(filled) == count
    return filled
