"""The scheduler under any mix of events, with a false engine: what must hold whatever happens."""

from collections import deque
from hashlib import blake2b

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.messages import Submit
from shared.sampling import Sampling
from worker.plan import Plan, StepTimes
from worker.scheduler import Emitted, Ended, Scheduler
from worker.sequence import Phase, Sequence

SLOTS = 3
QUANTUM_MS = 60.0
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

    def carry_out(self, plan: Plan) -> None:
        for sequence in plan.dropped:
            assert sequence not in self.dropped, "dropped twice"
            assert sequence.phase is Phase.GONE
            self.dropped.add(sequence)
        for chunk in plan.chunks:
            self.prefill(chunk.sequence, chunk.start, len(chunk.ids))
        assert len(set(plan.rows)) == len(plan.rows), "a row twice"
        if plan.rows:
            self.steps.append((plan.rows, [self.decode(row) for row in plan.rows]))

    def prefill(self, sequence: Sequence, start: int, tokens: int) -> None:
        assert sequence not in self.dropped, "prefilled after it was dropped"
        assert start == self.prefilled.get(sequence, 0), "a gap in the prefill"
        assert 0 < tokens <= len(sequence.ids) - 1 - start
        self.started.add(sequence)
        self.prefilled[sequence] = start + tokens

    def decode(self, sequence: Sequence) -> int:
        assert sequence not in self.dropped, "decoded after it was dropped"
        assert self.prefilled.get(sequence, 0) == len(sequence.ids) - 1, "decoded before its prefill ended"
        self.started.add(sequence)
        index = self.decoded.get(sequence, sequence.settled)
        assert index < sequence.max_tokens, "more tokens than were asked for"
        self.decoded[sequence] = index + 1
        return token_of(sequence, index)


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, cancels and turns in any order; the model beside it knows what each sequence must say."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.times = StepTimes(prefill_ms_per_token=1.0, decode_ms_per_step=1.0)
        self.scheduler = Scheduler(SLOTS, QUANTUM_MS, self.times)
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
    )
    def submit(self, name: str, prompt: int, emitted: int, more: int) -> None:
        self.attempt = self.attempt % 16 + 1
        submit = Submit(
            1, name, self.attempt, (5,) * prompt, (6,) * emitted, emitted + more, (STOP,), Sampling()
        )
        sequence = Sequence.of(submit, self.now)
        self.live[name] = sequence
        self.told[sequence] = emitted
        self.scheduler.submit(sequence)

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name: str) -> None:
        self.live.pop(name, None)
        self.scheduler.cancel(name)

    @rule()
    def cancel_all(self) -> None:
        self.live.clear()
        self.scheduler.cancel_all()

    @rule(seconds=st.floats(0, 3))
    def plan(self, seconds: float) -> None:
        self.now += seconds
        plan = self.scheduler.plan(self.now)
        self.engine.carry_out(plan)
        assert sum(chunk.tokens for chunk in plan.chunks) <= 4 * QUANTUM_MS + SMALL_CHUNK
        for row in plan.rows:
            assert self.live[row.name] is row, "a row that was cancelled"

    @precondition(lambda self: self.engine.steps)
    @rule()
    def settle(self) -> None:
        rows, tokens = self.engine.steps.popleft()
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
