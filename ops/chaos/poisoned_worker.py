"""The worker with a flaw on purpose: `python -m ops.chaos.poisoned_worker IDS SPEC` dies of certain prompts.

It is worker.process in all else. When it is to prefill a prompt in which the ids follow each other, it
aborts, in the middle of a turn, as Metal does when it has no memory left.
"""

import os
import sys
from collections.abc import Sequence as Seq
from typing import Final

from worker import process
from worker.engine.batch_engine import BatchEngine, PrefillResult
from worker.plan import Chunk


def holds(ids: Seq[int], poison: Seq[int]) -> bool:
    """Return whether `poison` stands in `ids`, one id after the other."""
    places = range(len(ids) - len(poison) + 1)
    return any(tuple(ids[place : place + len(poison)]) == tuple(poison) for place in places)


def poisoned(poison: tuple[int, ...]) -> type[BatchEngine]:
    """Return an engine that dies of prompts with these ids."""

    class Poisoned(BatchEngine):
        def prefill(self, chunks: Seq[Chunk]) -> PrefillResult:
            if any(holds(chunk.sequence.ids, poison) for chunk in chunks):
                os.abort()
            return super().prefill(chunks)

    return Poisoned


def main() -> None:
    """Take the ids from the front of the arguments; what is left is worker.process's own."""
    ids: Final = tuple(int(word) for word in sys.argv.pop(1).split(","))
    vars(process)["BatchEngine"] = poisoned(ids)
    process.main()


if __name__ == "__main__":
    main()
