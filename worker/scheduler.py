"""Which sequences prefill and decode in each turn. Pure: no MLX, no socket, no clock of its own.

Every turn decodes all rows, and prefills what `prefill_order` cuts for it. Slots go by rank, then by
arrival. Who has one begins behind what is kept of its prompt: at once, or when another prompt has got there
that both begin with (`prefix_waits`).
"""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from shared.messages import FinishReason
from shared.model_facts import Reuse
from worker.checkpoints import checkpoints_of
from worker.grammar import Guide
from worker.plan import UNBOUNDED, Chunk, ChunkBound, Plan, StepTimes
from worker.prefill_order import PrefillOrder
from worker.prefix_waits import PrefixWaits
from worker.sequence import Phase, Sequence


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


@dataclass(frozen=True, slots=True)
class Broke:
    """A sequence can't go on, though others can; `problem` says why."""

    sequence: Sequence
    problem: str


Outcome = Emitted | Ended | Broke


class Scheduler:
    """Holds every sequence of this worker, and at most `slots` of them in the batch.

    `reuse` is what can be used again of a prompt that was computed. A beginning of `share_tokens` or more is
    waited for while another one prefills it; 0: never. With `prefills_last` a prompt's last token is
    prefilled too and brings the first token of the answer, but where a state is to be kept behind the one
    before it.
    """

    def __init__(
        self,
        slots: int,
        times: StepTimes,
        bound: ChunkBound = UNBOUNDED,
        *,
        reuse: Reuse = "none",
        share_tokens: int = 0,
        prefills_last: bool = False,
    ) -> None:
        self._slots = slots
        self._prefills_last = prefills_last
        self._times = times
        self._order = PrefillOrder(times, bound)
        self._keeps_states = reuse == "checkpoints"
        self._waits = PrefixWaits(reuse, share_tokens)
        self._known: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._dropped: list[Sequence] = []

    # --- what comes in ------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Take a sequence in; one of the same name is replaced (a newer attempt)."""
        self.cancel(sequence.name)
        if self._keeps_states:
            prompt_tokens = len(sequence.ids) - sequence.emitted
            sequence.checkpoints = checkpoints_of(sequence.ids, sequence.stop_ids, prompt_tokens)
        sequence.prefills_last = self._prefills_last and not sequence.checkpoints
        self._known[sequence.name] = sequence
        self._waiting.append(sequence)

    def cancel(self, name: str) -> None:
        """Forget a sequence, wherever it stands; an unknown one is ignored."""
        sequence = self._known.get(name)
        if sequence is not None:
            self._drop(sequence)

    def park(self, name: str) -> Sequence | None:
        """Give up a sequence's row and memory; return it as far as it was settled, or None if it is unknown.

        What is kept of it is the engine's affair; what isn't is computed again when it comes back.
        """
        sequence = self._known.get(name)
        self.cancel(name)
        return sequence

    def share_quanta(self, share: float) -> None:
        """From now on let a piece of prefill take only this share of its quantum."""
        self._order.quantum_share = share

    def guide(self, sequence: Sequence, guide: Guide) -> None:
        """Let a sequence begin whose guide is made."""
        sequence.guide = guide
        sequence.awaits_guide = False

    def cancel_all(self) -> None:
        for sequence in list(self._known.values()):
            self._drop(sequence)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._known)

    @property
    def will_prefill(self) -> bool:
        """Whether somebody prefills or begins in the next plan, or would if what it needs were there."""
        has_slot = len(self._prefilling) + len(self._decoding) < self._slots
        return bool(self._prefilling) or (has_slot and any(self._startable()))

    @property
    def busy(self) -> bool:
        return bool(self._known) or bool(self._dropped)

    # --- one turn -----------------------------------------------------------------------------------------

    def take_dropped(self) -> tuple[Sequence, ...]:
        """Return what is to be freed, ahead of the plan: so that those who begin find the room."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def beginning(self) -> Iterator[Sequence]:
        """Yield those who may begin now, in order; the caller begins each before it asks for the next.

        One that it can't begin yet is yielded again in the next turn. Until it has begun, nothing of a
        sequence is planned.
        """
        self._fill_slots()
        for sequence in sorted(self._prefilling, key=lambda each: each.rank):
            if not sequence.begun and not self._waits.holds_back(sequence, self._begun()):
                yield sequence

    def _begun(self) -> Iterator[Sequence]:
        yield from (sequence for sequence in self._prefilling if sequence.begun)
        yield from self._decoding

    def plan(self, now: float) -> Plan:
        """Decide a turn and count it as launched: the caller carries it out."""
        dropped = self.take_dropped()
        chunks = tuple(self._order.chunks(self._prefilling, len(self._decoding), now))
        self._promote()
        rows = self._launchable(self._decoding)
        return Plan(dropped, chunks, rows, self._expected_ms(chunks, rows))

    def extend(self, plan: Plan, now: float) -> Plan:
        """Return the rest of a plan whose chunks are done: for prompts of higher ranks that came meanwhile.

        They needn't wait for the step that comes next, but join it. What was dropped meanwhile leaves it.
        """
        dropped = self.take_dropped()
        rank = min((chunk.sequence.rank for chunk in plan.chunks), default=0)
        higher = [sequence for sequence in self._prefilling if sequence.rank < rank]
        chunks = tuple(self._order.chunks(higher, len(self._decoding), now))
        self._promote()
        planned = set(plan.rows)
        kept = self.still_in(plan)
        new = self._launchable(sequence for sequence in self._decoding if sequence not in planned)
        return Plan(dropped, chunks, kept + new, self._expected_ms(chunks, kept + new))

    def still_in(self, plan: Plan) -> tuple[Sequence, ...]:
        """Return a plan's rows without those that were dropped or have ended since."""
        return tuple(sequence for sequence in plan.rows if sequence.phase is Phase.DECODE)

    def _launchable(self, sequences: Iterable[Sequence]) -> tuple[Sequence, ...]:
        """Return those that have a token to come, counted as launched."""
        rows = tuple(sequence for sequence in sequences if sequence.launched < sequence.max_tokens)
        for sequence in rows:
            sequence.launched += 1
        return rows

    def _expected_ms(self, chunks: Seq[Chunk], rows: Seq[Sequence]) -> float:
        prefill_ms = sum(self._times.cost_ms(chunk) for chunk in chunks)
        fixed_ms = self._times.prefill_fixed_ms if chunks else 0.0
        return self._times.decode_ms(len(rows)) + prefill_ms + fixed_ms

    def settle(self, rows: Seq[Sequence], tokens: Seq[int]) -> list[Outcome]:
        """Take a step's tokens, one a row. Rows that were dropped since it was launched say nothing."""
        outcomes: list[Outcome] = []
        for sequence, token in zip(rows, tokens, strict=True):
            if sequence.phase is Phase.DECODE:
                sequence.said.append(token)
                outcomes.extend(self._settle_one(sequence, token))
        return outcomes

    def _settle_one(self, sequence: Sequence, token: int) -> Iterator[Outcome]:
        guide = sequence.guide
        if guide is not None and guide.problem:
            self._drop(sequence)
            yield Broke(sequence, guide.problem)
            return
        if token in sequence.stop_ids:
            self._drop(sequence)
            yield Ended(sequence, sequence.settled, "stop")
            return
        yield Emitted(sequence, sequence.settled, token)
        sequence.settled += 1
        if guide is not None and guide.ended:
            self._drop(sequence)
            yield Ended(sequence, sequence.settled, "stop")
        elif sequence.settled == sequence.max_tokens:
            self._drop(sequence)
            yield Ended(sequence, sequence.settled, "length")

    def _startable(self) -> Iterator[Sequence]:
        return (sequence for sequence in self._waiting if not sequence.awaits_guide)

    def _fill_slots(self) -> None:
        while len(self._prefilling) + len(self._decoding) < self._slots:
            sequence = min(self._startable(), key=lambda waiting: waiting.rank, default=None)
            if sequence is None:
                return
            self._waiting.remove(sequence)
            sequence.phase = Phase.PREFILL
            self._prefilling.append(sequence)

    def _promote(self) -> None:
        for sequence in [each for each in self._prefilling if each.begun and each.to_prefill == 0]:
            sequence.phase = Phase.DECODE
            self._prefilling.remove(sequence)
            self._decoding.append(sequence)
            # Its prefill brings a token.
            sequence.launched += sequence.prefilled == len(sequence.ids)

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
