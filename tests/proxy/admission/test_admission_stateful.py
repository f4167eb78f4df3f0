"""All events in any order: whatever clients, worker and operator do, the core's promises hold after each."""

import math

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.proxy.admission.small_core import lane
from tests.proxy.admission.stateful_world import World
from tests.proxy.small_worlds import facts

KEYS = {"": 1.0, "light": 1.0, "heavy": 3.0, "slow": 0.5}
MODELS = st.builds(
    facts,
    kv_bytes_per_token=st.just(1 << 18),
    kv_pad_tokens=st.sampled_from([1, 4]),
    fixed_bytes_per_row=st.integers(0, 1 << 20),
)
BUDGETS = st.integers(90, 220).map(lambda mib: mib << 20)
SIZES = st.tuples(st.integers(1, 20), st.sampled_from([5, 40, 120, 120]))
SLOTS = st.integers(1, 9)
LANES = st.sampled_from("aabcddd")  # most of them the highest or the lowest


def settings_of(name, **changes):
    """Lanes c and d can be parked whenever they are there: overcommitted rows stay where they can be."""
    return st.builds(
        lane,
        st.just(name),
        parkable=st.just(name in "cd"),
        reserved_slots=st.integers(0, 2),
        reserved_mb=st.sampled_from([None, 0, 10, 40]),
        queue_places=st.sampled_from([2, 6, 20, 20]),
        queue_mb=st.just(1),
        ages_after_s=st.sampled_from([5.0, 50.0]),
        step_share_min=st.sampled_from([0.0, 0.3]),
        target_wait_s=st.sampled_from([None, 2.0]),
    )


@st.composite
def lane_lists(draw):
    """Two to four lanes in some order, d always the lowest: it takes in the answers of those that go."""
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    return [draw(settings_of(name)) for name in [*names, "d"]]


