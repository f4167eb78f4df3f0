"""What is kept of prompts' beginnings: found by tokens, pinned while read, the least recently used given up.

The order of use needs no clock: whatever is used goes to its end, a prompt's last block before the one in
front of it. So a block always stands before its parent, and the first of the order has nothing behind it.
What is pinned stands outside the order. A snapshot has its own place in it, before its block's, and ages by
its own use: those in the middle of a conversation go before its blocks.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from shared.limits import PREFIX_BLOCK_TOKENS, PREFIX_BLOCKS_MAX
from worker.prefixes.blocks import Block, Mark, Match, Place, Run, Slab, Snapshot, runs_of
from worker.prefixes.homes import Homes, Move
from worker.prefixes.tree import PrefixTree

__all__ = ["Block", "Lease", "Match", "PrefixStore", "Run", "Slab", "Snapshot"]

# Beginnings of less than a block that are kept behind one place.
PARTS_MAX: Final = 8


class Lease:
    """Blocks from a prompt's first on that aren't given up until `release`, and their `tokens`."""

    def __init__(self, blocks: tuple[Block, ...], give_back: Callable[[Sequence[Block]], None]) -> None:
        self.blocks: Final = blocks
        self.tokens: Final = blocks[-1].end if blocks else 0
        self._give_back = give_back
        self._is_held = True

    def runs(self) -> list[Run]:
        """Return where the tokens stand now: blocks may be moved while they're leased."""
        return runs_of(self.blocks, self.tokens)

    def release(self) -> None:
        assert self._is_held, "it was released already"
        self._is_held = False
        self._give_back(self.blocks)


