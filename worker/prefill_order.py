"""Who prefills in a turn, and how much: by rank, then by what is left to do. Pure, like the scheduler.

A turn's budget is the quantum of the first prompt in line, in milliseconds; in rank 0 up to four times that
while more of its prompts wait than rows decode, because then more answers gain than wait. (Prompts that have
yet to begin count as well, since they wait for what others prefill.) Ranks come in their order. A lower one
gets what the higher ones leave, if they leave nothing to do for the next turn, and never makes a turn longer
than its own quantum. No chunk goes beyond a checkpoint.

No rank starves: while it waits, it is owed a twentieth of the time that higher ranks prefill. Once that
covers a chunk of its own, the chunk is taken out of the turn's budget before all others; but in the middle
of a higher prompt only when four times as much is owed. One such chunk a turn: a rank whose quantum is a
small part of those above it, or that has only short prompts, gets somewhat less than its twentieth.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Final

from worker.plan import UNBOUNDED, Chunk, ChunkBound, StepTimes
from worker.sequence import Sequence

OWED_SHARE: Final = 0.05
PATIENCE: Final = 4.0
PRESSURE_MAX: Final = 4.0
_WAIT_WEIGHT: Final = 0.5


class PrefillOrder:
    """Cuts each turn's chunks. It remembers what each rank is owed, in milliseconds, and who got it last.

    `quantum_share` makes all quanta smaller while memory is short: a smaller piece takes less of it. No
    chunk is longer than memory is set aside for, whatever time it has.
    """

    def __init__(self, times: StepTimes, bound: ChunkBound = UNBOUNDED) -> None:
        self.quantum_share = 1.0
        self._times = times
        self._bound = bound
        self._owed_ms: dict[int, float] = {}
        self._turns = 0
        self._served_at: dict[int, int] = {}

    def chunks(self, prefilling: Iterable[Sequence], decoding: int, now: float) -> list[Chunk]:
        """Return this turn's chunks, counted as prefilled; `decoding` rows wait for them.

        They are of those that have begun. With the turn's fixed cost they take at most the budget, and a
        small chunk (the least that is ever cut) for each of the two who get one however little is left: the
        first in line, and who is owed.
        """
        everybody = sorted(prefilling, key=lambda sequence: self._place(sequence, now))
        ranks = _by_rank(sequence for sequence in everybody if sequence.begun)
        unbegun = Counter(sequence.rank for sequence in everybody if not sequence.begun)
        budget_ms = self._budget_ms(ranks, unbegun, decoding)
        turn = _Turn(self._times, self._bound, budget_ms, self.quantum_share)
        self._turns += 1
        owed = self._owed_longest(ranks, budget_ms)
        if owed is not None:
            self._served_at[owed.rank] = self._turns
            turn.cut(owed, self._quantum_ms(owed))
        for place, sequences in enumerate(ranks.values()):
            if place == 0:
                turn.serve_first(sequences)
            else:
                turn.serve_lower(sequences)
            if any(sequence.to_prefill for sequence in sequences):
                break
        self._keep_account(ranks, turn)
        return turn.chunks

    def _place(self, sequence: Sequence, now: float) -> tuple[int, float]:
        """Rank, then milliseconds of prefill still to do, less a share of those waited; least goes first.

        So a short prompt doesn't wait for a long one's whole prefill, and a stream of short ones doesn't
        starve a long one of their rank.
        """
        return sequence.rank, self._remaining_ms(sequence) - _WAIT_WEIGHT * 1000 * (
            now - sequence.submitted_at
        )

    def _quantum_ms(self, sequence: Sequence) -> float:
        return self.quantum_share * sequence.quantum_ms

    def _remaining_ms(self, sequence: Sequence) -> float:
        return self._times.prefill_ms(sequence.to_prefill, sequence.prefilled + sequence.to_prefill)

    def _budget_ms(self, ranks: dict[int, list[Sequence]], unbegun: Counter[int], decoding: int) -> float:
        """Return the first prompt's quantum, times the prompts of rank 0 for each row that waits for them."""
        if not ranks:
            return 0.0
        rank, sequences = next(iter(ranks.items()))
        pressure = (len(sequences) + unbegun[rank]) / max(1, decoding) if rank == 0 else 1.0
        return self._quantum_ms(sequences[0]) * min(PRESSURE_MAX, max(1.0, pressure))

    def _owed_longest(self, ranks: dict[int, list[Sequence]], budget_ms: float) -> Sequence | None:
        """Return the head of a lower rank that is owed a whole chunk: of several, who got one longest ago."""
        due: list[Sequence] = []
        higher: list[Sequence] = []
        for rank, sequences in ranks.items():
            owed_ms = self._owed_ms.get(rank, 0.0)
            needed_ms = min(budget_ms, self._quantum_ms(sequences[0]), self._remaining_ms(sequences[0]))
            interrupts = any(sequence.prefilled > sequence.cached for sequence in higher)
            if higher and owed_ms >= needed_ms * (PATIENCE if interrupts else 1.0):
                due.append(sequences[0])
            higher += sequences
        return min(due, key=lambda head: self._served_at.get(head.rank, 0), default=None)

    def _keep_account(self, ranks: dict[int, list[Sequence]], turn: "_Turn") -> None:
        """Owe each rank that waited its share of what higher ones got, less what it got itself."""
        owed_ms = dict(self._owed_ms) if ranks else {}
        higher_ms = 0.0
        for rank in ranks:
            got_ms = turn.spent_on(rank)
            most_ms = 2 * PATIENCE * self._quantum_ms(ranks[rank][0])
            owed_ms[rank] = min(most_ms, max(0.0, owed_ms.get(rank, 0.0) + OWED_SHARE * higher_ms - got_ms))
            higher_ms += got_ms
        self._owed_ms = owed_ms


