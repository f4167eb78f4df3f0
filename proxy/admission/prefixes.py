"""What of a prompt needn't be computed: what the worker keeps, and what answers before it compute anyway."""

from collections import ChainMap, Counter, defaultdict
from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Final

from shared.limits import PREFIX_BLOCK_TOKENS, PREFIX_BLOCKS_MAX
from shared.model_facts import ModelFacts, Reuse

# From here on a newcomer waits for what another one computes; facts say another number where rows share.
_WAITS_FROM_TOKENS: Final = 256


class Prefixes:
    """A mirror of the worker's blocks by their names, and the names of those answers that are live.

    Estimates only: what was there is told by the worker when it begins with an answer. Of a family that
    goes on from checkpoints only, blocks are known and not where the checkpoints are, so it may be too much.
    """

    def __init__(self) -> None:
        self._kept: dict[int, None] = {}
        self._live: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by their lanes' rank
        self._running: Counter[int] = Counter()
        self._reuse: Reuse = "none"
        self._waits_from = _WAITS_FROM_TOKENS

    # --- the worker ---------------------------------------------------------------------------------------

    def worker_came(self, facts: ModelFacts) -> None:
        """Begin with a worker that tells all anew."""
        self.forget()
        self._reuse = facts.reuse
        self._waits_from = facts.shares_from or _WAITS_FROM_TOKENS

    def forget(self) -> None:
        """Take it that nothing is kept any more."""
        self._kept.clear()

    def told(self, added: Sequence[int], gone: Sequence[int]) -> None:
        """Take a worker's word. Of more blocks than one may keep, those told first are forgotten."""
        for name in gone:
            self._kept.pop(name, None)
        for name in added:
            self._kept.pop(name, None)
            self._kept[name] = None
        while len(self._kept) > PREFIX_BLOCKS_MAX:
            del self._kept[next(iter(self._kept))]

    @property
    def kept(self) -> int:
        """Count the blocks that the worker keeps."""
        return len(self._kept)

    # --- answers ------------------------------------------------------------------------------------------

    def arrived(self, names: Sequence[int], rank: int) -> None:
        """Count an answer whose prompt has these blocks among the live ones of its lane."""
        self._live[rank].update(names)

    def left(self, names: Sequence[int], rank: int) -> None:
        """Forget what arrived in a lane of this rank."""
        _take(self._live[rank], names)

    def started(self, names: Sequence[int]) -> None:
        """Count an answer among those that hold a row, too."""
        self._running.update(names)

    def stopped(self, names: Sequence[int]) -> None:
        """Forget what started."""
        _take(self._running, names)

    # --- what is there ------------------------------------------------------------------------------------

    def cached_tokens(self, names: Sequence[int], prompt_tokens: int) -> int:
        """Return the tokens that a prompt wouldn't have to compute if it started now, never all of them.

        A newcomer waits for what a running one computes, or takes what that one has.
        """
        return self._tokens(names, prompt_tokens, self._running)

    def expected_tokens(self, names: Sequence[int], prompt_tokens: int, rank: int) -> int:
        """Return the same of a prompt that is queued now in a lane of this rank.

        What runs, and what is queued in no lower lane, has begun before it does.
        """
        before = ChainMap(self._running, *(live for lane, live in self._live.items() if lane <= rank))
        return self._tokens(names, prompt_tokens, before)

    def _tokens(self, names: Sequence[int], prompt_tokens: int, others: Collection[int]) -> int:
        if self._reuse == "none":
            return 0
        tokens = _leading_tokens(names, self._kept, ())
        if tokens < len(names) * PREFIX_BLOCK_TOKENS:
            with_others = _leading_tokens(names, self._kept, others)
            tokens = with_others if with_others >= self._waits_from else tokens
        return min(tokens, prompt_tokens - 1)


def _leading_tokens(names: Sequence[int], kept: Collection[int], others: Collection[int]) -> int:
    known = takewhile(lambda name: name in kept or name in others, names)
    return PREFIX_BLOCK_TOKENS * sum(1 for _ in known)


def _take(counts: Counter[int], names: Sequence[int]) -> None:
    for name in names:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]