class PrefixStore:
    """Blocks and snapshots within `bytes_max`, but for what is pinned.

    `root` names the beginning of all prompts of a salt; `move` copies runs of one slab into a new one, in
    their order. Only `keep_within` and `trim` give up bytes for want of room.
    """

    def __init__(self, root: Callable[[str], bytes], move: Move, bytes_max: int = 0) -> None:
        self.root: Final = root
        self.bytes_max = bytes_max
        self.evictions = 0
        self._tree: Final = PrefixTree(root)
        self._homes: Final = Homes(move)
        self._snapshot_bytes = 0
        self._order: Final[OrderedDict[Block | Mark, None]] = OrderedDict()

    @property
    def kept_bytes(self) -> int:
        """What slabs, dead tokens included, and snapshots hold, less `shared_bytes`."""
        return self._homes.slab_bytes + self._snapshot_bytes - self.shared_bytes

    @property
    def shared_bytes(self) -> int:
        """What is pinned, each block once."""
        return self._homes.pinned_bytes

    @property
    def blocks(self) -> int:
        return self._tree.blocks

    @property
    def slabs(self) -> list[Slab]:
        return self._homes.slabs

    @property
    def snapshots(self) -> list[Snapshot]:
        return [kept.snapshot for kept in self._order if isinstance(kept, Mark)]

    def keys(self) -> list[bytes]:
        """Return the keys of all whole blocks."""
        return self._tree.keys()

    def take_news(self) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of whole blocks that came and that went since the last call."""
        return self._tree.take_news()

    def match(self, ids: Sequence[int], salt: str, most: int) -> Match:
        """Return what can be used of the first `most` tokens; it counts as used."""
        found = self._tree.find(tuple(ids[: max(0, most)]), salt)
        if found.snapshot is not None:
            self._use_mark(found.blocks[-1])
        if found.blocks:
            self._use(found.blocks[-1])
        return found

    def held(self, ids: Sequence[int], salt: str) -> int:
        """Return how many tokens are held, whether or not they can be used, by whole blocks."""
        return len(self._tree.path(ids, salt)) * PREFIX_BLOCK_TOKENS

    def blocks_of(self, ids: Sequence[int], salt: str, tokens: int) -> tuple[Block, ...]:
        """Return the whole blocks of the first `tokens` tokens that are held, from the first on."""
        return tuple(self._tree.path(ids[: max(0, tokens)], salt))

    def block_at(self, ids: Sequence[int], salt: str, tokens: int) -> Block | None:
        """Return the block that ends with just so many tokens, whole or in part."""
        return self._tree.at(ids, salt, tokens)

    def lease(self, blocks: Sequence[Block]) -> Lease:
        """Pin `blocks`, which are a prompt's from its first on."""
        above: Block | None = None
        for block in blocks:
            assert block.parent is above, "each stands behind the one before it, and the first behind none"
            self._homes.pin(block)
            self._order.pop(block, None)
            above = block
        return Lease(tuple(blocks), self._release)

    def insert(
        self,
        ids: Sequence[int],
        salt: str,
        start: int,
        slab: Slab,
        *,
        cuttable: bool,
        exact: bool = False,
    ) -> None:
        """Keep ids[start : start + slab.tokens], whose keys and values `slab` holds.

        `start` is a multiple of 64. Nothing happens if what is before it isn't held any more. What is held
        already stays where it is. No bytes are given up for these: see `keep_within`. An `exact` end gets a
        block of its own, even where it is the beginning of a longer one.
        """
        end = start + slab.tokens
        assert start % PREFIX_BLOCK_TOKENS == 0, "a block begins there"
        assert end <= len(ids), "the slab holds these tokens"
        path = self._tree.path(ids[:start], salt)
        place: Place = path[-1] if path else self._tree.root(salt)
        if place.end < start:
            return
        for at in range(start, end, PREFIX_BLOCK_TOKENS):
            piece = tuple(ids[at : min(end, at + PREFIX_BLOCK_TOKENS)])
            block, is_new = self._tree.grow(place, piece, cuttable=cuttable, exact=exact)
            if block is None:
                break
            if is_new:
                self._homes.settle(block, Run(slab, at - start, len(piece)))
                self._order[block] = None
                self._supersede(block)
            place = block
        if isinstance(place, Block):
            self._use(place)

    def snapshot(self, ids: Sequence[int], salt: str, tokens: int, snapshot: Snapshot) -> None:
        """Keep the state behind ids[:tokens], if the block that ends there is held; it replaces another."""
        block = self._tree.at(ids, salt, tokens)
        if block is None:
            return
        self._forget(block)
        block.mark = Mark(block, snapshot)
        self._snapshot_bytes += snapshot.nbytes
        self._use_mark(block)
        self._use(block)

    def trim(self, bytes_max: int) -> None:
        """Keep so many bytes at most from now on."""
        self.bytes_max = bytes_max
        self.keep_within()

    def keep_within(self) -> None:
        """Give up what was used least recently until the bounds hold, or only pinned blocks are left.

        Slabs are made smaller before more is given up than their dead tokens would have made room for.
        """
        while self._used_bytes > self.bytes_max or self.blocks > PREFIX_BLOCKS_MAX:
            if not self._evict_oldest():
                break
        while self.kept_bytes > self.bytes_max and (
            self._homes.compact(wasteful=True) or self._evict_oldest() or self._homes.compact(wasteful=False)
        ):
            pass

    @property
    def _used_bytes(self) -> int:
        """What would be kept if no slab had a dead token."""
        return self._homes.used_bytes + self._snapshot_bytes - self.shared_bytes

    def _release(self, blocks: Iterable[Block]) -> None:
        freed = [block for block in blocks if self._unpinned(block)]
        for block in reversed(freed):
            self._order[block] = None

    def _unpinned(self, block: Block) -> bool:
        self._homes.unpin(block)
        return not block.pins

    def _use(self, last: Block) -> None:
        """Put a prompt's blocks at the end of the order, the last one first."""
        if not last.is_whole:
            last.above.use(last)
        block: Block | None = last
        while block is not None:
            if not block.pins:
                self._order.move_to_end(block)
            block = block.parent

    def _use_mark(self, block: Block) -> None:
        assert block.mark is not None, "its snapshot is kept"
        self._order[block.mark] = None
        self._order.move_to_end(block.mark)

    def _evict_oldest(self) -> bool:
        oldest = next(iter(self._order), None)
        if oldest is None:
            return False
        if isinstance(oldest, Mark):
            self._forget(oldest.block)
            block: Block | None = oldest.block
        else:
            block = oldest.parent
            self._evict(oldest)
        while block is not None and block.serves_nobody:
            parent = block.parent
            self._evict(block)
            block = parent
        return True

    def _evict(self, block: Block) -> None:
        self.evictions += 1
        self._remove(block)

    def _remove(self, block: Block) -> None:
        assert not block.pins, "rows read it"
        self._forget(block)
        self._tree.remove(block)
        self._homes.leave(block)
        del self._order[block]

    def _forget(self, block: Block) -> None:
        """Give up a block's snapshot, if there is one."""
        if block.mark is not None:
            self._snapshot_bytes -= block.mark.snapshot.nbytes
            del self._order[block.mark]
            block.mark = None

    def _supersede(self, newcomer: Block) -> None:
        """Take out the parts that a new block stands for, and the least recently used of too many.

        A part that has a snapshot stays: where its state was taken, the longer one can't be cut.
        """
        place = newcomer.above
        # What others go on from is used by them: a system prompt's end outlives those of the prompts behind.
        for part in [part for part in place.parts if newcomer.ids[: len(part.ids)] == part.ids]:
            self._use(part)
        for part in [part for part in place.parts if _stands_for(newcomer, part)]:
            self._remove(part)
        others = [part for part in place.parts if not part.pins and part is not newcomer]
        for part in others[: max(0, len(place.parts) - PARTS_MAX)]:
            self._evict(part)


def _stands_for(longer: Block, part: Block) -> bool:
    return (
        len(part.ids) < len(longer.ids)
        and longer.ids[: len(part.ids)] == part.ids
        and not part.pins
        and part.mark is None
        and (longer.cuttable or not part.cuttable)
    )
