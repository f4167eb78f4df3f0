"""The scheduler under any mix of events, with a false engine: what must hold whatever happens."""

from collections import deque
from hashlib import blake2b

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.messages import Submit
from shared.sampling import Sampling
from tests.worker.prompt_scheduler import PromptScheduler
from worker.plan import Plan, StepTimes
from worker.scheduler import Emitted, Ended
from worker.sequence import Phase, Sequence

SLOTS = 3
QUANTA_MS = (60.0, 25.0, 100.0)  # by rank
SMALL_CHUNK = 16
NAMES = ("a", "b", "c", "d", "e", "f")
STOP = 0


def token_of(sequence: Sequence, index: int) -> int:
    """Answer as a model would: by the sequence and the place in it; one token in sixteen is the stop."""
    return blake2b(f"{sequence.name} {sequence.attempt} {index}".encode(), digest_size=1).digest()[0] % 16


class FalseEngine:
    """Prefills and decodes in name only, one step ahead of what is read, and checks what it is told to do."""

    def __init__(self) -> None:
        self.prefilled: dict[Sequence, int] = {}
        self.started: set[Sequence] = set()
        self.dropped: set[Sequence] = set()
        self.decoded: dict[Sequence, int] = {}
        self.steps: deque[tuple[tuple[Sequence, ...], list[int]]] = deque()

    def carry_out(self, plan: Plan) -> tuple[tuple[Sequence, ...], list[int]]:
        """Drop and prefill; return the rows whose prefill brought a token, and these."""
        for sequence in plan.dropped:
            assert sequence not in self.dropped, "dropped twice"
            assert sequence.phase is Phase.GONE
            self.dropped.add(sequence)
        for chunk in plan.chunks:
            self.prefill(chunk.sequence, chunk.start, len(chunk.ids))
        firsts = tuple(chunk.sequence for chunk in plan.chunks if chunk.brings_token)
        return firsts, [self.decode(row) for row in firsts]

    def launch(self, rows: tuple[Sequence, ...]) -> None:
        assert len(set(rows)) == len(rows), "a row twice"
        if rows:
            self.steps.append((rows, [self.decode(row) for row in rows]))

    def prefill(self, sequence: Sequence, start: int, tokens: int) -> None:
        assert sequence not in self.dropped, "prefilled after it was dropped"
        assert start == self.prefilled.get(sequence, 0), "a gap in the prefill"
        assert 0 < tokens <= sequence.prefill_tokens - start
        self.started.add(sequence)
        self.prefilled[sequence] = start + tokens

    def decode(self, sequence: Sequence) -> int:
        assert sequence not in self.dropped, "decoded after it was dropped"
        assert self.prefilled.get(sequence, 0) >= len(sequence.ids) - 1, "decoded before its prefill ended"
        self.started.add(sequence)
        index = self.decoded.get(sequence, sequence.settled)
        assert index < sequence.max_tokens, "more tokens than were asked for"
        self.decoded[sequence] = index + 1
        return token_of(sequence, index)


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, cancels and turns in any order; the model beside it knows what each sequence must say."""

    prefills_last = False

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.times = StepTimes(prefill_ms_per_token=1.0, decode_ms_per_step=1.0)
        self.scheduler = PromptScheduler(SLOTS, self.times, prefills_last=self.prefills_last)
        self.engine = FalseEngine()
        self.live: dict[str, Sequence] = {}
        self.told: dict[Sequence, int] = {}
        self.ended: set[Sequence] = set()
        self.attempt = 0

    @rule(
        name=st.sampled_from(NAMES),
        prompt=st.one_of(st.just(1), st.integers(2, 40), st.integers(50, 400)),
        emitted=st.integers(0, 5),
        more=st.integers(1, 12),
        rank=st.sampled_from(range(len(QUANTA_MS))),
    )
    def submit(self, name: str, prompt: int, emitted: int, more: int, rank: int) -> None:
        self.attempt = self.attempt % 16 + 1
        submit = Submit(
            epoch=1,
            sequence=name,
            attempt=self.attempt,
            prompt_ids=(5,) * prompt,
            emitted_ids=(6,) * emitted,
            max_tokens=emitted + more,
            stop_ids=(STOP,),
            sampling=Sampling(),
            rank=rank,
            quantum_ms=QUANTA_MS[rank],
        )
        sequence = Sequence.of(submit, self.now)
        self.live[name] = sequence
        self.told[sequence] = emitted
        self.scheduler.submit(sequence)

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name: str) -> None:
        self.live.pop(name, None)
        self.scheduler.cancel(name)

    @rule(name=st.sampled_from(NAMES))
    def park(self, name: str) -> None:
        expected = self.live.pop(name, None)
        parked = self.scheduler.park(name)
        assert parked is expected
        if parked is not None:
            assert parked.settled == self.told[parked], "not as many tokens as were told"

    @rule()
    def cancel_all(self) -> None:
        self.live.clear()
        self.scheduler.cancel_all()

    @rule(seconds=st.floats(0, 3))
    def plan(self, seconds: float) -> None:
        self.now += seconds
        plan = self.scheduler.plan(self.now)
        firsts = self.engine.carry_out(plan)
        self.check_order(plan)
        self.take(*firsts)
        rows = self.scheduler.still_in(plan)
        for row in rows:
            assert self.live[row.name] is row, "a row that was cancelled"
        self.engine.launch(rows)

    def check_order(self, plan: Plan) -> None:
        """Slots and the first chunk go to the highest rank, and what is behind it keeps to its budget."""
        in_slots = [each for each in self.live.values() if each.phase in (Phase.PREFILL, Phase.DECODE)]
        waiting = [each.rank for each in self.live.values() if each.phase is Phase.WAITING]
        assert not waiting or len(in_slots) == SLOTS, "a slot is free"
        prefilled = [chunk.sequence for chunk in plan.chunks]
        unfinished = [each.rank for each in in_slots if each.to_prefill]
        if not prefilled:
            assert not unfinished, "nothing was prefilled, though something waits"
            return
        first = min(each.rank for each in prefilled)
        assert first <= min(unfinished, default=first), "a higher rank got nothing"
        budget_ms = QUANTA_MS[first] * (4 if first == 0 else 1)
        assert sum(chunk.tokens for chunk in plan.chunks) <= budget_ms + 2 * SMALL_CHUNK
        assert len(set(prefilled)) == len(prefilled), "two chunks of one prompt"

    @precondition(lambda self: self.engine.steps)
    @rule()
    def settle(self) -> None:
        self.take(*self.engine.steps.popleft())

    def take(self, rows: tuple[Sequence, ...], tokens: list[int]) -> None:
        for outcome in self.scheduler.settle(rows, tokens):
            self.check(outcome)

    def check(self, outcome: Emitted | Ended) -> None:
        sequence = outcome.sequence
        assert self.live[sequence.name] is sequence, "a word from a sequence that is gone"
        assert outcome.index == self.told[sequence], "an index left out or said twice"
        if isinstance(outcome, Emitted):
            assert outcome.token == token_of(sequence, outcome.index)
            assert outcome.token != STOP
            self.told[sequence] += 1
            return
        assert (outcome.reason == "length") == (outcome.index == sequence.max_tokens)
        assert sequence not in self.ended, "ended twice"
        self.ended.add(sequence)
        del self.live[sequence.name]

    @invariant()
    def no_more_run_than_there_are_slots(self) -> None:
        running = [each for each in self.live.values() if each.phase in (Phase.PREFILL, Phase.DECODE)]
        assert len(running) <= SLOTS

    @invariant()
    def everyone_alive_is_known_and_nobody_else(self) -> None:
        assert set(self.scheduler.names) == set(self.live)

    def teardown(self) -> None:
        """Let everything end: each sequence that was not cancelled must, and all that started be dropped."""
        for _ in range(3000):
            if not self.scheduler.busy:
                break
            self.plan(0.01)
            while len(self.engine.steps) > 1 or (self.engine.steps and not self.live):
                self.settle()
            if self.engine.steps and all(row.launched == row.max_tokens for row in self.live.values()):
                self.settle()
        assert not self.scheduler.busy
        assert self.live == {}
        assert self.engine.dropped >= self.engine.started


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestAnyMixOfEvents = SchedulerMachine.TestCase


class FirstTokensMachine(SchedulerMachine):
    """The same where prefill brings the first token of an answer."""

    prefills_last = True


FirstTokensMachine.TestCase.settings = SchedulerMachine.TestCase.settings
TestAnyMixOfEventsWithFirstTokens = FirstTokensMachine.TestCase
