"""The ledger of bytes and slots: what the running answers may grow to, against what the worker can hold."""

import bisect
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from shared.model_facts import ModelFacts


@dataclass(frozen=True, slots=True)
class Reserve:
    """What must still be free once a lane has started something: rows, and bytes of KV caches.

    However much the lanes above hold already. A bound on what lower lanes hold together would be used up by
    the first answer above, and each further one would need a park.
    """

    slots: int = 0
    kv_bytes: int = 0


NO_RESERVE: Final = Reserve()


class Ledger:
    """Reservations in tokens, priced by the model's facts. Returns to zero when idle.

    Rows that run together take the sum of what each takes; where one runs at a time, what the largest takes.
    `full_bytes` is what the worker offered, of which `budget_bytes` may be taken now.
    """

    def __init__(self, facts: ModelFacts, budget_bytes: int, slots: int) -> None:
        self.facts = facts
        self.full_bytes = budget_bytes
        self.budget_bytes = budget_bytes
        self.slots = slots
        self._rows: dict[str, int] = {}
        self._summed_bytes = 0

    @property
    def reserved_bytes(self) -> int:
        return self._summed_bytes if self.facts.batches else self._largest_bytes(self._rows.values())

    @property
    def rows(self) -> int:
        return len(self._rows)

    def tokens_of(self, name: str) -> int:
        """Return the tokens that are reserved for a running answer."""
        return self._rows[name]

    def could_ever_fit(self, tokens: int) -> bool:
        """Whether an answer of `tokens` fits in an empty worker that has all its memory."""
        return self.facts.row_bytes(tokens) <= self.full_bytes

    def fits_alone(self, tokens: int) -> bool:
        """Whether an answer of `tokens` fits in an empty worker as it is now."""
        return self.facts.row_bytes(tokens) <= self.budget_bytes

    def limit(self, budget_bytes: int, slots: int) -> None:
        """Go on with so many bytes and rows. What is reserved stays, even if it is more."""
        self.budget_bytes = min(budget_bytes, self.full_bytes)
        self.slots = slots

    def usable_slots(self, reserve: Reserve) -> int:
        """Return how many rows there may be, of all lanes, where this much must stay free."""
        return self.slots - min(reserve.slots, self.slots - 1)

    def fits(self, tokens: int, reserve: Reserve, without: Collection[str] = ()) -> bool:
        """Whether an answer of `tokens` fits beside those that run, `without` not counted among them.

        In an empty worker no reserve is kept: whatever fits by arithmetic may start there.
        """
        rows = len(self._rows) - len(self._rows.keys() & set(without))
        if not rows:
            return self.fits_alone(tokens)
        return rows < self.usable_slots(reserve) and self.affords(tokens, reserve, without)

    def room_tokens(self, reserve: Reserve, below_tokens: int) -> int:
        """Return the tokens of the longest answer that fits, fewer than `below_tokens`; 0 if none does."""
        return bisect.bisect_left(
            range(1, below_tokens), True, key=lambda tokens: not self.fits(tokens, reserve)
        )

    def affords(self, tokens: int, reserve: Reserve, without: Collection[str] = ()) -> bool:
        """Whether the bytes suffice for one more answer, however many rows there are."""
        gone = self._rows.keys() & set(without)
        kept_bytes = reserve.kv_bytes if len(gone) < len(self._rows) else 0
        return self._bytes_beside(tokens, gone) <= self.budget_bytes - kept_bytes

    def _bytes_beside(self, tokens: int, gone: Collection[str]) -> int:
        """Return what one more answer takes together with those that run, but for the rows `gone`."""
        if self.facts.batches:
            gone_bytes = sum(self.facts.row_bytes(self._rows[name]) for name in gone)
            return self._summed_bytes - gone_bytes + self.facts.row_bytes(tokens)
        stay = [row for name, row in self._rows.items() if name not in gone]
        return self._largest_bytes([tokens, *stay])

    def _largest_bytes(self, lengths: Iterable[int]) -> int:
        return max(map(self.facts.row_bytes, lengths), default=0)

    def reserve(self, name: str, tokens: int) -> None:
        assert name not in self._rows, f"{name} holds a reservation already"
        assert self.fits(tokens, NO_RESERVE), f"{name} doesn't fit"
        self._rows[name] = tokens
        self._summed_bytes += self.facts.row_bytes(tokens)

    def grow(self, name: str, tokens: int) -> bool:
        """Raise a reservation, if there is room for that; return whether there was."""
        if self._bytes_beside(tokens, [name]) > self.budget_bytes:
            return False
        self._summed_bytes += self.facts.row_bytes(tokens) - self.facts.row_bytes(self._rows[name])
        self._rows[name] = tokens
        return True

    def release(self, name: str) -> None:
        """Give a reservation back; without one, nothing happens."""
        tokens = self._rows.pop(name, None)
        if tokens is not None:
            self._summed_bytes -= self.facts.row_bytes(tokens)

    def copy(self) -> "Ledger":
        """Return a ledger of the same rows, to try something out on."""
        other = Ledger(self.facts, self.full_bytes, self.slots)
        other.budget_bytes = self.budget_bytes
        other._rows, other._summed_bytes = dict(self._rows), self._summed_bytes
        return other
