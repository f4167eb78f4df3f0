"""Admission against a model of it, over every order of events that hypothesis can think of."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.admission.core import Admission
from proxy.admission.estimate import Estimate
from shared.errors import ContextTooLong, InvalidRequest, Overloaded
from tests.proxy.small_worlds import facts, waiting

MODEL = facts(kv_pad_tokens=4, kv_pad_rows=2, fixed_bytes_per_row=3)
TOKENS = st.integers(1, 30)


class Admissions(RuleBasedStateMachine):
    """Keeps who waits, in order, and who runs; says what must start, and compares."""

    @initialize(places=st.integers(1, 6))
    def open(self, places):
        self.places = places
        self.admission = Admission(places, Estimate())
        self.tokens = {}
        self.waiting = []
        self.interrupted = set()
        self.running = []
        self.slots = 0
        self.budget = None
        self.now = 0.0

    def fits(self, name, running):
        tokens = [self.tokens[each] for each in (*running, name)]
        return MODEL.batch_bytes(len(tokens), max(tokens)) <= self.budget

    def start(self):
        """Let the two decide who starts, as the dispatcher does after every event."""
        self.now += 1
        gone = []
        while self.waiting and self.budget is not None and not self.fits(self.waiting[0], []):
            gone.append(self.waiting.pop(0))
        assert self.admission.misfits() == gone
        due = []
        while self.waiting and len(self.running) < self.slots and self.fits(self.waiting[0], self.running):
            self.running.append(self.waiting.pop(0))
            due.append(self.running[-1])
        assert self.admission.starts(self.now) == due
        self.interrupted -= {*gone, *due}

    @rule(lengths=st.lists(TOKENS, min_size=1, max_size=4))
    def arrive(self, lengths):
        names = [f"{len(self.tokens)}/{number}" for number, _ in enumerate(lengths)]
        self.tokens |= dict(zip(names, lengths, strict=True))
        hopeless = self.budget is not None and not all(self.fits(name, []) for name in names)
        full = len(self.waiting) - len(self.interrupted) + len(names) > self.places
        try:
            self.admission.arrived([waiting(name, self.tokens[name]) for name in names])
        except ContextTooLong:
            assert hopeless
        except InvalidRequest:
            assert len(names) > self.places
        except Overloaded as refusal:
            assert full and not hopeless  # noqa: PT018 (one fact about this refusal)
            assert 1 <= refusal.retry_after_s <= 60  # noqa: PT017 (likewise)
        else:
            assert not hopeless and not full  # noqa: PT018 (one fact about this arrival)
            self.waiting += names
        self.start()

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data(), completed=st.booleans())
    def end(self, data, completed):
        name = data.draw(st.sampled_from([*self.running, *self.waiting]))
        self.forget(name)
        self.admission.ended(name, self.now, completed=completed)
        self.start()

    def forget(self, name):
        self.interrupted.discard(name)
        for place in (self.running, self.waiting):
            if name in place:
                place.remove(name)

    @rule()
    def end_an_unknown(self):
        self.admission.ended("nobody", self.now, completed=False)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def lose_one(self, data):
        name = data.draw(st.sampled_from(self.running))
        self.admission.interrupted([name])
        self.put_back([name])
        self.start()

    def put_back(self, names):
        self.running = [name for name in self.running if name not in names]
        self.waiting = [*names, *self.waiting]
        self.interrupted |= set(names)

    @rule()
    def lose_the_worker(self):
        self.slots = 0
        self.admission.worker_went()
        back = list(self.running)
        self.admission.interrupted(back)
        self.put_back(back)
        self.start()

    @precondition(lambda self: not self.running)
    @rule(budget=st.integers(0, 600), slots=st.integers(1, 5))
    def get_a_worker(self, budget, slots):
        self.budget, self.slots = budget, slots
        self.admission.worker_came(MODEL, budget, slots)
        self.start()

    @invariant()
    def everybody_is_in_exactly_one_place(self):
        assert list(self.admission._queue._waiting) == self.waiting
        assert sorted(self.admission._running) == sorted(self.running)
        assert self.admission.queued == len(self.waiting)
        assert not set(self.waiting) & set(self.running)

    @invariant()
    def no_more_runs_than_slots_and_bytes_allow(self):
        assert self.admission.running == len(self.running) <= max(self.slots, 0)
        assert self.admission.reserved_bytes <= (self.budget or 0)
        if not self.running:
            assert self.admission.reserved_bytes == 0

    @invariant()
    def no_more_newcomers_wait_than_there_are_places(self):
        assert len(self.waiting) - len(self.interrupted) <= self.places

    @invariant()
    def whoever_could_start_has_started(self):
        if self.waiting and self.slots and len(self.running) < self.slots:
            assert not self.fits(self.waiting[0], self.running)
            assert self.running


TestAdmissions = Admissions.TestCase
TestAdmissions.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
