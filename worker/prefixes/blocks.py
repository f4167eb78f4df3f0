"""Blocks of prompts' beginnings: how they hang together, and where their keys and values stand."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from shared.limits import PREFIX_BLOCK_TOKENS

Ids = tuple[int, ...]


class Slab(Protocol):
    """The engine's arrays with the keys and values of `tokens` tokens, one behind the other."""

    @property
    def tokens(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Snapshot(Protocol):
    """The engine's copy of states that can't be cut, as they are behind one token."""

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that stand one behind the other: slab[start : start + count]."""

    slab: Slab
    start: int
    count: int

    @property
    def nbytes(self) -> int:
        """Its share of the slab by tokens; the shares of a slab's parts add up to the whole."""
        nbytes, tokens = self.slab.nbytes, self.slab.tokens
        return nbytes * (self.start + self.count) // tokens - nbytes * self.start // tokens


class Place:
    """Where a beginning ends that others may go on from: behind a whole block, or before any token.

    `end` is how many tokens it has, `key` names them. `branches` are the whole blocks behind it that can be
    cut, in the order of their ids; `parts` those that aren't whole, the least recently used first; `children`
    counts these and the whole ones that can't be cut.
    """

    __slots__ = ("branches", "children", "end", "key", "parts")

    def __init__(self, key: bytes, end: int) -> None:
        self.key: Final = key
        self.end: Final = end
        self.branches: Final[list[Block]] = []
        self.parts: Final[list[Block]] = []
        self.children = 0

    def link(self, block: "Block") -> None:
        self.children += 1
        if not block.is_whole:
            self.parts.append(block)
        elif block.cuttable:
            insort(self.branches, block, key=_ids_of)

    def unlink(self, block: "Block") -> None:
        self.children -= 1
        if not block.is_whole:
            self.parts.remove(block)
        elif block.cuttable:
            # Whole blocks behind one place differ in their ids, so this finds the block itself.
            del self.branches[bisect_left(self.branches, block.ids, key=_ids_of)]

    def use(self, part: "Block") -> None:
        self.parts.remove(part)
        self.parts.append(part)

    def part(self, ids: Ids) -> "Block | None":
        return next((part for part in self.parts if part.ids == ids), None)

    def closest(self, ids: Ids) -> "tuple[Block | None, int]":
        """Return who begins most like `ids`, of what can be cut, and how many tokens they have in common.

        Among branches in order it is a neighbour of where `ids` would stand.
        """
        at = bisect_left(self.branches, ids, key=_ids_of)
        nearby = [*self.branches[max(0, at - 1) : at + 1], *(part for part in self.parts if part.cuttable)]
        best: Block | None = None
        most = 0
        for block in nearby:
            common = common_tokens(block.ids, ids)
            if common > most:
                best, most = block, common
        return best, most


class Root(Place):
    """The beginning of all prompts of one salt, before the first token."""

    __slots__ = ("salt",)

    def __init__(self, key: bytes, salt: str) -> None:
        super().__init__(key, 0)
        self.salt: Final = salt


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """A snapshot that is kept, and the block at whose end it was taken."""

    block: "Block"
    snapshot: Snapshot


class Block(Place):
    """Up to 64 tokens behind the place `above`: a whole block, or one in part, behind which nothing stands.

    `cuttable` says whether its first tokens can be used without its last ones. `run` is where its keys and
    values stand, None once it's given up. `pins` counts the leases that hold it.
    """

    __slots__ = ("above", "cuttable", "ids", "mark", "pins", "run", "start")

    def __init__(self, key: bytes, above: Place, ids: Ids, *, cuttable: bool) -> None:
        super().__init__(key, above.end + len(ids))
        self.above: Final = above
        self.ids: Final = ids
        self.start: Final = above.end
        self.cuttable: Final = cuttable
        self.mark: Mark | None = None
        self.run: Run | None = None
        self.pins = 0

    @property
    def parent(self) -> "Block | None":
        return self.above if isinstance(self.above, Block) else None

    @property
    def snapshot(self) -> Snapshot | None:
        return None if self.mark is None else self.mark.snapshot

    @property
    def is_whole(self) -> bool:
        return len(self.ids) == PREFIX_BLOCK_TOKENS

    @property
    def serves_nobody(self) -> bool:
        """Whether no prompt can use it: it can't be cut, and no state was kept in or behind it."""
        return not (self.cuttable or self.children or self.pins) and self.mark is None


@dataclass(frozen=True, slots=True)
class Match:
    """What is kept of a prompt: its first `tokens` tokens can be used.

    `blocks` cover them, the last one perhaps only in part. `snapshot` is that of exactly so many tokens,
    None where the blocks suffice.
    """

    blocks: tuple[Block, ...]
    tokens: int
    snapshot: Snapshot | None


NO_MATCH: Final = Match((), 0, None)


def common_tokens(one: Ids, other: Ids) -> int:
    """Return how many leading tokens they have in common."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(at for at in range(shorter) if one[at] != other[at])


def runs_of(blocks: Iterable[Block], tokens: int) -> list[Run]:
    """Return where the tokens of these blocks stand that are among a prompt's first `tokens`.

    Neighbours in one slab are one run.
    """
    runs: list[Run] = []
    for block in blocks:
        count = min(len(block.ids), tokens - block.start)
        if count <= 0:
            break
        assert block.run is not None, "its keys and values were given up"
        runs.append(Run(block.run.slab, block.run.start, count))
    return joined(runs)


def joined(runs: Iterable[Run]) -> list[Run]:
    """Make one run of neighbours in one slab."""
    found: list[Run] = []
    for run in runs:
        last = found[-1] if found else None
        if last is not None and last.slab is run.slab and last.start + last.count == run.start:
            found[-1] = Run(last.slab, last.start, last.count + run.count)
        else:
            found.append(run)
    return found


def _ids_of(block: Block) -> Ids:
    return block.ids
