"""Which sequences prefill and decode in each turn. Pure: no MLX, no socket, no clock of its own.

Every turn decodes all rows and spends at most one quantum, in milliseconds, on prefill: up to four times as
much while more prompts wait than rows decode, because then more answers gain than wait. Prefill goes to the
shortest remaining first, so that a short prompt never waits for a long one's whole prefill; waiting
shortens a prompt's rank, so that a long one isn't starved by a stream of short ones.
"""

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

from shared.messages import FinishReason
from worker.plan import Chunk, Plan, StepTimes
from worker.sequence import Phase, Sequence

_WAIT_WEIGHT: Final = 0.5
_PRESSURE_MAX: Final = 4.0


@dataclass(frozen=True, slots=True)
class Emitted:
    """A token of a sequence was read back."""

    sequence: Sequence
    index: int
    token: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A sequence ended by itself after `index` tokens."""

    sequence: Sequence
    index: int
    reason: FinishReason


class Scheduler:
    """Holds every sequence of this worker, and at most `slots` of them in the batch."""

    def __init__(self, slots: int, quantum_ms: float, times: StepTimes) -> None:
        self._slots = slots
        self._quantum_ms = quantum_ms
        self._times = times
        self._known: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._dropped: list[Sequence] = []

    # --- what comes in ------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Take a sequence in; one of the same name is replaced (a newer attempt)."""
        self.cancel(sequence.name)
        self._known[sequence.name] = sequence
        self._waiting.append(sequence)

    def cancel(self, name: str) -> None:
        """Forget a sequence, wherever it stands; an unknown one is ignored."""
        sequence = self._known.get(name)
        if sequence is not None:
            self._drop(sequence)

    def cancel_all(self) -> None:
        for sequence in list(self._known.values()):
            self._drop(sequence)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    @property
    def will_prefill(self) -> bool:
        """Whether the next plan has chunks in it."""
        has_slot = len(self._prefilling) + len(self._decoding) < self._slots
        return bool(self._prefilling) or (bool(self._waiting) and has_slot)

    @property
    def busy(self) -> bool:
        return bool(self._known) or bool(self._dropped)

    # --- one turn -----------------------------------------------------------------------------------------

    def plan(self, now: float) -> Plan:
        """Decide a turn and count it as launched: the caller carries it out."""
        dropped, self._dropped = tuple(self._dropped), []
        self._fill_slots()
        chunks = tuple(self._chunks(now))
        self._promote()
        rows = tuple(sequence for sequence in self._decoding if sequence.launched < sequence.max_tokens)
        for sequence in rows:
            sequence.launched += 1
        expected_ms = self._times.decode_ms(len(rows)) + sum(self._cost_ms(chunk) for chunk in chunks)
        expected_ms += self._times.prefill_fixed_ms if chunks else 0.0
        return Plan(dropped, chunks, rows, expected_ms)

    def settle(self, rows: Seq[Sequence], tokens: Seq[int]) -> list[Emitted | Ended]:
        """Take a step's tokens, one a row. Rows that were dropped since it was launched say nothing."""
        outcomes: list[Emitted | Ended] = []
        for sequence, token in zip(rows, tokens, strict=True):
            if sequence.phase is Phase.DECODE:
                outcomes.extend(self._settle_one(sequence, token))
        return outcomes

    def _settle_one(self, sequence: Sequence, token: int) -> Iterator[Emitted | Ended]:
        if token in sequence.stop_ids:
            self._drop(sequence)
            yield Ended(sequence, sequence.settled, "stop")
            return
        yield Emitted(sequence, sequence.settled, token)
        sequence.settled += 1
        if sequence.settled == sequence.max_tokens:
            self._drop(sequence)
            yield Ended(sequence, sequence.settled, "length")

    def _fill_slots(self) -> None:
        while self._waiting and len(self._prefilling) + len(self._decoding) < self._slots:
            sequence = self._waiting.popleft()
            sequence.phase = Phase.PREFILL
            self._prefilling.append(sequence)

    def _chunks(self, now: float) -> Iterator[Chunk]:
        """Share one quantum out. Each is at least a small one, so the last may run over by that."""
        left_ms = self._quantum_ms * self._pressure() - self._times.prefill_fixed_ms
        first = True
        for sequence in sorted(self._prefilling, key=lambda waiting: self._rank(waiting, now)):
            if sequence.to_prefill == 0:
                continue
            if left_ms <= 0 and not first:
                return
            first = False
            context = sequence.prefilled
            tokens = min(sequence.to_prefill, self._times.tokens_for(left_ms, context))
            chunk = Chunk(sequence, context, tokens)
            sequence.prefilled += tokens
            left_ms -= self._cost_ms(chunk)
            yield chunk

    def _pressure(self) -> float:
        """Return how many prompts wait for each row that would wait for them, within [1, _PRESSURE_MAX]."""
        waiting = sum(sequence.to_prefill > 0 for sequence in self._prefilling)
        return min(_PRESSURE_MAX, max(1.0, waiting / max(1, len(self._decoding))))

    def _rank(self, sequence: Sequence, now: float) -> float:
        """Milliseconds of prefill still to do, less a share of those waited; least goes first."""
        remaining_ms = self._times.prefill_ms(sequence.to_prefill, sequence.prefilled)
        return remaining_ms - _WAIT_WEIGHT * 1000 * (now - sequence.submitted_at)

    def _cost_ms(self, chunk: Chunk) -> float:
        return self._times.prefill_ms(chunk.tokens, chunk.start + chunk.tokens)

    def _promote(self) -> None:
        for sequence in [waiting for waiting in self._prefilling if waiting.to_prefill == 0]:
            sequence.phase = Phase.DECODE
            self._prefilling.remove(sequence)
            self._decoding.append(sequence)

    def _drop(self, sequence: Sequence) -> None:
        del self._known[sequence.name]
        if sequence.phase is Phase.WAITING:
            self._waiting.remove(sequence)
        elif sequence.phase is Phase.PREFILL:
            self._prefilling.remove(sequence)
        else:
            self._decoding.remove(sequence)
        if sequence.phase is not Phase.WAITING:
            self._dropped.append(sequence)
        sequence.phase = Phase.GONE
