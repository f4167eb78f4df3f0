"""Beginnings of prompts: found for whoever comes, shared by who begins alike, and kept of whoever leaves.

A row that comes alone has what is kept of its beginning copied into its own caches. Rows that have a longer
beginning in common hold it once, as their base.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, cast

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.prefix_chain import root_key
from shared.readings import PrefixReading
from worker.engine.bases import Bases, Other
from worker.engine.disk_beginnings import DiskBeginnings
from worker.engine.model import LoadedModel
from worker.engine.slabs import RowSource, Slab, Snapshot, moved, settle
from worker.prefix_disk.tier import DiskTier
from worker.prefix_news import PrefixNews
from worker.prefixes.blocks import Match, Run
from worker.prefixes.store import Lease, PrefixStore
from worker.sequence import Sequence

# A prompt shorter than this is computed in about the time that it takes to look for it.
_LEAST_TOKENS: Final = PREFIX_BLOCK_TOKENS


@dataclass(slots=True)
class Opening:
    """What a sequence begins with: `tokens` tokens, of which those in `base` are shared with other rows.

    What is beyond the base is copied out of what `kept` holds on to, and what can't be cut out of `snapshot`.
    """

    tokens: int = 0
    base: Lease | None = None
    kept: Lease | None = None
    snapshot: Snapshot | None = None

    @property
    def base_tokens(self) -> int:
        return self.base.tokens if self.base is not None else 0

    def copied(self) -> None:
        """Let go of what was copied."""
        if self.kept is not None:
            self.kept.release()
            self.kept = None

    def dropped(self) -> None:
        """Let go of everything: nobody begins with it."""
        self.copied()
        if self.base is not None:
            self.base.release()
            self.base = None


class Beginnings:
    """Keeps and finds them, for one model, in blocks: up to `kept_bytes` for whoever may come.

    `on_move` is called when what rows share has moved. With a `tier` they are kept on disk as well.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        kept_bytes: int,
        on_move: Callable[[], None],
        tier: DiskTier | None = None,
    ) -> None:
        facts = loaded.facts
        self._reuse = facts.reuse
        self._kept_bytes = kept_bytes
        self._keeps = True
        self._on_move = on_move
        self._token_bytes = facts.kv_bytes_per_token + facts.window_bytes_per_token
        self._row_bytes = facts.row_bytes
        self._unsettled: list[Slab] = []
        self._root: Callable[[str], bytes] = lambda salt: root_key(
            facts.fingerprint, facts.kv_bits, salt=salt
        )
        self.store = PrefixStore(self._root, self._move)
        self.bases = Bases(facts, self.store, self.keep)
        self._news = PrefixNews(self.store, tier)
        self._disk: DiskBeginnings | None = None
        if tier is not None and loaded.layout is not None:
            kinds = [kind for layer in loaded.layout.layers for kind in layer]
            self._disk = DiskBeginnings(
                tier, self.store, loaded.layout.keys_values, self._root, lambda: Snapshot.empty(kinds)
            )

    def _move(self, runs: Seq[Run]) -> Slab:
        self._on_move()
        return moved(runs)

    @property
    def shared_bytes(self) -> int:
        return self.store.shared_bytes

    @property
    def arrays(self) -> int:
        """How many arrays are held."""
        slabs = sum(cast("Slab", slab).arrays for slab in self.store.slabs)
        return slabs + sum(cast("Snapshot", each).arrays for each in self.store.snapshots)

    def limit(self, *, keeps: bool) -> None:
        """Keep nothing that no row uses, or again what the bounds allow."""
        self._keeps = keeps

    def keep_within(self, room_bytes: int) -> None:
        """Give up what was used longest ago, so that no more than its bound and this room is kept."""
        self.store.trim(max(0, min(self._kept_bytes, room_bytes)) if self._keeps else 0)

    @property
    def reading(self) -> PrefixReading:
        """What is kept, and what happened to it."""
        store, disk = self.store, self._disk.tier.reading if self._disk is not None else None
        return PrefixReading(
            kept_bytes=store.kept_bytes,
            shared_bytes=store.shared_bytes,
            blocks=store.blocks,
            evictions=store.evictions,
            disk_bytes=disk.bytes if disk else 0,
            disk_reads=disk.reads if disk else 0,
            disk_writes=disk.writes if disk else 0,
            disk_bad=disk.bad if disk else 0,
        )

    def take_news(self) -> tuple[list[int], list[int]]:
        """Return the names of blocks that are kept from now on, and of such as are kept no more."""
        return self._news.take()

    def names(self) -> list[int]:
        """Return the names of all blocks that are kept."""
        return self._news.names()

    def is_ready(self, sequence: Sequence, room_bytes: int) -> bool:
        """Whether what there is room for of a prompt on disk is here by now, or needn't be waited for."""
        return self._disk is None or self._disk.is_ready(sequence, len(sequence.ids) - 1, room_bytes)

    def follow(self, rows: Seq[Sequence], source: Callable[[Sequence], RowSource]) -> None:
        """Write to disk some of what is new, if there is one."""
        if self._disk is not None:
            self._disk.follow(rows if self._reuse == "any" else (), source)

    # --- who begins ---------------------------------------------------------------------------------------

    @property
    def reuses(self) -> bool:
        """Whether anything that was computed is used again."""
        return self._reuse != "none"

    @property
    def shares(self) -> bool:
        """Whether rows hold what they have in common once."""
        return self.bases.share_tokens > 0

    def open(
        self, sequence: Sequence, others: Seq[Other], room_bytes: int, *, promised_bytes: int = 0
    ) -> Opening:
        """Return what a sequence begins with. What it shares is taken from others where it isn't kept.

        `promised_bytes` of the room are for caches of those that were opened before.
        """
        most = len(sequence.ids) - 1
        if most < _LEAST_TOKENS:
            return Opening()
        base = self.bases.find(sequence, others, room_bytes)
        if not self.bases.share_tokens:
            self._keep_of_others(sequence, others, room_bytes)
        match = self.store.match(sequence.ids, sequence.salt, most)
        if base is not None and base.tokens > match.tokens:
            base = self.bases.shortened(base, sequence, match.tokens)
        base_tokens = base.tokens if base is not None else 0
        # While it is copied it's there twice, and what rows hold of what is kept can't be given up.
        taken = (match.tokens - base_tokens) * self._token_bytes
        coming_bytes = self._row_bytes(sequence.prefill_tokens) - base_tokens * self._token_bytes
        spare_bytes = room_bytes - promised_bytes - coming_bytes
        if match.tokens > base_tokens and taken > spare_bytes:
            base, match = self._uncopied(sequence, base, match, max(0, spare_bytes))
        opening = Opening(match.tokens, base, None, cast("Snapshot | None", match.snapshot))
        if match.tokens > opening.base_tokens:
            opening.kept = self.store.lease(match.blocks)
        return opening

    def _keep_of_others(self, sequence: Sequence, others: Seq[Other], room_bytes: int) -> None:
        """Keep what a sequence has in common with a row that runs, so that it needn't wait for that to leave.

        Where rows hold copies nothing else does.
        """
        best, common = self.bases.closest(sequence, others)
        if best is not None and best.source is not None and self._reuse == "any":
            self.keep(sequence.ids[:common], sequence.salt, best.source(), room_bytes)

    def _uncopied(
        self, sequence: Sequence, base: Lease | None, match: Match, spare_bytes: int
    ) -> tuple[Lease | None, Match]:
        """Return what a sequence begins with if there isn't room for a copy of all that is kept.

        It begins behind that as behind a base, though nobody else does. Where there are no bases, it begins
        with as much as there is room for.
        """
        longer = self.bases.alone(sequence, match.tokens)
        if longer is None:
            assert base is None, "what is kept is no shorter than a base, and would be one itself"
            # Of what is copied whole blocks are held meanwhile.
            fits = spare_bytes // max(1, self._token_bytes) // PREFIX_BLOCK_TOKENS * PREFIX_BLOCK_TOKENS
            return None, self.store.match(sequence.ids, sequence.salt, min(fits, match.tokens))
        if base is not None:
            base.release()
        return longer, match

    def forget(self, sequence: Sequence) -> None:
        """Take note that a sequence is gone for good."""
        if self._disk is not None:
            self._disk.forget(sequence)

    # --- what is kept -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Copy what was to be copied and hasn't been: of rows that didn't give it up."""
        for slab in self._unsettled:
            for leaf in range(len(slab.planes)):
                settle([slab], leaf)
        self._unsettled.clear()

    def keep(
        self, ids: Seq[int], salt: str, source: RowSource, room_bytes: int, *, must: bool = False
    ) -> None:
        """Copy what of a row isn't kept yet: the keys and values of `ids`, and states that go with their end.

        As much of it as there is room for, in `room_bytes` beside everything else; all, if it `must` be kept
        because rows will share it. Then it is copied as those rows give it up, or by `settle`.
        """
        bound_bytes = self._kept_bytes if self._keeps else 0
        ends_here = source.length == len(ids)
        if len(ids) < _LEAST_TOKENS or not (must or (bound_bytes and (source.is_cuttable or ends_here))):
            return
        is_kept = self.store.match(ids, salt, len(ids)).tokens == len(ids)
        if source.is_cuttable and (self.store.block_at(ids, salt, len(ids)) if must else is_kept):
            return
        before = self.store.lease(self.store.blocks_of(ids, salt, len(ids)))
        start = before.tokens
        # Behind blocks that can't be cut, of a row whose window had moved on, nothing can.
        is_cuttable = source.is_cuttable and all(block.cuttable for block in before.blocks)
        tokens = min(len(ids), source.length) - start
        if not must:
            tokens = min(tokens, max(0, min(bound_bytes, room_bytes)) // max(1, self._token_bytes))
        if tokens > 0 and (is_cuttable or must or start + tokens == len(ids)):
            self.keep_within(room_bytes - tokens * self._token_bytes)
            slab = source.slab(start, start + tokens, cuttable=is_cuttable, later=must)
            if must:
                self._unsettled.append(slab)
            self.store.insert(ids, salt, start, slab, cuttable=is_cuttable, exact=must)
        before.release()
        if not is_cuttable and ends_here and not must:
            self.store.snapshot(ids, salt, len(ids), source.snapshot())
        if self._disk is not None:
            blocks = self.store.blocks_of(ids, salt, len(ids))
            if not is_cuttable:
                blocks = self.store.match(ids, salt, len(ids)).blocks
            self._disk.offer(blocks[start // PREFIX_BLOCK_TOKENS :])
        if not must:
            self.keep_within(room_bytes)
