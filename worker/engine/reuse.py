"""Between the rows and the beginnings that are kept: who takes what from whom, and when it is kept."""

from collections.abc import Collection
from collections.abc import Sequence as Seq
from functools import partial

from worker.engine.bases import Other
from worker.engine.beginnings import Beginnings
from worker.engine.prefilling import Prefilling
from worker.engine.row_batch import RowCaches
from worker.plan import Chunk
from worker.prefixes.store import Lease
from worker.sequence import Sequence


class Reuse:
    """Knows all rows: those that decode but for `leaving`, and those that prefill."""

    def __init__(
        self,
        caches: RowCaches,
        prefilling: Prefilling,
        beginnings: Beginnings,
        leaving: Collection[Sequence],
    ) -> None:
        self._caches = caches
        self._prefilling = prefilling
        self._beginnings = beginnings
        self._leaving = leaving

    # --- bytes --------------------------------------------------------------------------------------------

    @property
    def elsewhere_bytes(self) -> int:
        """What rows hold that isn't in their groups: while they prefill, and together."""
        return self._prefilling.nbytes + self._beginnings.shared_bytes

    @property
    def _room_bytes(self) -> int:
        """What rows leave of the budget: beginnings may be kept in it."""
        return self._caches.bytes_max - self._caches.nbytes - self.elsewhere_bytes

    def make_room(self, coming_bytes: int, *, moves_rows: bool) -> None:
        """Give up what is kept, and let the batch give up what it wastes, for caches that are to come."""
        if coming_bytes > 0:
            if moves_rows:
                self._caches.make_room(self.elsewhere_bytes + coming_bytes)
            self._beginnings.keep_within(self._room_bytes - coming_bytes)

    def limit(self, *, keeps: bool) -> None:
        """Keep nothing that no row uses, or again what there is room for."""
        self._beginnings.limit(keeps=keeps)
        self._beginnings.keep_within(self._room_bytes)

    def tidy(self) -> None:
        """Write behind what is due, and give up what there is no room for."""
        self._beginnings.follow(self._caches.rows, self._caches.source)
        self._beginnings.keep_within(self._room_bytes)

    # --- who begins, and who joins ------------------------------------------------------------------------

    def begin(self, sequence: Sequence) -> int | None:
        """Find what a sequence begins with; return its tokens, None while some are read from disk."""
        if not self._beginnings.reuses:
            return 0
        if not self._beginnings.is_ready(sequence, self._room_bytes):
            return None
        promised_bytes = self._prefilling.coming_bytes(self._prefilling.opened)
        opening = self._beginnings.open(
            sequence, self._others(), self._room_bytes, promised_bytes=promised_bytes
        )
        self._prefilling.open(sequence, opening)
        if opening.base is not None:
            self._put_behind(opening.base)
        self._beginnings.settle()
        return opening.tokens

    def share(self, newcomers: Seq[Sequence]) -> None:
        """Let rows that come to decode begin behind what they have in common with others, and those, too.

        They join next, and `settle` comes after that.
        """
        others = len(newcomers) + len(self._caches.rows) + self._prefilling.count
        if not newcomers or others == 1 or not self._beginnings.shares:
            return
        for sequence in newcomers:
            prefilled = self._prefilling.get(sequence)
            before = prefilled.base
            base = self._beginnings.bases.find(
                sequence,
                self._others(),
                self._room_bytes,
                own=self._prefilling.source_of(prefilled),
                more_than=before.tokens if before is not None else 0,
            )
            if base is not None:
                if before is not None:
                    before.release()
                prefilled.base = base
                self._put_behind(base)

    def settle(self) -> None:
        """Copy what rows share that none of those who joined gave up."""
        self._beginnings.settle()

    def _others(self) -> list[Other]:
        """Return all rows of which beginnings can be taken."""
        running = [
            Other(row, len(row.ids) - 1, self._caches.base_tokens(row), partial(self._caches.source, row))
            for row in self._caches.rows
            if row not in self._leaving
        ]
        return [*running, *self._prefilling.others()]

    def _put_behind(self, base: Lease) -> None:
        """Let all others share what they have in common with a new base: who joins now is asked by itself."""
        longer: dict[Sequence, Lease] = {}
        for other in self._others():
            runs = other.sequence in self._caches.rows
            if runs or self._prefilling.is_under_way(other.sequence):
                found = self._beginnings.bases.longer(other, base)
                if found is not None and runs:
                    longer[other.sequence] = found
                elif found is not None:
                    self._prefilling.put_behind(other.sequence, found)
        if longer:
            self._caches.put_behind(longer, self.elsewhere_bytes)

    # --- what is kept -------------------------------------------------------------------------------------

    def keep(self, sequence: Sequence) -> None:
        """Keep what was computed of a row that leaves, as far as its tokens are known."""
        if self._beginnings.reuses:
            known = sequence.known[: self._caches.length(sequence)]
            self._beginnings.keep(known, sequence.salt, self._caches.source(sequence), self._room_bytes)

    def keep_unfinished(self, sequence: Sequence) -> None:
        """Keep what was computed of a prompt whose prefill is broken off."""
        source = self._prefilling.source(sequence) if self._beginnings.reuses else None
        if source is not None and source.is_cuttable:
            self._beginnings.keep(sequence.ids[: source.length], sequence.salt, source, self._room_bytes)

    def keep_checkpoint(self, chunk: Chunk) -> None:
        """Keep the state at which a chunk ends, if its prompt may be used again from there on."""
        end = chunk.end
        if end not in chunk.sequence.checkpoints or not self._beginnings.reuses:
            return
        source = self._prefilling.source(chunk.sequence)
        if source is not None and source.length == end:
            self._beginnings.keep(chunk.sequence.ids[:end], chunk.sequence.salt, source, self._room_bytes)