class _Turn:
    """What is cut of one turn's budget. The turn's fixed cost is spent before the first token."""

    def __init__(self, times: StepTimes, bound: ChunkBound, budget_ms: float, quantum_share: float) -> None:
        self.chunks: list[Chunk] = []
        self._bound = bound
        self._quantum_share = quantum_share
        self._times = times
        self._budget_ms = budget_ms
        self._spent_ms = times.prefill_fixed_ms

    def spent_on(self, rank: int) -> float:
        return sum(self._times.cost_ms(chunk) for chunk in self.chunks if chunk.sequence.rank == rank)

    def serve_first(self, sequences: Seq[Sequence]) -> None:
        """Cut for the first rank, in order, while there is time, and for its first prompt anyway."""
        for sequence in sequences:
            if sequence is sequences[0] or self._spent_ms < self._budget_ms:
                self.cut(sequence, self._budget_ms)

    def serve_lower(self, sequences: Seq[Sequence]) -> None:
        """Cut for a lower rank what fits in the turn, and would fit in a turn of its own."""
        served = {chunk.sequence for chunk in self.chunks}
        for sequence in sequences:
            if sequence not in served and self._fits(sequence):
                self.cut(sequence, self._quantum_ms(sequence))

    def cut(self, sequence: Sequence, quantum_ms: float) -> None:
        """Cut the longest chunk that leaves the turn within this quantum, or a small one."""
        chunk = self._next_chunk(sequence, quantum_ms)
        sequence.prefilled += chunk.tokens
        self._spent_ms += self._times.cost_ms(chunk)
        self.chunks.append(chunk)

    def _fits(self, sequence: Sequence) -> bool:
        quantum_ms = self._quantum_ms(sequence)
        chunk = self._next_chunk(sequence, quantum_ms)
        return self._spent_ms + self._times.cost_ms(chunk) <= min(quantum_ms, self._budget_ms)

    def _quantum_ms(self, sequence: Sequence) -> float:
        return self._quantum_share * sequence.quantum_ms

    def _next_chunk(self, sequence: Sequence, quantum_ms: float) -> Chunk:
        left_ms = min(quantum_ms, self._budget_ms) - self._spent_ms
        in_time = self._times.tokens_for(left_ms, sequence.prefilled)
        tokens = min(_to_next_stop(sequence), in_time, self._bound.tokens_for(sequence.prefilled))
        return Chunk(sequence, sequence.prefilled, tokens)


def _to_next_stop(sequence: Sequence) -> int:
    """Return how many tokens there are to the next checkpoint, or to the end of the prefill."""
    checkpoints = sequence.checkpoints
    place = bisect_right(checkpoints, sequence.prefilled)
    return checkpoints[place] - sequence.prefilled if place < len(checkpoints) else sequence.to_prefill


def _by_rank(sequences: Iterable[Sequence]) -> dict[int, list[Sequence]]:
    """Sort those that have something to prefill by their rank, the highest first."""
    ranks: dict[int, list[Sequence]] = {}
    for sequence in sequences:
        if sequence.to_prefill:
            ranks.setdefault(sequence.rank, []).append(sequence)
    return ranks
