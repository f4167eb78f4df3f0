"""Beginnings on disk: written behind as rows grow, and put back into the store for who begins with them."""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final, cast

from shared.limits import PREFIX_BLOCK_TOKENS, PREFIX_BLOCKS_MAX
from shared.prefix_chain import next_key
from worker.engine.kinds import KeysValues
from worker.engine.slabs import RowSource, Snapshot, moved
from worker.engine.stored_arrays import slab_of, snapshot_of, stored_planes, stored_snapshot
from worker.prefix_disk.reading import Reading
from worker.prefix_disk.records import Entry, Record
from worker.prefix_disk.tier import DiskTier
from worker.prefixes.blocks import Block
from worker.prefixes.store import PrefixStore
from worker.sequence import Sequence

# What is turned into bytes between two steps: these wait for it.
_TURN_BYTES: Final = 16 << 20
# A disk that takes longer than this is slower than computing.
_READING_S: Final = 20.0
# Once so much is read, or was asked for, and isn't in the store yet, nothing more is asked for.
_AWAITED_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class _Awaited:
    entries: list[Entry]
    first: int
    reading: Reading
    until: float

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries)


class DiskBeginnings:
    """Between the store and the disk tier. `like` is a snapshot of this model's, to check others by."""

    def __init__(
        self,
        tier: DiskTier,
        store: PrefixStore,
        kinds: Seq[KeysValues],
        root: Callable[[str], bytes],
        like: Callable[[], Snapshot],
    ) -> None:
        self.tier = tier
        self._store = store
        self._kinds = kinds
        self._root = root
        self._like = like
        self._awaited: dict[Sequence, _Awaited] = {}
        self._looked: set[Sequence] = set()
        self._rows: dict[Sequence, list[bytes]] = {}
        self._offered: deque[Block] = deque(maxlen=PREFIX_BLOCKS_MAX)

    # --- reading ------------------------------------------------------------------------------------------

    def is_ready(self, sequence: Sequence, most: int, room_bytes: int) -> bool:
        """Whether what the disk has of a prompt's first `most` tokens is in the store by now; once each.

        No more of it is put there than there is room for, and what else is kept gives way to it.
        """
        awaited = self._awaited.get(sequence)
        if awaited is None:
            if sequence in self._looked:
                return True
            if sum(each.nbytes for each in self._awaited.values()) >= _AWAITED_BYTES:
                return False  # asked for as soon as others have theirs, or waited too long
            self._looked.add(sequence)
            awaited = self._ask(sequence, most)
            if awaited is None:
                return True
            self._awaited[sequence] = awaited
            return False
        if not awaited.reading.done and time.monotonic() < awaited.until:
            return False
        del self._awaited[sequence]
        if awaited.reading.done:
            self._put_back(sequence, awaited, room_bytes)
        else:
            awaited.reading.cancel()
        return True

    def forget(self, sequence: Sequence) -> None:
        """Take note that a sequence is gone for good."""
        awaited = self._awaited.pop(sequence, None)
        if awaited is not None:
            awaited.reading.cancel()
        self._looked.discard(sequence)
        self._rows.pop(sequence, None)

    def _ask(self, sequence: Sequence, most: int) -> _Awaited | None:
        """Have the part of the chain read that the store lacks, if a block or more would be won."""
        ids, salt = sequence.ids[:most], sequence.salt
        entries = self.tier.find(self._root(salt), ids)
        usable = self._store.match(ids, salt, most).tokens
        ends = _ends(entries)
        useful = [
            place
            for place, entry in enumerate(entries)
            if (entry.has_snapshot or all(each.cuttable for each in entries[: place + 1]))
            and ends[place] >= usable + PREFIX_BLOCK_TOKENS
        ]
        if not useful:
            return None
        last = useful[-1]
        first = min(self._store.held(ids, salt) // PREFIX_BLOCK_TOKENS, last)
        wanted = entries[first : last + 1]
        return _Awaited(wanted, first, self.tier.read(wanted), time.monotonic() + _READING_S)

    def _put_back(self, sequence: Sequence, awaited: _Awaited, room_bytes: int) -> None:
        """Put what was read into the store: whatever doesn't fit the model, or the room, is left out."""
        start = awaited.first * PREFIX_BLOCK_TOKENS
        ends = list(accumulate(record.nbytes for record in awaited.reading.records))
        count = bisect_right(ends, room_bytes)
        if count:
            self._store.trim(room_bytes - ends[count - 1])
        for cuttable, group in groupby(awaited.reading.records[:count], key=lambda record: record.cuttable):
            records = list(group)
            try:
                slab = slab_of(records, self._kinds)
                self._store.insert(sequence.ids, sequence.salt, start, slab, cuttable=cuttable)
                for record in records:
                    start += len(record.ids)
                    if record.snapshot:
                        snapshot = snapshot_of(record, start, self._like())
                        self._store.snapshot(sequence.ids, sequence.salt, start, snapshot)
            except ValueError:
                return  # such as no release of this format has written: computed again

    # --- writing ------------------------------------------------------------------------------------------

    def offer(self, blocks: Seq[Block]) -> None:
        """Have blocks written that are in the store, as soon as there is time."""
        for block in blocks:
            if block.is_whole or block.snapshot is not None:
                self._offered.append(block)

    def follow(self, rows: Seq[Sequence], source: Callable[[Sequence], RowSource]) -> None:
        """Write some of what is due: of what was offered, and of rows that run and can be cut."""
        left = _TURN_BYTES
        while self._offered and left > 0:
            record = self._record_of(self._offered[0])
            if record is not None:
                if not self.tier.write(record):
                    break
                left -= record.nbytes
            self._offered.popleft()
        for sequence in rows:
            if left <= 0:
                break
            left = self._follow(sequence, source, left)

    def _record_of(self, block: Block) -> Record | None:
        """Return a block as it is written; None if it's there, or was given up meanwhile."""
        snapshot = cast("Snapshot | None", block.snapshot)
        if block.run is None or (snapshot is None and self.tier.knows(block.key)):
            return None
        slab = moved([block.run])
        arrays = stored_planes(slab.planes)
        return Record(
            block.key, block.above.key, block.ids, block.cuttable, arrays, stored_snapshot(snapshot)
        )

    def _follow(self, sequence: Sequence, source: Callable[[Sequence], RowSource], left: int) -> int:
        """Write whole blocks of a row, from where it was left; return how many of the bytes are left.

        Kept are the keys of its blocks that were written, or needn't be.
        """
        keys = self._rows.setdefault(sequence, [])
        if len(sequence.ids) + len(sequence.said) < PREFIX_BLOCK_TOKENS * (len(keys) + 1):
            return left
        row, known = source(sequence), sequence.known
        while left > 0:
            start = PREFIX_BLOCK_TOKENS * len(keys)
            end = start + PREFIX_BLOCK_TOKENS
            if end > min(len(known), row.length):
                break
            parent = keys[-1] if keys else self._root(sequence.salt)
            ids = tuple(known[start:end])
            key = next_key(parent, ids)
            # What is before a row's own tokens is in the store, which has offered it.
            if end > row.first and not self.tier.knows(key):
                record = Record(key, parent, ids, True, stored_planes(row.slab(start, end).planes), ())
                if not self.tier.write(record):
                    break
                left -= record.nbytes
            keys.append(key)
        return left


def _ends(entries: Seq[Entry]) -> list[int]:
    """Return how many tokens there are up to each entry's end."""
    ends, end = [], 0
    for entry in entries:
        end += len(entry.ids)
        ends.append(end)
    return ends
