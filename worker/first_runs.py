"""Patience with what this life never ran before: the first time, a GPU has the kernels for it compiled.

That takes seconds, up to tens of them, in which the loop stands still as it does when it hangs. The warm-up
meets few shapes: the first long prompt, the first wide batch, the first row that draws in another way each
may compile again. Which kernel a shape gets depends on its order of magnitude, so shapes are told apart by
powers of two.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from worker.plan import Plan
from worker.sequence import Sequence

# The supervisor waits for four times as long.
FIRST_RUN_MS: Final = 15_000.0

_Shape = tuple[object, ...]


class FirstRuns:
    """Remembers the shapes that ran.

    `first_run_ms` is what one may take the first time, 0 where nothing is compiled.
    """

    def __init__(self, first_run_ms: float) -> None:
        self._first_run_ms = first_run_ms
        self._met: set[_Shape] = set()
        self._patience_ms = 0.0

    def begin_turn(self) -> None:
        self._patience_ms = 0.0

    def expected_ms(self, plan: Plan) -> float:
        """Return how long a plan may take, of which there may be two in a turn."""
        if self._first_run_ms:
            new = {*_shapes(plan)} - self._met
            if new:
                self._met |= new
                self._patience_ms = self._first_run_ms
        return max(plan.expected_ms, self._patience_ms)


def _shapes(plan: Plan) -> Iterator[_Shape]:
    for chunk in plan.chunks:
        together = len(plan.chunks) if chunk.is_whole_prefill else 1
        yield "prefill", together.bit_length(), chunk.tokens.bit_length(), chunk.end.bit_length()
    firsts = [chunk.sequence for chunk in plan.chunks if chunk.brings_token]
    if firsts:
        yield "first", len(firsts).bit_length(), _ways(firsts)
    if plan.rows:
        longest = max(row.context for row in plan.rows)
        yield "decode", len(plan.rows).bit_length(), longest.bit_length(), _ways(plan.rows)


def _ways(rows: Iterable[Sequence]) -> frozenset[tuple[bool, ...]]:
    """Return in which ways these rows draw."""
    samplings = [row.sampling for row in rows]
    return frozenset((each.greedy, each.top_k > 0, each.top_p < 1, each.min_p > 0) for each in samplings)
