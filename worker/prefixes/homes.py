"""Which slabs the blocks stand in, and what that costs: bytes held, used, and read by rows together."""

from collections.abc import Callable, Sequence
from typing import Final

from worker.prefixes.blocks import Block, Run, Slab, joined

Move = Callable[[Sequence[Run]], Slab]


class _Home:
    """One slab, the blocks that stand in it, and how many of its tokens these are."""

    __slots__ = ("blocks", "slab", "used_tokens")

    def __init__(self, slab: Slab) -> None:
        self.slab: Final = slab
        self.blocks: Final[dict[Block, None]] = {}
        self.used_tokens = 0

    @property
    def dead_tokens(self) -> int:
        return self.slab.tokens - self.used_tokens


class Homes:
    """Keeps account of slabs. One that no block stands in any more is let go at once.

    `slab_bytes` is what all slabs hold, dead tokens included; `used_bytes` the shares of the blocks in them;
    `pinned_bytes` the shares of blocks that are pinned, each once. `move` copies runs of one slab into a new
    one. If it raises, nothing has changed.
    """

    def __init__(self, move: Move) -> None:
        self.slab_bytes = 0
        self.used_bytes = 0
        self.pinned_bytes = 0
        self._move = move
        # By the slab's identity: what an engine calls a slab needn't be hashable.
        self._homes: Final[dict[int, _Home]] = {}
        self._holed: Final[dict[int, _Home]] = {}
        self._wasteful: Final[dict[int, _Home]] = {}

    @property
    def slabs(self) -> list[Slab]:
        return [home.slab for home in self._homes.values()]

    def settle(self, block: Block, run: Run) -> None:
        """Let a block stand there from now on."""
        home = self._homes.get(id(run.slab))
        if home is None:
            home = self._homes[id(run.slab)] = _Home(run.slab)
            self.slab_bytes += run.slab.nbytes
        home.blocks[block] = None
        home.used_tokens += run.count
        block.run = run
        self.used_bytes += run.nbytes
        if block.pins:
            self.pinned_bytes += run.nbytes
        self._watch(home)

    def leave(self, block: Block) -> None:
        """Forget where a block stood."""
        run = _run_of(block)
        home = self._homes[id(run.slab)]
        del home.blocks[block]
        home.used_tokens -= run.count
        block.run = None
        self.used_bytes -= run.nbytes
        if block.pins:
            self.pinned_bytes -= run.nbytes
        self._watch(home)

    def pin(self, block: Block) -> None:
        block.pins += 1
        if block.pins == 1:
            self.pinned_bytes += _run_of(block).nbytes

    def unpin(self, block: Block) -> None:
        assert block.pins, "it wasn't pinned"
        block.pins -= 1
        if not block.pins:
            self.pinned_bytes -= _run_of(block).nbytes

    def compact(self, *, wasteful: bool) -> bool:
        """Move what one slab still holds into a smaller one; False: there is none to do this with.

        Only one of which more than a quarter is dead, if `wasteful`: then four bytes at most are held for
        three that are used, and three at most copied for one that is freed.
        """
        home = next(iter((self._wasteful if wasteful else self._holed).values()), None)
        if home is None:
            return False
        blocks = list(home.blocks)  # in the order in which they stand there, as they came in it
        slab = self._move(joined([_run_of(block) for block in blocks]))
        assert slab.tokens == home.used_tokens, "a slab of just these tokens was asked for"
        start = 0
        for block in blocks:
            self.leave(block)
            self.settle(block, Run(slab, start, len(block.ids)))
            start += len(block.ids)
        return True

    def _watch(self, home: _Home) -> None:
        """See whether a slab is still used, has holes, or too many of them."""
        name = id(home.slab)
        if not home.blocks:
            del self._homes[name]
            self.slab_bytes -= home.slab.nbytes
        _list(self._holed, name, home, holds=bool(home.blocks) and home.dead_tokens > 0)
        _list(self._wasteful, name, home, holds=bool(home.blocks) and 4 * home.dead_tokens > home.slab.tokens)


def _run_of(block: Block) -> Run:
    assert block.run is not None, "a block that is kept stands somewhere"
    return block.run


def _list(names: dict[int, _Home], name: int, home: _Home, *, holds: bool) -> None:
    if holds:
        names.setdefault(name, home)
    else:
        names.pop(name, None)
