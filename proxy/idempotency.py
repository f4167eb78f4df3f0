"""Which requests with an Idempotency-Key are known: pure bookkeeping of what runs and what is stored.

Bytes, entries and time are bounded, and one API key has at most a quarter of the bytes and entries.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from proxy.recording import Recording
from shared.errors import IdempotencyKeyReused, InvalidRequest
from shared.limits import KIB

HEADER: Final = "Idempotency-Key"
ENTRIES_MAX: Final = 10_000
ENTRY_BYTES: Final = KIB  # what one entry takes besides its answer, roughly
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_SHARE: Final = 4


@dataclass(frozen=True, slots=True)
class Scope:
    """What an Idempotency-Key is unique in: the API key that shows it (empty without keys) and the URL."""

    key_id: str
    path: str
    key: str


def idempotency_key(values: Sequence[str]) -> str | None:
    """Return the key that a request's headers of this name say, None without; InvalidRequest if unusable."""
    if not values:
        return None
    if len(values) > 1:
        raise InvalidRequest(f"{HEADER} is sent more than once.", param=HEADER)
    if not _KEY.fullmatch(values[0]):
        raise InvalidRequest(f"{HEADER} must have 1 to 255 visible ASCII characters.", param=HEADER)
    return values[0]


def fingerprint(lane: str | None, body: bytes) -> bytes:
    """Return a digest of all that decides an answer: the body, and the lane that a header asks for."""
    named = b"-" if lane is None else b"+" + lane.encode("utf-8", "surrogateescape")
    return hashlib.blake2b(len(named).to_bytes(8, "big") + named + body, digest_size=32).digest()


@dataclass(slots=True, eq=False)
class Entry:
    """One request that is known. `rules` are set of a stored refusal: it holds only while they do."""

    scope: Scope
    fingerprint: bytes
    recording: Recording
    answer_bytes: int = ENTRY_BYTES
    stored_s: float | None = None
    rules: object = None


@dataclass(slots=True)
class _Share:
    """What is known of one API key's requests; stored ones in the order in which they ended."""

    entries: int = 0
    all_bytes: int = 0
    stored: OrderedDict[Scope, Entry] = field(default_factory=OrderedDict)


class IdempotencyStore:
    """Entries by scope. The oldest stored ones go when there is no room; those that run are never taken.

    Times come from a clock that doesn't jump.
    """

    def __init__(self, bytes_max: int, lifetime_s: float, entries_max: int = ENTRIES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lifetime_s = lifetime_s
        self._entries_max = entries_max
        self._entries: dict[Scope, Entry] = {}
        self._stored: OrderedDict[Scope, Entry] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self.all_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, scope: Scope, digest: bytes, rules: object, now_s: float) -> Entry | None:
        """Return what is known of a request; IdempotencyKeyReused if it was another under the same key."""
        self._expire(now_s)
        entry = self._entries.get(scope)
        if entry is None:
            return None
        if entry.fingerprint != digest:
            raise IdempotencyKeyReused(
                f"This {HEADER} came with another request before; use a new one.", param=HEADER
            )
        if entry.rules is not None and entry.rules is not rules:
            self.forget(entry)
            return None
        return entry

    def begin(self, scope: Scope, digest: bytes, recording: Recording, now_s: float) -> Entry | None:
        """Make an entry for a request that isn't known and runs from now on; None if there is no room."""
        assert scope not in self._entries, "it was looked for before"
        self._expire(now_s)
        entry = Entry(scope, digest, recording)
        share = self._shares.setdefault(scope.key_id, _Share())
        self._entries[scope] = entry
        share.entries += 1
        self._add(share, ENTRY_BYTES)
        return entry if self._make_room(entry, share) else None

    def grew(self, entry: Entry, by_bytes: int) -> bool:
        """Count what a running answer has become longer by; False if it is forgotten for want of room."""
        if not self.holds(entry):
            return False
        share = self._shares[entry.scope.key_id]
        entry.answer_bytes += by_bytes
        self._add(share, by_bytes)
        return self._make_room(entry, share)

    def store(self, entry: Entry, now_s: float, *, rules: object = None) -> None:
        """Keep an answer that has ended; a refusal only while `rules` hold."""
        if not self.holds(entry):
            return
        assert entry.stored_s is None, "it ends once"
        entry.stored_s = now_s
        entry.rules = rules
        self._stored[entry.scope] = entry
        self._shares[entry.scope.key_id].stored[entry.scope] = entry

    def forget(self, entry: Entry) -> None:
        """Let the next request of this scope begin anew. A second time does nothing."""
        if not self.holds(entry):
            return
        entry.recording.forgotten = True
        del self._entries[entry.scope]
        share = self._shares[entry.scope.key_id]
        share.entries -= 1
        self._add(share, -entry.answer_bytes)
        self._stored.pop(entry.scope, None)
        share.stored.pop(entry.scope, None)
        if not share.entries:
            del self._shares[entry.scope.key_id]

    def holds(self, entry: Entry) -> bool:
        return self._entries.get(entry.scope) is entry

    def _add(self, share: _Share, more_bytes: int) -> None:
        share.all_bytes += more_bytes
        self.all_bytes += more_bytes

    def _expire(self, now_s: float) -> None:
        while self._stored:
            oldest = next(iter(self._stored.values()))
            assert oldest.stored_s is not None
            if now_s - oldest.stored_s < self._lifetime_s:
                return
            self.forget(oldest)

    def _make_room(self, entry: Entry, share: _Share) -> bool:
        """Forget stored entries until the bounds hold; the given one, too, if that isn't enough."""
        own = share.stored
        while self._over_share(entry.scope, share) and own:
            self.forget(next(iter(own.values())))
        while self._over() and self._stored:
            self.forget(next(iter(self._stored.values())))
        too_long = entry.answer_bytes > max(ENTRY_BYTES, self._bytes_max // _SHARE)
        if too_long or self._over() or self._over_share(entry.scope, share):
            self.forget(entry)
            return False
        return True

    def _over(self) -> bool:
        return self.all_bytes > self._bytes_max or len(self._entries) > self._entries_max

    def _over_share(self, scope: Scope, share: _Share) -> bool:
        """Whether one API key has more than its share; where there are no keys, all of it is everybody's."""
        if not scope.key_id:
            return False
        return share.all_bytes > max(ENTRY_BYTES, self._bytes_max // _SHARE) or share.entries > max(
            1, self._entries_max // _SHARE
        )
