"""Beginnings of prompts: found for whoever comes, shared by who begins alike, and kept of whoever leaves.

A row that comes alone has what is kept of its beginning copied into its own caches. Rows that have a longer
beginning in common hold it once, as their base.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, cast

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.prefix_chain import keys_of, root_key
from shared.readings import PrefixReading
from worker.engine.disk_beginnings import DiskBeginnings
from worker.engine.model import LoadedModel
from worker.engine.slabs import RowSource, Slab, Snapshot, moved
from worker.prefix_disk.tier import DiskTier
from worker.prefix_news import PrefixNews
from worker.prefixes.blocks import Run
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


@dataclass(frozen=True, slots=True)
class Other:
    """Another row of which beginnings can be taken: `computed` tokens, those beyond its base in `source`.

    Without a source it has none of its own yet.
    """

    sequence: Sequence
    computed: int
    base_tokens: int
    source: Callable[[], RowSource] | None


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
        self._share_tokens = facts.shares_from
        self._kept_bytes = kept_bytes
        self._keeps = True
        self._on_move = on_move
        self._token_bytes = facts.kv_bytes_per_token + facts.window_bytes_per_token
        self._keys: dict[Sequence, list[bytes]] = {}
        self._root: Callable[[str], bytes] = lambda salt: root_key(
            facts.fingerprint, facts.kv_bits, salt=salt
        )
        self.store = PrefixStore(self._root, self._move)
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

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether what is on disk of a prompt is here by now, or needn't be waited for."""
        return self._disk is None or self._disk.is_ready(sequence, len(sequence.ids) - 1)

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
        return self._share_tokens > 0

    def open(self, sequence: Sequence, others: Seq[Other], room_bytes: int) -> Opening:
        """Return what a sequence begins with. What it shares is taken from others where it isn't kept."""
        most = len(sequence.ids) - 1
        if most < _LEAST_TOKENS:
            return Opening()
        base = self.share(sequence, others, room_bytes)
        match = self.store.match(sequence.ids, sequence.salt, most)
        if base is not None and base.tokens > match.tokens:
            base = self._shortened(base, sequence, match.tokens)
        opening = Opening(match.tokens, base, None, cast("Snapshot | None", match.snapshot))
        if match.tokens > opening.base_tokens:
            opening.kept = self.store.lease(match.blocks)
        return opening

    def _shortened(self, base: Lease, sequence: Sequence, tokens: int) -> Lease | None:
        """Return a base of no more than `tokens`: states are there for no more."""
        base.release()
        if tokens < self._share_tokens:
            return None
        return self.store.lease(self.store.blocks_of(sequence.ids, sequence.salt, tokens))

    # --- who shares ---------------------------------------------------------------------------------------

    def share(
        self,
        sequence: Sequence,
        others: Seq[Other],
        room_bytes: int,
        *,
        own: Callable[[], RowSource] | None = None,
        more_than: int = 0,
    ) -> Lease | None:
        """Return the base that a sequence has with one of these others, of more than so many tokens.

        What of it isn't kept is copied from the sequence's own source, or from the other's.
        """
        if not self.shares:
            return None
        best, common = self._closest(sequence, others)
        if best is None or common < self._share_tokens or common <= more_than:
            return None
        if self.store.held(sequence.ids, sequence.salt) < common:
            source = own if own is not None else best.source
            if source is not None and (own is not None or self._reuse == "any"):
                self.keep(sequence.ids[:common], sequence.salt, source(), room_bytes, must=True)
        blocks = self.store.blocks_of(sequence.ids, sequence.salt, common)
        tokens = blocks[-1].end if blocks else 0
        if tokens < self._share_tokens or tokens <= more_than:
            return None
        return self.store.lease(blocks)

    def longer(self, other: Other, base: Lease) -> Lease | None:
        """Return what a row that runs has in common with a base, if that is more than it shares already."""
        if not self.shares:
            return None
        common = 0
        for block, key in zip(base.blocks, self._keys_of(other.sequence), strict=False):
            if block.key != key or block.end > len(other.sequence.ids) - 1:
                break
            common = block.end
        if common < self._share_tokens or common <= other.base_tokens:
            return None
        return self.store.lease(base.blocks[: common // PREFIX_BLOCK_TOKENS])

    def _closest(self, sequence: Sequence, others: Iterable[Other]) -> tuple[Other | None, int]:
        """Return who has most of what a sequence begins with, and how many tokens, in whole blocks."""
        keys, most = self._keys_of(sequence), len(sequence.ids) - 1
        best, most_common = None, 0
        for other in others:
            if other.sequence is sequence or other.sequence.salt != sequence.salt:
                continue
            theirs = self._keys_of(other.sequence)
            least = min(len(keys), len(theirs), min(most, other.computed) // PREFIX_BLOCK_TOKENS)
            common = PREFIX_BLOCK_TOKENS * _common(keys, theirs, least)
            if common > most_common:
                best, most_common = other, common
        return best, most_common

    def _keys_of(self, sequence: Sequence) -> list[bytes]:
        """Return the keys of a sequence's whole blocks, counted once, by which it is compared with others."""
        if sequence not in self._keys:
            self._keys[sequence] = keys_of(self._root(sequence.salt), sequence.ids)
        return self._keys[sequence]

    def forget(self, sequence: Sequence) -> None:
        """Take note that a sequence is gone for good."""
        self._keys.pop(sequence, None)
        if self._disk is not None:
            self._disk.forget(sequence)

    # --- what is kept -------------------------------------------------------------------------------------

    def keep(
        self, ids: Seq[int], salt: str, source: RowSource, room_bytes: int, *, must: bool = False
    ) -> None:
        """Copy what of a row isn't kept yet: the keys and values of `ids`, and states that go with their end.

        As much of it as there is room for, in `room_bytes` beside everything else; all, if it `must` be kept
        because rows will share it.
        """
        if source.is_cuttable and self.store.match(ids, salt, len(ids)).tokens == len(ids):
            return
        bound_bytes = self._kept_bytes if self._keeps else 0
        start = max(self.store.held(ids, salt), source.first)
        # Behind blocks that can't be cut, of a row whose window had moved on, nothing can.
        before = self.store.match(ids, salt, start)
        is_cuttable = source.is_cuttable and before.tokens == start and before.snapshot is None
        tokens = min(len(ids), source.length) - start
        if not must:
            tokens = min(tokens, max(0, min(bound_bytes, room_bytes)) // max(1, self._token_bytes))
        if tokens > 0 and len(ids) >= _LEAST_TOKENS and (is_cuttable or must or start + tokens == len(ids)):
            self.keep_within(room_bytes - tokens * self._token_bytes)
            slab = source.slab(start, start + tokens, cuttable=is_cuttable)
            self.store.insert(ids, salt, start, slab, cuttable=is_cuttable)
        if not is_cuttable and source.length == len(ids) and not must:
            self.store.snapshot(ids, salt, len(ids), source.snapshot())
        if self._disk is not None:
            first = start // PREFIX_BLOCK_TOKENS
            self._disk.offer(self.store.match(ids, salt, len(ids)).blocks[first:] if not is_cuttable else ())
            self._disk.offer(self.store.blocks_of(ids, salt, len(ids))[first:])
        if not must:
            self.keep_within(room_bytes)


def _common(one: Seq[bytes], other: Seq[bytes], most: int) -> int:
    """Return how many leading keys are the same: once two differ, all behind them do."""
    if not most or one[0] != other[0]:
        return 0
    return bisect_left(range(most), True, key=lambda place: one[place] != other[place])
