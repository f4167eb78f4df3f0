"""Which blocks are kept: a tree of them for each salt, found by the names of shared.prefix_chain."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Final

from shared import prefix_chain
from shared.limits import PREFIX_BLOCK_TOKENS
from worker.prefixes.blocks import NO_MATCH, Block, Ids, Match, Place, Root


class PrefixTree:
    """Finds, adds and takes out blocks; who goes, and where the bytes are, is its owner's affair.

    Whole blocks are found by their keys. A key that two beginnings have in common belongs to the first: ids
    and parents are compared as well, and the second is never kept.
    """

    def __init__(self, root: Callable[[str], bytes]) -> None:
        self.blocks = 0
        self._root_key = root
        self._roots: Final[dict[str, Root]] = {}
        self._whole: Final[dict[bytes, Block]] = {}
        self._added: dict[bytes, None] = {}
        self._gone: dict[bytes, None] = {}

    def keys(self) -> list[bytes]:
        """Return the keys of all whole blocks."""
        return list(self._whole)

    def take_news(self) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of whole blocks that came, and of such as went, since the last call."""
        news = list(self._added), list(self._gone)
        self._added, self._gone = {}, {}
        return news

    def root(self, salt: str) -> Root:
        """Return where prompts of this salt begin; it is kept from its first block to its last."""
        return self._roots.get(salt) or Root(self._root_key(salt), salt)

    def path(self, ids: Sequence[int], salt: str) -> list[Block]:
        """Return the whole blocks that `ids` begins with, from the first on, as far as they are kept."""
        path: list[Block] = []
        place: Place | None = self._roots.get(salt)
        if place is None:
            return path
        for end in range(PREFIX_BLOCK_TOKENS, len(ids) + 1, PREFIX_BLOCK_TOKENS):
            piece = tuple(ids[end - PREFIX_BLOCK_TOKENS : end])
            block = self._whole.get(prefix_chain.next_key(place.key, piece))
            if block is None or block.above is not place or block.ids != piece:
                break
            path.append(block)
            place = block
        return path

    def find(self, ids: Ids, salt: str) -> Match:
        """Return the longest beginning of `ids` that can be used: cut anywhere, or where a state was kept."""
        root = self._roots.get(salt)
        if root is None:
            return NO_MATCH
        path = self.path(ids, salt)
        cut = _longest_cut(ids, root, path)
        return _longest_kept(ids, root, path, longer_than=cut.tokens) or cut

    def at(self, ids: Sequence[int], salt: str, tokens: int) -> Block | None:
        """Return the block that ends with the first `tokens` of `ids`, whole or in part."""
        whole = tokens // PREFIX_BLOCK_TOKENS
        path = self.path(ids[: whole * PREFIX_BLOCK_TOKENS], salt)
        if len(path) < whole or not 0 < tokens <= len(ids):
            return None
        if tokens % PREFIX_BLOCK_TOKENS == 0:
            return path[-1]
        place = path[-1] if path else self.root(salt)
        return place.part(tuple(ids[place.end : tokens]))

    def grow(
        self, above: Place, ids: Ids, *, cuttable: bool, exact: bool = False
    ) -> tuple[Block | None, bool]:
        """Return the block of these ids behind `above`, and whether it is new.

        What can be cut stands for any part that it begins with, unless one is wanted that is `exact`ly that.
        None: its key is another beginning's.
        """
        key = prefix_chain.next_key(above.key, ids)
        if len(ids) == PREFIX_BLOCK_TOKENS:
            held = self._whole.get(key)
            if held is not None:
                return (held if held.above is above and held.ids == ids else None), False
        else:
            longer, common = above.closest(ids) if cuttable and not exact else (None, 0)
            held = above.part(ids) or (longer if common == len(ids) else None)
            if held is not None:
                return held, False
        block = Block(key, above, ids, cuttable=cuttable)
        self._link(block)
        return block, True

    def remove(self, block: Block) -> None:
        """Take out a block that has none behind it."""
        assert not block.children, "what is behind it would be lost"
        above = block.above
        above.unlink(block)
        self.blocks -= 1
        if isinstance(above, Root) and not above.children:
            del self._roots[above.salt]
        if block.is_whole:
            del self._whole[block.key]
            _note(block.key, self._gone, unless=self._added)

    def _link(self, block: Block) -> None:
        above = block.above
        above.link(block)
        self.blocks += 1
        if isinstance(above, Root):
            self._roots[above.salt] = above
        if block.is_whole:
            self._whole[block.key] = block
            _note(block.key, self._added, unless=self._gone)


def _note(key: bytes, where: dict[bytes, None], *, unless: dict[bytes, None]) -> None:
    """Remember what happened to a key; that it came and went, or went and came, is no news."""
    if key in unless:
        del unless[key]
    else:
        where[key] = None


def _longest_cut(ids: Ids, root: Root, path: list[Block]) -> Match:
    """Return how far `ids` can be read where all blocks can be cut."""
    whole = tuple(takewhile(attrgetter("cuttable"), path))
    place = whole[-1] if whole else root
    block, common = place.closest(ids[place.end : place.end + PREFIX_BLOCK_TOKENS])
    if block is None:
        return Match(whole, place.end, None)
    return Match((*whole, block), place.end + common, None)


def _longest_kept(ids: Ids, root: Root, path: list[Block], *, longer_than: int) -> Match | None:
    """Return the longest beginning of `ids` behind which a state was kept, if it's longer than that."""
    for depth in range(len(path), -1, -1):
        place: Place = path[depth - 1] if depth else root
        if place.end + PREFIX_BLOCK_TOKENS <= longer_than:
            break
        rest = ids[place.end : place.end + PREFIX_BLOCK_TOKENS]
        ends = [*path[:depth][-1:], *(part for part in place.parts if part.ids == rest[: len(part.ids)])]
        kept = [block for block in ends if block.mark is not None and block.end > longer_than]
        if kept:
            last = max(kept, key=attrgetter("end"))
            return Match((*path[: last.start // PREFIX_BLOCK_TOKENS], last), last.end, last.snapshot)
    return None
