"""An admission core with a clock moved by hand, lanes without surprises, and words for what it says."""

from proxy.admission.charging import Share
from proxy.admission.core import Admission
from proxy.admission.instructions import Park, Start
from proxy.admission.outlook import estimated_wait_s
from shared.lane_settings import AdmissionSettings, LaneSettings
from tests.proxy.small_worlds import facts, newcomer


def lane(name, **changes):
    """Return a lane that keeps nothing, waits for ever, never ages and whose rows can't be parked."""
    plain = {
        "deadline_s": 1e4,
        "target_wait_s": None,
        "ages_after_s": 1e4,
        "step_share_min": 0.0,
        "reserved_slots": 0,
        "reserved_mb": 0,
        "parkable": False,
    }
    return LaneSettings(name=name, **{**plain, **changes})


HIGH = lane("high")
LOW = lane("low")


def patient(name, **changes):
    """Return a newcomer that waits for hours."""
    return newcomer(name, **{"deadline_s": 1e4, **changes})


class Desk:
    """A core at its desk. What it says comes as words: "start a", "park b", "refuse c: queue_timeout"."""

    def __init__(self, *lanes, key_queue_share=1.0, overload_after_s=10.0):
        self.lanes = lanes or (HIGH, LOW)
        self.shared = AdmissionSettings(key_queue_share=key_queue_share, overload_after_s=overload_after_s)
        self.core = Admission(self.lanes, self.shared)
        self.now = 0.0
        self.refusals = {}

    @property
    def state(self):
        return self.core.state

    def lane(self, name):
        return self.state.lane_named(name)

    def worker(self, budget=1 << 20, slots=4, **changes):
        self.core.worker_came(facts(**changes), budget, slots, self.now)

    def death(self):
        """Let the worker die; what ran is put back. Returns who ran."""
        self.core.worker_went(self.now)
        ran = [name for each in self.state.lanes for name in (*each.running, *each.parking)]
        self.core.interrupted(ran, self.now)
        return ran

    def arrive(self, *names, lane="high", **changes):
        """Let answers arrive, each a request of its own; by default they wait for ever."""
        for name in names:
            self.core.arrived(lane, [patient(name, **changes)], self.now)

    def arrive_together(self, *names, lane="high", **changes):
        """Let the answers of one request arrive."""
        self.core.arrived(lane, [patient(name, **changes) for name in names], self.now)

    def wait_s(self, lane="high", **changes):
        """Return how long a newcomer is expected to wait."""
        return estimated_wait_s(self.state, self.lane(lane), patient("?", **changes), 0, self.now)

    def announce(self, answers=1, lane="high", key="", deadline_s=1e4):
        return self.core.announced(lane, key, answers, deadline_s, self.now)

    def decide(self, at=None):
        self.now = self.now if at is None else at
        return [self._word(each) for each in self.core.decide(self.now)]

    def _word(self, instruction):
        if isinstance(instruction, Start):
            return f"start {instruction.name}"
        if isinstance(instruction, Park):
            return f"park {instruction.name}"
        self.refusals[instruction.name] = instruction.refusal
        return f"refuse {instruction.name}: {instruction.refusal.code}"

    def starts(self, at=None):
        """Return who starts, where nothing else is said."""
        words = self.decide(at)
        assert all(word.startswith("start ") for word in words), words
        return [word.removeprefix("start ") for word in words]

    def step(self, *names, ms=10.0):
        """Give each of these rows a token, and an equal share of the step's time."""
        self.core.stepped(names, ms, ms / max(1, len(names)), [], self.now)

    def steps(self, count, *names):
        for _ in range(count):
            self.step(*names)

    def prefill(self, name, tokens, ms, cached=0):
        self.core.stepped([], 0.0, 0.0, [Share(name, tokens, ms, cached)], self.now)

    def end(self, *names, completed=True):
        for name in names:
            self.core.ended(name, completed=completed)

    def parked(self, *names):
        for name in names:
            self.core.parked(name, self.now)

    def reserved(self, name):
        """Return the tokens that are reserved for a row."""
        return self.state.ledger.tokens_of(name)
