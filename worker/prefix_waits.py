"""Who waits for whom: a prompt whose beginning is being prefilled for another one begins behind that. Pure.

Only what prefills is waited for, and nothing that comes after oneself in rank: so whatever is waited for
moves, in its turn, and who waits begins at the latest when that has ended or gone.
"""

from bisect import bisect_left
from collections.abc import Iterable

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.model_facts import Reuse
from worker.sequence import Sequence


def common_tokens(one: Sequence, other: Sequence) -> int:
    """Return how many tokens two sequences of one salt both prefill first, by whole blocks."""
    mine, theirs = one.keys, other.keys
    # Each key names all that is before it as well, so keys that differ come behind all that don't.
    blocks = range(min(len(mine), len(theirs)))
    return PREFIX_BLOCK_TOKENS * bisect_left(blocks, True, key=lambda block: mine[block] != theirs[block])


class PrefixWaits:
    """Says who is held back. `reuse` is the family's; less than `share_tokens` is not worth waiting for.

    With `share_tokens` 0 nobody waits.
    """

    def __init__(self, reuse: Reuse, share_tokens: int) -> None:
        self._reuse = reuse
        self._share_tokens = share_tokens
        self._waits = reuse != "none" and share_tokens > 0

    def holds_back(self, sequence: Sequence, begun: Iterable[Sequence]) -> bool:
        """Whether a sequence waits for one of those that have begun, prefilling or decoding.

        It does while one will come farther into their common beginning than anybody is, and has itself come
        as far as this sequence would begin from. Who decodes has come as far as ever.
        """
        if not self._waits or len(sequence.ids) <= self._share_tokens:
            return False
        alike = [
            (other, common)
            for other in begun
            if other.salt == sequence.salt and (common := self._common(sequence, other)) >= self._share_tokens
        ]
        there = max((self._usable(other, min(common, other.prefilled)) for other, common in alike), default=0)
        return any(
            other.rank <= sequence.rank and there <= other.prefilled < self._target(other, common)
            for other, common in alike
        )

    def _target(self, other: Sequence, common: int) -> int:
        """Return up to where it pays to let another one go ahead; 0 if it doesn't."""
        usable = self._usable(other, common)
        return usable if usable >= self._share_tokens else 0

    def _common(self, sequence: Sequence, other: Sequence) -> int:
        """Return the tokens in common: where only whole states count, to the token."""
        tokens = common_tokens(sequence, other)
        if self._reuse == "checkpoints":
            most = min(len(sequence.ids), len(other.ids), tokens + PREFIX_BLOCK_TOKENS) - 1
            while tokens < most and sequence.ids[tokens] == other.ids[tokens]:
                tokens += 1
        return tokens

    def _usable(self, other: Sequence, tokens: int) -> int:
        """Return how many of another one's first `tokens` can be begun from."""
        if self._reuse == "any":
            return tokens
        states = (*other.checkpoints, other.cached)
        return max((state for state in states if state <= tokens), default=0)
