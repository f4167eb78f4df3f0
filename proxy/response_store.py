"""Which finished responses are kept, to be read again or gone on from: pure bookkeeping.

Bytes, entries and time are bounded, and one API key has at most a quarter of the bytes and entries. Another
key's responses aren't there for it. A response that goes on from another shares that one's turns, so a long
conversation is held once, and it stays whole when the responses it came by are gone.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from shared.limits import KIB

ENTRIES_MAX: Final = 10_000
ENTRY_BYTES: Final = KIB  # what one entry takes besides what it holds, roughly
ITEM_BYTES: Final = 512  # likewise, with its place in the index
_REFERENCE_BYTES: Final = 8
_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class KeptItem:
    """One item as JSON, under its id."""

    id: str
    raw: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """What one request added to its conversation: its own input, and what was answered."""

    inputs: tuple[KeptItem, ...]
    outputs: tuple[KeptItem, ...]

    @property
    def items(self) -> tuple[KeptItem, ...]:
        return self.inputs + self.outputs

    @property
    def held_bytes(self) -> int:
        return sum(ITEM_BYTES + len(item.raw) for item in self.items)


@dataclass(frozen=True, slots=True)
class Kept:
    """One response: its body as JSON, and its conversation up to its own answer, which is the last turn's."""

    id: str
    body: bytes
    turns: tuple[Turn, ...]
    stored_s: float

    @property
    def inputs(self) -> Iterator[KeptItem]:
        """Yield all items that it was made from."""
        for turn in self.turns[:-1]:
            yield from turn.items
        yield from self.turns[-1].inputs

    @property
    def items(self) -> Iterator[KeptItem]:
        """Yield all items of its conversation."""
        for turn in self.turns:
            yield from turn.items

    @property
    def own_bytes(self) -> int:
        """What it takes beside its turns."""
        return ENTRY_BYTES + len(self.body) + _REFERENCE_BYTES * len(self.turns)


@dataclass(slots=True)
class _Share:
    """What one API key has: its responses in the order in which they came, their turns, their items."""

    kept: OrderedDict[str, Kept] = field(default_factory=OrderedDict)
    turns: Counter[Turn] = field(default_factory=Counter)  # by how many responses hold each
    items: dict[str, dict[Turn, bytes]] = field(default_factory=dict)
    held_bytes: int = 0


class ResponseStore:
    """Responses by API key and id. The oldest go when there is no room.

    Times come from a clock that doesn't jump.
    """

    def __init__(self, bytes_max: int, lifetime_s: float, entries_max: int = ENTRIES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lifetime_s = lifetime_s
        self._entries_max = entries_max
        self._order: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    def find(self, key_id: str, id_: str, now_s: float) -> Kept | None:
        self._expire(now_s)
        share = self._shares.get(key_id)
        return None if share is None else share.kept.get(id_)

    def item(self, key_id: str, id_: str, now_s: float) -> bytes | None:
        """Return an item of any response that the key has kept: as it came last, if it came several times."""
        self._expire(now_s)
        share = self._shares.get(key_id)
        found = None if share is None else share.items.get(id_)
        return None if found is None else next(reversed(found.values()))

    def keep(self, key_id: str, kept: Kept) -> bool:
        """Keep a response that is new; False if there is no room for it, even without all older ones."""
        self._expire(kept.stored_s)
        share = self._shares.setdefault(key_id, _Share())
        assert kept.id not in share.kept, "ids are given once"
        share.kept[kept.id] = kept
        self._order[key_id, kept.id] = kept.stored_s
        self._count(share, kept.own_bytes)
        for turn in kept.turns:
            self._hold(share, turn)
        while share.kept and self._over_share(key_id, share):
            self.drop(key_id, next(iter(share.kept)))
        while self._over():
            self.drop(*next(iter(self._order)))
        return kept.id in share.kept

    def drop(self, key_id: str, id_: str) -> bool:
        """Forget a response; False if it isn't there. What others share with it stays."""
        share = self._shares.get(key_id)
        kept = None if share is None else share.kept.pop(id_, None)
        if share is None or kept is None:
            return False
        del self._order[key_id, id_]
        self._count(share, -kept.own_bytes)
        for turn in kept.turns:
            self._let_go(share, turn)
        if not share.kept:
            del self._shares[key_id]
        return True

    def _hold(self, share: _Share, turn: Turn) -> None:
        share.turns[turn] += 1
        if share.turns[turn] > 1:
            return
        self._count(share, turn.held_bytes)
        for item in turn.items:
            share.items.setdefault(item.id, {})[turn] = item.raw

    def _let_go(self, share: _Share, turn: Turn) -> None:
        share.turns[turn] -= 1
        if share.turns[turn]:
            return
        del share.turns[turn]
        self._count(share, -turn.held_bytes)
        for item in turn.items:
            # One turn may have an item twice.
            holders = share.items.get(item.id, {})
            holders.pop(turn, None)
            if not holders:
                share.items.pop(item.id, None)

    def _count(self, share: _Share, more_bytes: int) -> None:
        share.held_bytes += more_bytes
        self.held_bytes += more_bytes

    def _expire(self, now_s: float) -> None:
        while self._order:
            oldest, stored_s = next(iter(self._order.items()))
            if now_s - stored_s < self._lifetime_s:
                return
            self.drop(*oldest)

    def _over(self) -> bool:
        return self.held_bytes > self._bytes_max or len(self._order) > self._entries_max

    def _over_share(self, key_id: str, share: _Share) -> bool:
        """Whether one API key has more than its share; where there are no keys, all of it is everybody's."""
        if not key_id:
            return False
        too_many = len(share.kept) > max(1, self._entries_max // _SHARE)
        return too_many or share.held_bytes > self._bytes_max // _SHARE
