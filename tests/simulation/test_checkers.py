"""The checkers can fail: each bug that is planted in the deciders is found."""

import pytest

from proxy.admission import core, gate, instructions, lane, last_row, ledger, order
from proxy.admission.ledger import NO_RESERVE
from tests.simulation.costs import Costs
from tests.simulation.scenarios import LANES, endless, flooded, keys, overload
from tests.simulation.small_worlds import small_world
from worker import scheduler


def forget_to_release(monkeypatch):
    monkeypatch.setattr(ledger.Ledger, "release", lambda self, name: None)


def never_look_at_bytes(monkeypatch):
    monkeypatch.setattr(ledger.Ledger, "affords", lambda self, *_: True)


def never_grow(monkeypatch):
    monkeypatch.setattr(core.parking, "for_growth", lambda state, now: [])


def park_for_ever(monkeypatch):
    monkeypatch.setattr(lane.Lane, "may_park", lambda self, row: True)


def ignore_deadlines(monkeypatch):
    monkeypatch.setattr(core.Admission, "_refuse_late", lambda self, now: [])


def start_from_below(monkeypatch):
    by_rank = order._next_by_rank

    def from_below(state, now):
        for each in reversed(state.lanes):
            head = next(each.candidates(now), None)
            if head is not None and state.ledger.fits(state.tokens_for(head), NO_RESERVE):
                return head, each
        return by_rank(state, now)

    monkeypatch.setattr(order, "_next_by_rank", from_below)


def start_into_the_reserve(monkeypatch):
    monkeypatch.setattr(ledger.Ledger, "usable_slots", lambda self, reserve: self.slots)


def start_before_the_park_is_said(monkeypatch):
    decide = core.Admission.decide

    def parks_last(self, now):
        return sorted(decide(self, now), key=lambda said: isinstance(said, instructions.Park))

    monkeypatch.setattr(core.Admission, "decide", parks_last)


def hold_the_row_until_the_park_is_done(monkeypatch):
    park, parked = core.Admission._park, core.Admission.parked

    def holding(self, answer):
        tokens = self.state.ledger.tokens_of(answer.name)
        said = park(self, answer)
        self.state.ledger.reserve(answer.name, tokens)
        return said

    def releasing(self, name, now):
        self.state.ledger.release(name)
        parked(self, name, now)

    monkeypatch.setattr(core.Admission, "_park", holding)
    monkeypatch.setattr(core.Admission, "parked", releasing)


def start_one_row_only(monkeypatch):
    fits = ledger.Ledger.fits
    monkeypatch.setattr(ledger.Ledger, "fits", lambda self, *rest: not self.rows and fits(self, *rest))


def let_the_queue_grow(monkeypatch):
    monkeypatch.setattr(gate.Gate, "_check_places", lambda self, *_: None)


def let_a_key_fill_the_queue(monkeypatch):
    monkeypatch.setattr(gate.Gate, "_check_key", lambda self, *_: None)


def lose_a_token(monkeypatch):
    settle = scheduler.Scheduler._settle_one

    def losing(self, sequence, token):
        outcomes = list(settle(self, sequence, token))
        return outcomes[1:] if sequence.settled == 3 else outcomes

    monkeypatch.setattr(scheduler.Scheduler, "_settle_one", losing)


TIGHT = Costs(budget_tokens=30_000)
UNPARKABLE = tuple(each.model_copy(update={"reserved_slots": 0, "parkable": False}) for each in LANES)
BUGS = [
    (forget_to_release, lambda: small_world(3, 20.0)),
    (never_look_at_bytes, lambda: flooded(1, 100.0, costs=TIGHT)),
    (never_grow, lambda: flooded(1, 200.0, a_second=0.01)),
    (park_for_ever, lambda: flooded(1, 400.0)),
    (ignore_deadlines, lambda: overload(1, 60.0, 28.0)),
    (start_from_below, lambda: flooded(1, 60.0, a_second=3.0, lanes=UNPARKABLE)),
    (start_into_the_reserve, lambda: flooded(1, 100.0)),
    (start_before_the_park_is_said, lambda: flooded(1, 100.0)),
    (hold_the_row_until_the_park_is_done, lambda: flooded(1, 100.0)),
    (start_one_row_only, lambda: flooded(1, 60.0)),
    (let_the_queue_grow, lambda: keys(1, 5.0, {"": 300})),
    (let_a_key_fill_the_queue, lambda: keys(1, 20.0, {"greedy": 80})),
    (lose_a_token, lambda: flooded(1, 60.0)),
]


@pytest.mark.parametrize(("plant", "run"), BUGS, ids=[plant.__name__ for plant, _ in BUGS])
def test_a_planted_bug_is_found(monkeypatch, plant, run):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        run()


def test_a_queue_without_turns_is_seen_in_what_keys_get(monkeypatch):
    def oldest_first(self, now):
        return iter(sorted(self.queued(), key=lambda answer: answer.number))

    monkeypatch.setattr(lane.Lane, "candidates", oldest_first)
    monkeypatch.setattr(last_row, "must_be_left", lambda *_: False)
    assert keys(1, 120.0, {"few": 4, "many": 28}).jain() < 0.9


def test_without_ageing_an_endless_load_starves_the_lane_below(monkeypatch):
    monkeypatch.setattr(order, "_is_due", lambda state, lane, now: False)
    assert endless(1, 300.0, 16).batch_starts == 0