class Admissions(RuleBasedStateMachine):
    """Draws events; `World` passes them on and checks what is said."""

    @initialize(lanes=lane_lists(), model=MODELS, budget=BUDGETS, slots=SLOTS)
    def open(self, lanes, model, budget, slots):
        self.world = World(lanes)
        self.world.worker_comes(model, budget, slots)

    def draw_live(self, data, *standings):
        return data.draw(st.sampled_from(self.world.of(*standings)))

    # --- clients ------------------------------------------------------------------------------------------

    @rule(
        lane=LANES,
        key=st.sampled_from(sorted(KEYS)),
        sizes=st.lists(SIZES, min_size=1, max_size=3),
        deadline_s=st.sampled_from([0.5, 5.0, 30.0, 1e4]),
    )
    def arrive(self, lane, key, sizes, deadline_s):
        self.world.arrive(lane, key, KEYS[key], sizes, deadline_s)
        self.world.decide()

    @rule(
        lane=LANES,
        asks=st.sampled_from(["same", "alike"]),
        size=SIZES,
        deadline_s=st.sampled_from([5.0, 1e4]),
    )
    def ask_what_others_ask(self, lane, asks, size, deadline_s):
        self.world.arrive(lane, "", 1.0, [size], deadline_s, asks)
        self.world.decide()

    @rule(lane=LANES, count=st.integers(1, 8), size=SIZES)
    def flood(self, lane, count, size):
        for _ in range(count):
            self.world.arrive(lane, "", 1.0, [size], 1e4)
        self.world.decide()

    @rule(count=st.integers(2, 6), steps=st.integers(20, 70))
    def crowd_the_lowest_lane(self, count, steps):
        """Let so many long ones start as may, and run on what they overcommitted."""
        for _ in range(count):
            self.world.arrive("d", "", 1.0, [(5, 120)], 1e4)
        self.world.decide()
        self.step(steps, 0.02)

    @rule(lane=LANES, key=st.sampled_from(sorted(KEYS)), answers=st.integers(1, 5))
    def announce(self, lane, key, answers):
        self.world.announce(lane, key, answers)

    @precondition(lambda self: self.world.announcements)
    @rule()
    def measure(self):
        self.world.core.measured(self.world.announcements.pop(0))

    @precondition(lambda self: self.world.live)
    @rule(data=st.data())
    def leave(self, data):
        self.world.end(self.draw_live(data, "queued", "suspect", "running", "parking"), completed=False)
        self.world.decide()

    @precondition(lambda self: self.world.of("running"))
    @rule(data=st.data())
    def stop_early(self, data):
        each = self.draw_live(data, "running")
        tried = self.world.core.state.trials.on_trial
        self.world.end(each, completed=True)
        if tried is not None and tried.name == each.name:
            self.world.check_verdict(tried)
        self.world.decide()

    # --- the worker ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.worker is None)
    @rule(model=MODELS, budget=BUDGETS, slots=SLOTS)
    def get_a_worker(self, model, budget, slots):
        self.world.worker_comes(model, budget, slots)
        self.world.decide()

    @precondition(lambda self: self.world.worker is not None)
    @rule(back=st.booleans(), delay_s=st.sampled_from([0.0, 30.0]))
    def lose_the_worker(self, back, delay_s):
        worker = self.world.worker
        self.world.worker_dies()
        self.world.core.state.restarts.delayed(self.world.now + delay_s)
        self.world.decide()
        if back:
            self.world.worker_comes(*worker)
            self.world.decide()

    @precondition(lambda self: self.world.of("running", "parking"))
    @rule(data=st.data(), most=st.integers(1, 4), back=st.booleans())
    def die_of_some(self, data, most, back):
        worker, rows = self.world.worker, self.world.of("running", "parking")
        blamed = data.draw(st.lists(st.sampled_from(rows), min_size=1, max_size=most, unique_by=id))
        self.world.worker_dies(blamed)
        self.world.decide()
        if back:
            self.world.worker_comes(*worker)
            self.world.decide()

    @rule(rung=st.integers(0, 3), one_at_a_time=st.sampled_from([False, False, True]))
    def caution(self, rung, one_at_a_time):
        self.world.caution(rung, one_at_a_time)
        self.world.decide()

    @precondition(lambda self: self.world.worker is not None)
    @rule(share=st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0, 2.0]))
    def squeeze(self, share):
        self.world.squeeze(int(share * self.world.worker[1]))
        self.world.decide()

    @rule(held=st.booleans())
    def hold(self, held):
        self.world.core.held = held
        self.world.decide()

    @precondition(lambda self: self.world.of("running", "parking"))
    @rule(count=st.integers(1, 50), seconds=st.sampled_from([0.0, 0.02, 0.2]))
    def step(self, count, seconds):
        for _ in range(count):
            self.world.now += seconds
            self.world.step()
            self.world.decide()
            self.rows_have_what_they_use()

    @precondition(lambda self: self.world.of("running"))
    @rule(data=st.data(), tokens=st.integers(1, 40))
    def prefill(self, data, tokens):
        self.world.prefill(self.draw_live(data, "running").name, tokens)
        self.world.decide()

    @precondition(lambda self: self.world.of("running"))
    @rule(data=st.data())
    def lose_one_row(self, data):
        each = self.draw_live(data, "running")
        self.world.core.interrupted([each.name], self.world.now)
        each.standing = self.world.queued_as(each)
        self.world.decide()

    @precondition(lambda self: self.world.of("parking"))
    @rule(data=st.data())
    def settle_a_park(self, data):
        """By the worker's word; or by the dispatcher, where the park or its answer was lost on the wire."""
        self.world.park_done(self.draw_live(data, "parking"))
        self.world.decide()

    # --- the operator, and time ---------------------------------------------------------------------------

    @rule(lanes=lane_lists())
    def reconfigure(self, lanes):
        self.world.reconfigure(lanes)
        self.world.decide()

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0, 6.0, 61.0, 130.0]))
    def wait(self, seconds):
        self.world.now += seconds
        self.world.decide()

    def nothing_is_left(self):
        state = self.world.core.state
        assert (state.answers, state.lane_of, self.world.core.queued, self.world.core.running) == (
            {},
            {},
            0,
            0,
        )
        assert self.world.core.reserved_bytes == 0
        for each in state.lanes:
            assert (each.announced, each.announced_by_key) == (0, {})
            assert (each.running, each.parking, each.queued()) == ({}, {}, [])
            assert (each._waiting, each.fresh) == ({}, 0)
            assert (each.queued_tokens, each.backlogged_since) == (0, None)
            assert each.counters.active() == ()
            assert set(each.counters._ms) <= set(KEYS)

    # --- what holds after each ----------------------------------------------------------------------------

    @invariant()
    def everybody_is_in_exactly_one_place(self):
        state = self.world.core.state
        assert set(state.answers) == set(state.lane_of) == set(self.world.live)
        queued = [answer.name for each in state.lanes for answer in each.queued()]
        running = [name for each in state.lanes for name in each.running]
        assert sorted(queued) == sorted(each.name for each in self.world.of("queued"))
        assert set(state.trials.waiting) == {each.name for each in self.world.of("suspect")}
        assert not set(queued) & set(state.trials.waiting)
        tried = state.trials.on_trial
        assert tried is None or tried.name in {*running, *state.trials.waiting}, "a trial of nobody"
        parking = [name for each in state.lanes for name in each.parking]
        assert sorted(running) == sorted(each.name for each in self.world.of("running"))
        assert sorted(parking) == sorted(each.name for each in self.world.of("parking"))
        for each in self.world.live.values():
            assert state.lane_of[each.name].settings.name == each.lane
            assert state.answers[each.name].parks == each.parks
            assert state.answers[each.name].emitted == each.emitted

    @invariant()
    def bytes_and_slots_hold_what_runs_and_are_free_when_idle(self):
        state, world = self.world.core.state, self.world
        if world.worker is None:
            assert world.core.reserved_bytes == 0
            return
        assert state.ledger.rows == len(world.rows()) <= world.worker[2]
        assert (state.ledger.budget_bytes, state.ledger.slots) == (world.budget, world.slots)
        price = world.price([tokens for tokens, _ in world.rows()])
        assert world.core.reserved_bytes == price <= world.worker[1]

    @invariant()
    def rows_have_what_they_use(self):
        for each in self.world.of("running"):
            reserved = self.world.core.state.ledger.tokens_of(each.name)
            assert each.prompt + each.emitted <= reserved <= each.prompt + each.most

    @invariant()
    def who_is_on_trial_runs_alone(self):
        tried = self.world.on_trial
        if tried is not None and tried.standing == "running":
            assert self.world.of("running", "parking") == [tried]

    @invariant()
    def nobody_waits_longer_than_it_may(self):
        for each in self.world.of("queued", "suspect"):
            assert each.request.started or self.world.now < each.request.deadline_at

    @invariant()
    def whoever_could_start_has_started(self):
        world = self.world
        if world.worker is None or world.core.held:
            return
        if world.on_trial is not None:
            assert world.of("running", "parking"), "a trial of nobody"
            return
        rows, waiting = world.rows(), world.of("queued", "suspect")
        if not world.of("running", "parking"):
            assert all(map(world.waits_for_memory, waiting)), "an empty worker, and somebody waits"
        for each in world.of("queued"):
            assert not world.fits(each, rows) or self.is_held(each, rows), f"{each.name} could start"

    def is_held(self, each, rows):
        """Whether a rule holds back one that fits: what an older or higher one needs is kept for it."""
        if self.world.leaves_the_last_row(each) or self.is_held_by_a_long_aged(rows):
            return True
        return any(
            self.is_held_by_the_first_of(rank, each, rows)
            for rank in range(self.world.rank(each.lane) + 1)
            if self.world.queued_in(rank) and self.world.first_in(rank) is not None
        )

    def is_held_by_a_long_aged(self, rows):
        world = self.world
        return any(
            world.eldest_waits_s(rank) >= 2 * world.lanes[rank].ages_after_s
            and world.first_in(rank) is not None
            and not any(world.fits(other, rows, kept=False) for other in world.queued_in(rank))
            for rank in range(1, len(world.lanes))
        )

    def is_held_by_the_first_of(self, rank, each, rows):
        world, first = self.world, self.world.first_in(rank)
        if world.fits(first, rows):
            return False
        if first is not each and world.waits_s(first) >= world.lanes[rank].ages_after_s:
            return True
        soon = [
            row.name for row in world.of("running") if world.rank(row.lane) > rank and world.may_park(row)
        ]
        return world.rank(each.lane) > rank and world.fits(first, world.rows(without=soon))

    @invariant()
    def counters_are_numbers(self):
        state = self.world.core.state
        assert math.isfinite(state.house_ms)
        for each in state.lanes:
            assert all(math.isfinite(each.counters.of(key)) for key in KEYS)
            assert set(each.counters.active()) == {
                answer.key for name, answer in state.answers.items() if state.lane_of[name] is each
            }
            assert each.queued_tokens >= 0
            assert math.isfinite(each.waits_s(self.world.now))

    # --- the end ------------------------------------------------------------------------------------------

    def teardown(self):
        """Once the load is gone nothing is left of it, and a minute later a small request starts at once."""
        if not hasattr(self, "world"):
            return
        world = self.world
        self.everybody_leaves()
        if world.worker is None:
            world.worker_comes(facts(), 1 << 20, 1)
        world.core.held = False
        world.squeeze(world.worker[1])
        world.now += 60.0
        world.decide()
        for each in world.lanes:
            world.announce(each.name, "light", 1)
            assert world.announcements, "an idle gateway refuses to measure"
            world.core.measured(world.announcements.pop())
            world.arrive(each.name, "light", 1.0, [(10, 10)], 5.0)
            world.decide()
            assert [live.standing for live in world.live.values()] == ["running"], "an idle gateway refuses"
            self.everybody_leaves()

    def everybody_leaves(self):
        for each in list(self.world.live.values()):
            self.world.end(each, completed=False)
        while self.world.announcements:
            self.measure()
        self.nothing_is_left()


TestAdmissions = Admissions.TestCase
# Shrinking would take minutes: a failing example is printed as it was found.
TestAdmissions.settings = settings(
    max_examples=50,
    stateful_step_count=50,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
