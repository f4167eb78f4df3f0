"""The ledger of bytes and slots: what the running answers may grow to, against what the worker can hold."""

import bisect
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from proxy.admission.commons import Commons, Row
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

    Rows that run together take the sum of what each takes, but what their prompts have in common is reserved
    once where the model's family shares it: `names` are those of a prompt's blocks. Where one row runs at a
    time, the rows take what the largest takes.
    `full_bytes` is what the worker offered, of which `budget_bytes` may be taken now.
    """

    def __init__(self, facts: ModelFacts, budget_bytes: int, slots: int) -> None:
        self.facts = facts
        self.full_bytes = budget_bytes
        self.budget_bytes = budget_bytes
        self.slots = slots
        self._commons = Commons(facts)

    @property
    def reserved_bytes(self) -> int:
        if self.facts.batches:
            return self._commons.bytes
        return self._largest_bytes(row.tokens for row in self._rows.values())

    @property
    def _rows(self) -> dict[str, Row]:
        return self._commons.rows

    @property
    def rows(self) -> int:
        return len(self._rows)

    def tokens_of(self, name: str) -> int:
        """Return the tokens that are reserved for a running answer."""
        return self._rows[name].tokens

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

    def fits(
        self, tokens: int, reserve: Reserve, without: Collection[str] = (), names: Sequence[int] = ()
    ) -> bool:
        """Whether an answer of `tokens` fits beside those that run, `without` not counted among them.

        In an empty worker no reserve is kept: whatever fits by arithmetic may start there.
        """
        if without:
            return self.that_lost(without).fits(tokens, reserve, (), names)
        if not self._rows:
            return self.fits_alone(tokens)
        return self.rows < self.usable_slots(reserve) and self.affords(tokens, reserve, names)

    def that_lost(self, gone: Iterable[str]) -> "Ledger":
        """Return a ledger without some of the rows."""
        other = self.copy()
        for name in gone:
            other.release(name)
        return other

    def room_tokens(self, reserve: Reserve, below_tokens: int) -> int:
        """Return the tokens of the longest answer that fits and shares nothing; 0 if none does.

        Fewer than `below_tokens`.
        """
        return bisect.bisect_left(
            range(1, below_tokens), True, key=lambda tokens: not self.fits(tokens, reserve)
        )

    def may_share(self, names: Sequence[int]) -> bool:
        """Whether an answer with these blocks would share some with a row."""
        return self._commons.has_part_of(names)

    def affords(self, tokens: int, reserve: Reserve, names: Sequence[int] = ()) -> bool:
        """Whether the bytes suffice for one more answer, however many rows there are."""
        kept_bytes = reserve.kv_bytes if self._rows else 0
        return self._bytes_with(tokens, names) <= self.budget_bytes - kept_bytes

    def _bytes_with(self, tokens: int, names: Sequence[int]) -> int:
        """Return what one more answer takes together with those that run."""
        if self.facts.batches:
            return self._commons.bytes + self._commons.added_bytes(tokens, names)
        return max(self.facts.row_bytes(tokens), self.reserved_bytes)

    def _largest_bytes(self, lengths: Iterable[int]) -> int:
        return max(map(self.facts.row_bytes, lengths), default=0)

    def reserve(self, name: str, tokens: int, names: Sequence[int] = ()) -> None:
        """Take a row in, which fits. `names` are those of its prompt's blocks but for its last token."""
        assert name not in self._rows, f"{name} holds a reservation already"
        assert self.fits(tokens, NO_RESERVE, (), names), f"{name} doesn't fit"
        self._commons.add(name, tokens, names)

    def grow(self, name: str, tokens: int) -> bool:
        """Raise a reservation, if there is room for that; return whether there was."""
        if self._bytes_grown(name, tokens) > self.budget_bytes:
            return False
        self._commons.grow(name, tokens)
        return True

    def _bytes_grown(self, name: str, tokens: int) -> int:
        if self.facts.batches:
            return self._commons.bytes + self._commons.grown_bytes(name, tokens)
        others = (row.tokens for other, row in self._rows.items() if other != name)
        return self._largest_bytes([tokens, *others])

    def release(self, name: str) -> None:
        """Give a reservation back; without one, nothing happens."""
        if name in self._rows:
            self._commons.drop(name)

    def copy(self) -> "Ledger":
        """Return a ledger of the same rows, to try something out on."""
        other = Ledger(self.facts, self.full_bytes, self.slots)
        other.budget_bytes = self.budget_bytes
        other._commons = self._commons.copy()
        return other
