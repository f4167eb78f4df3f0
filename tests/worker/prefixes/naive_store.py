"""What a store without bounds must hold and find, said as plainly as can be: all beginnings in one table."""

from dataclasses import dataclass
from typing import Any, Final

# As the tests have the store's own, so that few parts are many.
PARTS_MAX: Final = 4

Held = tuple[str, tuple[int, ...]]  # a salt, and all tokens up to a block's end


@dataclass
class Entry:
    cuttable: bool
    snapshot: Any = None


def start_of(held: Held) -> int:
    return (len(held[1]) - 1) // 64 * 64


def parent_of(held: Held) -> Held:
    return held[0], held[1][: start_of(held)]


class NaiveStore:
    """`pinned` are held by leases, `age` says in which order blocks were used, the oldest first."""

    def __init__(self) -> None:
        self.table: dict[Held, Entry] = {}

    def held(self, ids, salt) -> int:
        whole = 0
        while whole + 64 <= len(ids) and (salt, ids[: whole + 64]) in self.table:
            whole += 64
        return whole

    def insert(self, ids, salt, start, *, cuttable, pinned, age) -> None:
        if self.held(ids[:start], salt) < start:
            return
        for begin in range(start, len(ids), 64):
            new = salt, ids[: begin + 64]
            if new in self.table or (cuttable and len(new[1]) % 64 and self._covers(new)):
                continue
            self.table[new] = Entry(cuttable)
            for part in self._parts(new):
                if self._stands_for(new, part) and part not in pinned:
                    del self.table[part]
            others = [part for part in self._parts(new) if part != new and part not in pinned]
            # What the new one goes on from was used by it.
            unused = [part for part in others if new[1][: len(part[1])] != part[1]]
            used = [part for part in others if part not in unused]
            spare = sorted(unused, key=age) + sorted(used, key=age)
            for part in spare[: max(0, len(self._parts(new)) - PARTS_MAX)]:
                del self.table[part]

    def _parts(self, beside: Held) -> list[Held]:
        return [one for one in self.table if len(one[1]) % 64 and parent_of(one) == parent_of(beside)]

    def _covers(self, part: Held) -> bool:
        return any(
            entry.cuttable and parent_of(held) == parent_of(part) and held[1][: len(part[1])] == part[1]
            for held, entry in self.table.items()
        )

    def _stands_for(self, longer: Held, part: Held) -> bool:
        begins = part != longer and longer[1][: len(part[1])] == part[1]
        keeps_cuts = self.table[longer].cuttable or not self.table[part].cuttable
        return begins and keeps_cuts and self.table[part].snapshot is None

    def snapshot(self, ids, salt, snapshot) -> None:
        if (salt, ids) in self.table:
            self.table[salt, ids].snapshot = snapshot

    def match(self, ids, salt, most) -> tuple[int, Any]:
        """Return how many tokens can be used, and with which snapshot."""
        wanted = ids[:most]
        cut, kept = 0, 0
        for held, entry in self.table.items():
            if held[0] != salt:
                continue
            common = next(
                (at for at, (one, other) in enumerate(zip(held[1], wanted, strict=False)) if one != other),
                min(len(held[1]), len(wanted)),
            )
            if self._can_be_cut(held):
                cut = max(cut, common)
            if entry.snapshot is not None and common == len(held[1]):
                kept = max(kept, common)
        return (kept, self.table[salt, ids[:kept]].snapshot) if kept > cut else (cut, None)

    def _can_be_cut(self, held: Held) -> bool:
        return not held[1] or (self.table[held].cuttable and self._can_be_cut(parent_of(held)))
