"""What rows hold together: beginnings that their prompts have in common are held once, the rest by each.

Two rows whose prompts begin with the same blocks, enough of them, share these; a row's part of what is shared
is the longest that it has had in common with any other beside it. It keeps that part when the other leaves:
the worker doesn't give it a copy of its own then. So what is held depends on who met whom, and each row's
part is kept here.
"""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.model_facts import ModelFacts, room_tokens

_HALF: Final = PREFIX_BLOCK_TOKENS // 2


@dataclass(frozen=True, slots=True)
class Row:
    """Reserved tokens, the blocks' names of its prompt, and how many of these it holds with others."""

    tokens: int
    names: Sequence[int] = ()
    shared: int = 0


class Commons:
    """Rows by name, and the sum of their bytes, kept with each change.

    Only rows that have the first `_from` blocks in common share any. What less than that is common to others,
    too, is reckoned to each lot, so these first blocks stand under the last one's name alone. `_known` counts
    the rows that have a block in their prompts, `_holders` those whose shared part it is in.
    """

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        # With checkpoints two rows may share less than they have in common, so nothing is reckoned on.
        shares = facts.batches and facts.reuse == "any"
        self._from = -(-facts.shares_from // PREFIX_BLOCK_TOKENS) if shares else 0
        self._block_bytes = PREFIX_BLOCK_TOKENS * facts.kv_bytes_per_token
        self._known: dict[int, int] = {}
        self._holders: dict[int, int] = {}
        self.rows: dict[str, Row] = {}
        self.bytes = 0

    def copy(self) -> "Commons":
        other = Commons(self._facts)
        other._known, other._holders = dict(self._known), dict(self._holders)
        other.rows, other.bytes = dict(self.rows), self.bytes
        return other

    def has_part_of(self, names: Sequence[int]) -> bool:
        """Whether a row with these blocks would share some with those that are here."""
        return self._leading(names, self._known) > 0

    def added_bytes(self, tokens: int, names: Sequence[int]) -> int:
        """Return by how much one more row would raise the sum. Others may then share more than before."""
        shared = self._leading(names, self._known)
        fresh = shared - self._leading(names, self._holders)
        added = self._own_bytes(tokens, shared) + self._block_bytes * fresh
        if fresh:
            for name, part in self._growing(names):
                row = self.rows[name]
                added += self._own_bytes(row.tokens, part) - self._own_bytes(row.tokens, row.shared)
        return added

    def add(self, name: str, tokens: int, names: Sequence[int]) -> None:
        """Take in a row, which may share with others, and they with it."""
        self.bytes += self.added_bytes(tokens, names)
        shared = self._leading(names, self._known)
        for other, part in list(self._growing(names)):
            row = self.rows[other]
            self._count(self._holders, row.names, row.shared, part, 1)
            self.rows[other] = replace(row, shared=part)
        self.rows[name] = Row(tokens, names, shared)
        self._count(self._holders, names, 0, shared, 1)
        self._count(self._known, names, 0, len(names), 1)

    def _growing(self, names: Sequence[int]) -> Iterator[tuple[str, int]]:
        """Yield the rows that would share more than before with one that begins so, and how many blocks."""
        for name, row in self.rows.items():
            part = _common(row.names, names)
            if part > row.shared and part >= self._from > 0:
                yield name, part

    def grown_bytes(self, name: str, tokens: int) -> int:
        """Return by how much the sum would rise if a row had so many tokens."""
        row = self.rows[name]
        return self._own_bytes(tokens, row.shared) - self._own_bytes(row.tokens, row.shared)

    def grow(self, name: str, tokens: int) -> None:
        self.bytes += self.grown_bytes(name, tokens)
        self.rows[name] = replace(self.rows[name], tokens=tokens)

    def drop(self, name: str) -> None:
        """Forget a row, and what nobody else holds of what it shared."""
        row = self.rows.pop(name)
        self._count(self._known, row.names, 0, len(row.names), -1)
        self._count(self._holders, row.names, 0, row.shared, -1)
        gone = row.shared - self._leading(row.names, self._holders)
        self.bytes -= self._own_bytes(row.tokens, row.shared) + self._block_bytes * gone

    def _own_bytes(self, tokens: int, shared: int) -> int:
        """Return what a row holds beside `shared` blocks: windows and fixed state in full.

        Its own cache has room in steps, and so has one that isn't cut yet: whichever takes more.
        """
        facts, elsewhere = self._facts, shared * PREFIX_BLOCK_TOKENS
        if not shared:
            return facts.row_bytes(tokens)
        whole = room_tokens(tokens, facts.kv_pad_tokens)
        room = max(whole - elsewhere, room_tokens(tokens - elsewhere, facts.kv_pad_tokens))
        behind = tokens - elsewhere - _HALF
        if behind >= 0:
            # It may have half a block more in common, and long caches have room in longer steps than that.
            room = max(room, _HALF + room_tokens(behind, facts.kv_pad_tokens))
        return facts.row_bytes(tokens) - (whole - room) * facts.kv_bytes_per_token

    def _leading(self, names: Sequence[int], counted: dict[int, int]) -> int:
        """Return how many of the first blocks are counted there: none, or as many as are shared at least."""
        if not 0 < self._from <= len(names) or names[self._from - 1] not in counted:
            return 0
        further = range(self._from, len(names))
        return self._from + bisect.bisect_left(further, True, key=lambda place: names[place] not in counted)

    def _count(self, counts: dict[int, int], names: Sequence[int], begin: int, end: int, by: int) -> None:
        """Count one row more, or one less, for the blocks from `begin` to `end`, if any are shared at all."""
        if not self._from:
            return
        for place in range(max(begin, self._from - 1), end):
            name = names[place]
            count = counts.get(name, 0) + by
            if count:
                counts[name] = count
            else:
                del counts[name]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many blocks two prompts have in common. A name tells of all that is before it, too."""
    places = range(min(len(one), len(other)))
    return bisect.bisect_left(places, True, key=lambda place: one[place] != other[place])
