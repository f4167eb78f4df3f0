"""Which blocks are on disk, which of them go first, and what came and went: pure, without any file."""

import heapq
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.prefix_chain import next_key
from worker.prefix_disk.records import Entry


@dataclass(frozen=True, slots=True)
class Stranger:
    """A file of another fingerprint: it is never read, but it takes its bytes."""

    path: Path
    nbytes: int


@dataclass(slots=True)
class _Place:
    """A block on disk. Of a whole one the key says what its ids are; `part` has a shorter one's, packed."""

    key: bytes
    parent: bytes
    part: bytes
    cuttable: bool
    has_snapshot: bool
    nbytes: int
    used: float
    waits: bool = False
    gone: bool = False


class DiskIndex:
    """Knows at most `blocks_max` blocks and `bytes_max` bytes for good, strangers' included.

    The least recently used block that nothing is built on goes first, so a chain loses its end before its
    beginning, without which the rest can't be found. Strangers go before all of them, in the order given.
    """

    def __init__(self, bytes_max: int, blocks_max: int) -> None:
        self.bytes_max = bytes_max
        self._blocks_max = blocks_max
        self._places: dict[bytes, _Place] = {}
        self._children: dict[bytes, set[bytes]] = {}
        self._parts: dict[bytes, dict[bytes, bytes]] = {}  # parent → packed ids → key
        self._oldest: list[tuple[float, int, _Place]] = []  # a heap; what was used since is put back
        self._pushed = 0
        self._strangers: deque[Stranger] = deque()
        self._added: set[bytes] = set()
        self._gone: set[bytes] = set()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: bytes) -> bool:
        return key in self._places

    def has(self, key: bytes, *, snapshot: bool) -> bool:
        """Whether it is there, and with a snapshot if that is asked for."""
        place = self._places.get(key)
        return place is not None and (place.has_snapshot or not snapshot)

    # --- finding ------------------------------------------------------------------------------------------

    def find(self, root: bytes, ids: Sequence[int]) -> list[Entry]:
        """Return the whole blocks of `ids` from `root` on, and the longest one in part that follows."""
        found, parent, at = [], root, 0
        while len(block := tuple(ids[at : at + PREFIX_BLOCK_TOKENS])) == PREFIX_BLOCK_TOKENS:
            place = self._places.get(next_key(parent, block))
            if place is None or place.part or place.parent != parent:
                break
            found.append(_entry(place, block))
            parent, at = place.key, at + PREFIX_BLOCK_TOKENS
        last = self._longest_part(parent, ids[at : at + PREFIX_BLOCK_TOKENS - 1])
        return found if last is None else [*found, last]

    def _longest_part(self, parent: bytes, ids: Sequence[int]) -> Entry | None:
        parts = self._parts.get(parent)
        if not parts:
            return None
        for tokens in range(len(ids), 0, -1):
            key = parts.get(_packed(ids[:tokens]))
            if key is not None:
                return _entry(self._places[key], tuple(ids[:tokens]))
        return None

    def keys(self) -> list[bytes]:
        """Return the keys of all whole blocks."""
        return [place.key for place in self._places.values() if not place.part]

    def take_news(self) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of whole blocks that came, and that went, since the last call."""
        news = list(self._added), list(self._gone)
        self._added.clear()
        self._gone.clear()
        return news

    # --- changing -----------------------------------------------------------------------------------------

    def add(self, entry: Entry, used: float) -> None:
        """Take note of a block, or of what took the place of one; `used` is a time that only compares."""
        place = self._places.get(entry.key)
        if place is not None:
            self.nbytes += entry.nbytes - place.nbytes
            place.nbytes, place.has_snapshot, place.cuttable = (
                entry.nbytes,
                entry.has_snapshot,
                entry.cuttable,
            )
            place.used = max(place.used, used)
            return
        part = b"" if len(entry.ids) == PREFIX_BLOCK_TOKENS else _packed(entry.ids)
        place = _Place(
            entry.key, entry.parent, part, entry.cuttable, entry.has_snapshot, entry.nbytes, used=used
        )
        self._places[entry.key] = place
        self._children.setdefault(entry.parent, set()).add(entry.key)
        self.nbytes += entry.nbytes
        if part:
            self._parts.setdefault(entry.parent, {})[part] = entry.key
        else:
            _note(entry.key, self._added, self._gone)
        self._offer(place)

    def touch(self, keys: Sequence[bytes], used: float) -> None:
        """Take note that these were used."""
        for key in keys:
            if (place := self._places.get(key)) is not None:
                place.used = max(place.used, used)

    def remove(self, key: bytes) -> None:
        """Forget a block; what is built on it stays known, until it is forgotten as well."""
        place = self._places.pop(key, None)
        if place is None:
            return
        place.gone = True
        self.nbytes -= place.nbytes
        siblings = self._children[place.parent]
        siblings.discard(key)
        if not siblings:
            del self._children[place.parent]
            if (parent := self._places.get(place.parent)) is not None:
                self._offer(parent)
        if place.part:
            parts = self._parts[place.parent]
            del parts[place.part]
            if not parts:
                del self._parts[place.parent]
        else:
            _note(key, self._gone, self._added)

    def remove_tree(self, key: bytes) -> list[bytes]:
        """Forget a block and what is built on it, which nobody can find now; return the latter's keys."""
        below, waiting = [], list(self._children.get(key, ()))
        while waiting:
            child = waiting.pop()
            below.append(child)
            waiting += self._children.get(child, ())
        for each in (*reversed(below), key):
            self.remove(each)
        return below

    def keep_only(self, keys: set[bytes]) -> None:
        """Forget what isn't among these."""
        for key in [key for key in self._places if key not in keys]:
            self.remove(key)

    def clear(self) -> None:
        """Forget everything, strangers as well."""
        self.set_strangers(())
        self.keep_only(set())

    def set_strangers(self, strangers: Sequence[Stranger]) -> None:
        """Count other fingerprints' files from now on, the first of them the first to go."""
        self.nbytes -= sum(stranger.nbytes for stranger in self._strangers)
        self._strangers = deque(strangers)
        self.nbytes += sum(stranger.nbytes for stranger in self._strangers)

    def remove_stranger(self) -> None:
        """Forget the first one."""
        self.nbytes -= self._strangers.popleft().nbytes

    # --- keeping within the bounds ------------------------------------------------------------------------

    def fits(self, more_bytes: int = 0, more_blocks: int = 0) -> bool:
        blocks = len(self._places) + more_blocks
        return self.nbytes + more_bytes <= self.bytes_max and blocks <= self._blocks_max

    def victim(self, more_bytes: int = 0) -> Stranger | bytes | None:
        """Return what goes first, a stranger's file or a block's key, without forgetting it yet."""
        if self._strangers and self.nbytes + more_bytes > self.bytes_max:
            return self._strangers[0]
        while self._oldest:
            used, _, place = self._oldest[0]
            if not place.gone and place.key not in self._children and place.used <= used:
                return place.key
            heapq.heappop(self._oldest)
            place.waits = False
            # One that others are built on is offered again when the last of them goes.
            if not place.gone and place.key not in self._children:
                self._offer(place)
        return None

    def _offer(self, place: _Place) -> None:
        if place.waits or place.key in self._children:
            return
        place.waits = True
        self._pushed += 1
        heapq.heappush(self._oldest, (place.used, self._pushed, place))
        if len(self._oldest) > 2 * len(self._places) + PREFIX_BLOCK_TOKENS:
            self._oldest = [each for each in self._oldest if not each[2].gone]
            heapq.heapify(self._oldest)


def _note(key: bytes, these: set[bytes], others: set[bytes]) -> None:
    """Put a key into the one list of news, or take it out of the other: both together are no news."""
    if key in others:
        others.discard(key)
    else:
        these.add(key)


def _packed(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


def _entry(place: _Place, ids: tuple[int, ...]) -> Entry:
    return Entry(place.key, place.parent, ids, place.cuttable, place.has_snapshot, place.nbytes)
