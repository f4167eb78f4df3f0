"""Who begins alike, up to where, and behind which base it goes on: one beginning that several rows share."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, Protocol

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.model_facts import ModelFacts
from worker.engine.slabs import RowSource
from worker.prefix_waits import common_tokens
from worker.prefixes.blocks import Block
from worker.prefixes.store import Lease, PrefixStore
from worker.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Other:
    """Another row of which beginnings can be taken: `computed` tokens, those beyond its base in `source`.

    Without a source it has none of its own yet.
    """

    sequence: Sequence
    computed: int
    base_tokens: int
    source: Callable[[], RowSource] | None


_HALF: Final = PREFIX_BLOCK_TOKENS // 2


class Keep(Protocol):
    """Copies what of a row isn't kept yet into the store."""

    def __call__(
        self, ids: Seq[int], salt: str, source: RowSource, room_bytes: int, *, must: bool
    ) -> None: ...


class Bases:
    """Finds bases of `share_tokens` or more (0: none), in whole blocks and perhaps half of one more.

    Where two prompts part may be chance: their questions may begin with the same words. So where a turn ends
    beyond the whole blocks a base ends with it, which is the same place for all that come later. Half a block
    is what room for tokens comes in, so that rows take no more by it than in whole blocks.
    """

    def __init__(self, facts: ModelFacts, store: PrefixStore, keep: Keep) -> None:
        self.share_tokens = facts.shares_from
        self._is_cuttable = facts.reuse == "any"
        self._store = store
        self._keep = keep

    def find(
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
        if not self.share_tokens:
            return None
        best, common = self.closest(sequence, others)
        if best is None or common < self.share_tokens:
            return None
        common = self._further(sequence, best, common)
        if common <= more_than:
            return None
        ids, salt = sequence.ids[:common], sequence.salt
        source = own if own is not None else best.source
        if source is not None and (own is not None or self._is_cuttable):
            self._keep(ids, salt, source(), room_bytes, must=True)
        return self._lease(sequence, common, more_than)

    def closest(self, sequence: Sequence, others: Iterable[Other]) -> tuple[Other | None, int]:
        """Return who has most of what a sequence begins with, and how many tokens, in whole blocks."""
        best, most_common = None, 0
        for other in others:
            if other.sequence is sequence or other.sequence.salt != sequence.salt:
                continue
            computed = other.computed // PREFIX_BLOCK_TOKENS * PREFIX_BLOCK_TOKENS
            common = min(common_tokens(sequence, other.sequence), computed)
            if common > most_common:
                best, most_common = other, common
        return best, most_common

    def shortened(self, base: Lease, sequence: Sequence, tokens: int) -> Lease | None:
        """Give a base back, and return one of no more than `tokens`: states are there for no more."""
        base.release()
        return self._lease(sequence, tokens, 0)

    def alone(self, sequence: Sequence, tokens: int) -> Lease | None:
        """Return what is kept of a sequence's first `tokens`, to be its base whoever else has it."""
        return self._lease(sequence, tokens, 0) if self.share_tokens else None

    def _lease(self, sequence: Sequence, tokens: int, more_than: int) -> Lease | None:
        """Return the first `tokens` tokens of a sequence, or as many in whole blocks as are kept of them."""
        blocks: Seq[Block] = self._store.blocks_of(sequence.ids, sequence.salt, tokens)
        end = blocks[-1].end if blocks else 0
        part = self._store.block_at(sequence.ids, sequence.salt, tokens) if end < tokens else None
        if part is not None and part.start == end:
            blocks, end = (*blocks, part), tokens
        if end < self.share_tokens or end <= more_than:
            return None
        return self._store.lease(blocks)

    def longer(self, other: Other, base: Lease) -> Lease | None:
        """Return what a row that runs has in common with a base, if that is more than it shares already."""
        ids = other.sequence.ids[: other.computed]
        count = common = 0
        for block in base.blocks:
            if ids[block.start : block.end] != block.ids:
                break
            count, common = count + 1, block.end
        if common < max(self.share_tokens, other.base_tokens + 1):
            return None
        return self._store.lease(base.blocks[:count])

    def _further(self, sequence: Sequence, other: Other, common: int) -> int:
        """Return the end of the half block up to which two sequences go on alike, or up to a turn's end."""
        if not self._is_cuttable:
            return common
        # The last ids are in no block's name: what is beyond those is nothing that admission reckons with.
        computed = min(other.computed, len(other.sequence.ids) - 1)
        most = min(len(sequence.ids) - 1, computed, common + PREFIX_BLOCK_TOKENS)
        end, at = 0, common
        while at < most and sequence.ids[at] == other.sequence.ids[at]:
            at += 1
            if sequence.ids[at - 1] in sequence.stop_ids:
                end = at
        return (end or at) // _HALF * _HALF
