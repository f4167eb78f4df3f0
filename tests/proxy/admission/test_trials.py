"""Suspects: who is one, when each runs alone, and that nothing gets stuck."""

from proxy.admission.trials import TRIAL_WAIT_S
from tests.proxy.admission.small_core import HIGH, LOW, Desk
from tests.proxy.admission.small_trials import PARKABLE, at_work, die, kill, suspects

# --- who goes when ------------------------------------------------------------------------------------------


def test_those_in_the_step_wait_and_the_others_go_on_at_once():
    desk = at_work("a", "b", "c")
    assert die(desk, a=0) is None
    assert suspects(desk) == ["a"]
    assert desk.starts() == ["b", "c"]


def test_newcomers_go_before_a_trial_until_it_is_due():
    desk = at_work("a", "b")
    die(desk, a=0)
    desk.arrive("n")
    assert desk.starts() == ["b", "n"]
    assert desk.decide(at=TRIAL_WAIT_S - 0.1) == []
    assert desk.decide(at=TRIAL_WAIT_S) == ["park b", "park n"]


def test_a_trial_is_due_a_while_after_a_worker_came_not_after_the_death():
    desk = at_work("a", "b")
    kill(desk, a=0)
    desk.now = 60.0
    desk.worker()
    assert desk.starts() == ["b"]
    assert desk.decide(at=60.0 + TRIAL_WAIT_S - 0.1) == []
    assert desk.decide(at=60.0 + TRIAL_WAIT_S) == ["park b"]


def test_a_trial_begins_once_nothing_else_runs():
    desk = at_work("a", "b")
    die(desk, a=0)
    assert desk.starts() == ["b"]
    desk.end("b")
    assert desk.starts() == ["a"]


def test_what_is_parked_must_have_gone_before_the_trial_begins():
    """A step of it may be under way still, and would be named beside the one on trial."""
    desk = at_work("a", "b", "c")
    die(desk, a=0)
    desk.decide()
    assert desk.decide(at=5.0) == ["park b", "park c"]
    desk.parked("b")
    assert desk.decide() == []
    desk.parked("c")
    assert desk.starts() == ["a"]


def test_a_row_that_is_being_parked_for_others_is_waited_for_too():
    desk = Desk(HIGH, PARKABLE)
    desk.worker(slots=1)
    desk.arrive("s", "l", lane="low", max_tokens=100)
    assert desk.starts() == ["s"]
    die(desk, s=0)
    assert desk.starts() == ["l"]
    desk.core.squeezed(0)
    assert desk.decide() == ["park l"]
    desk.core.squeezed(1 << 20)
    assert desk.decide() == []
    desk.parked("l")
    assert desk.starts() == ["l"], "it isn't the suspect's turn yet"


def test_parking_for_a_trial_asks_no_lane_and_is_not_counted():
    desk = Desk(HIGH, LOW)
    desk.worker()
    desk.arrive("a", "b", max_tokens=100)
    desk.decide()
    die(desk, a=0)
    desk.decide()
    assert desk.decide(at=5.0) == ["park b"]
    assert desk.state.answers["b"].parks == 0


def test_nothing_else_starts_during_a_trial():
    desk = at_work("a")
    die(desk, a=10)
    assert desk.starts() == ["a"]
    desk.arrive("n")
    desk.step("a")
    assert desk.decide(at=15.0) == []


def test_trials_go_on_back_to_back_till_no_suspect_is_left():
    desk = at_work("a", "b", "c")
    die(desk, a=0, b=0)
    assert desk.starts() == ["c"]
    assert desk.decide(at=5.0) == ["park c"]
    desk.parked("c")
    assert desk.starts() == ["a"]
    desk.steps(2, "a")
    assert desk.decide() == ["park a"]
    desk.parked("a")
    assert desk.starts() == ["b"]
    desk.steps(2, "b")
    assert desk.starts() == ["a", "c"]


def test_those_that_ran_are_tried_before_those_that_never_did():
    desk = at_work("a")
    desk.arrive("z", fingerprint="what a asks")
    die(desk, a=0)
    desk.arrive("y", fingerprint="what a asks")
    assert list(desk.state.trials.in_order()) == [desk.state.answers[name] for name in "azy"]
    assert desk.starts() == ["a"]


def test_a_suspect_reserves_all_that_it_may_take():
    desk = Desk(HIGH, PARKABLE)
    desk.worker()
    desk.arrive("l", lane="low", prompt_tokens=5, max_tokens=1000)
    desk.decide()
    assert desk.reserved("l") < 1005
    die(desk, l=0)
    desk.decide()
    assert desk.reserved("l") == 1005


# --- nothing gets stuck -------------------------------------------------------------------------------------


def test_a_trial_whose_row_got_lost_on_the_wire_is_begun_again():
    desk = at_work("a")
    die(desk, a=0)
    desk.starts()
    desk.core.interrupted(["a"], desk.now)
    assert suspects(desk) == ["a"]
    assert desk.starts() == ["a"]
    assert die(desk, a=0) == "what a asks"


def test_others_go_first_again_when_a_trial_was_broken_off():
    desk = at_work("a")
    die(desk, a=0)
    assert desk.starts() == ["a"]
    desk.arrive("n")
    assert desk.decide() == []
    desk.core.interrupted(["a"], desk.now)
    assert desk.starts() == ["n"]
    assert desk.decide(at=TRIAL_WAIT_S) == ["park n"]


def test_a_suspect_that_is_parked_for_want_of_memory_lets_the_others_go_on():
    desk = Desk(HIGH, PARKABLE)
    desk.worker(slots=2)
    desk.arrive("l", lane="low", prompt_tokens=50, max_tokens=100)
    desk.decide()
    die(desk, l=0)
    desk.decide()
    desk.core.squeezed(40)
    desk.arrive("n", prompt_tokens=5, max_tokens=5)
    assert desk.decide() == ["park l", "start n"]
    desk.parked("l")
    assert desk.decide(at=60.0) == []
    desk.end("n")
    assert desk.decide() == []
    desk.core.squeezed(1 << 20)
    assert desk.starts() == ["l"]


def test_a_suspect_that_does_not_fit_now_is_passed_by_other_suspects_and_by_newcomers():
    desk = Desk(HIGH, LOW)
    desk.worker()
    desk.arrive("big", max_tokens=200)
    desk.arrive("little", max_tokens=10)
    desk.decide()
    die(desk, big=0, little=0)
    desk.core.squeezed(100)
    assert desk.starts() == ["little"]
    desk.arrive("n")
    desk.steps(2, "little")
    assert desk.starts() == ["n"]
    desk.end("little", "n")
    assert desk.decide(at=60.0) == []
    desk.core.squeezed(1 << 20)
    assert desk.starts() == ["big"]


def test_memory_that_falls_short_while_others_are_parked_for_a_trial_calls_it_off():
    desk = at_work("a", "b")
    die(desk, a=0)
    desk.decide()
    assert desk.decide(at=5.0) == ["park b"]
    desk.core.squeezed(60)
    desk.arrive("n")
    assert desk.starts() == ["n"]
    assert desk.state.trials.on_trial is None
    assert desk.decide() == []


def test_a_suspect_that_leaves_while_others_are_parked_for_it_lets_them_go_on():
    desk = at_work("a", "b")
    die(desk, a=0)
    desk.decide()
    assert desk.decide(at=5.0) == ["park b"]
    desk.end("a", completed=False)
    desk.parked("b")
    assert desk.starts() == ["b"]


def test_a_suspect_that_ends_before_its_trial_is_not_cleared():
    """Its text came to a stop; it hasn't been past the place of death."""
    desk = at_work("a", "b")
    die(desk, a=0)
    desk.decide()
    desk.decide(at=5.0)
    desk.end("a", completed=True)
    desk.arrive("again", fingerprint="what a asks")
    assert suspects(desk) == ["again"]


def test_a_worker_that_is_killed_in_a_trial_leaves_the_suspect_to_be_tried_again():
    desk = at_work("a", "b")
    die(desk, a=0)
    desk.decide()
    desk.decide(at=5.0)
    desk.parked("b")
    assert desk.starts() == ["a"]
    desk.death()
    desk.worker()
    assert desk.starts() == ["b"]
    desk.end("b")
    assert desk.starts() == ["a"]


def test_while_all_is_held_no_trial_begins():
    desk = at_work("a")
    die(desk, a=0)
    desk.core.held = True
    assert desk.decide(at=60.0) == []
    desk.core.held = False
    assert desk.starts() == ["a"]


def test_suspects_of_a_lane_that_is_gone_are_tried_in_the_lowest():
    desk = Desk(HIGH, PARKABLE)
    desk.worker()
    desk.arrive("a", "b", max_tokens=50)
    desk.decide()
    die(desk, a=0, b=0)
    assert desk.starts() == ["a"]
    desk.arrive("late", fingerprint="what b asks")
    desk.core.reconfigured([PARKABLE], desk.shared)
    assert desk.lane("low").fresh == 1
    desk.end("late", completed=False)
    assert desk.lane("low").fresh == 0
    desk.steps(2, "a")
    assert desk.decide() == ["park a"]
    desk.parked("a")
    assert desk.starts() == ["b"]
    desk.steps(2, "b")
    assert desk.starts() == ["a"]
    desk.end("a", "b")
    assert (desk.core.queued, desk.core.running, desk.core.reserved_bytes) == (0, 0, 0)


def test_a_suspect_whose_deadline_passes_is_refused():
    desk = at_work("a", "b")
    die(desk, a=0)
    desk.decide()
    desk.arrive("n", fingerprint="what a asks", deadline_s=2.0)
    assert desk.decide(at=2.0) == ["refuse n: queue_timeout"]
    assert suspects(desk) == ["a"]


def test_suspects_that_wait_count_among_those_that_wait():
    desk = at_work("a", "b")
    kill(desk, a=0)
    assert desk.core.queued == 2
    desk.end("a", completed=False)
    desk.end("b", completed=False)
    assert desk.core.queued == 0


def test_a_trial_that_takes_long_is_adjourned_while_others_wait_and_goes_on_later():
    """A request whose place is thousands of tokens away would else have the worker to itself for minutes."""
    desk = at_work("a")
    die(desk, a=50)
    desk.decide(at=5.0)
    desk.decide()
    assert desk.state.trials.on_trial is not None
    desk.arrive("other")
    assert desk.decide(at=24.9) == []
    assert desk.decide(at=26.0) == [], "its prefill isn't broken off"
    desk.step("a")
    assert desk.decide(at=26.0) == ["park a"]
    desk.core.parked("a", desk.now)
    assert desk.decide() == ["start other"]
    assert desk.decide(at=45.0) == []
    assert desk.decide(at=46.1) == ["park other"]
    desk.core.parked("other", desk.now)
    assert desk.decide() == ["start a"]


def test_a_long_trial_goes_on_while_nobody_else_waits():
    desk = at_work("a")
    die(desk, a=50)
    desk.decide(at=5.0)
    desk.step("a")
    assert desk.decide(at=60.0) == []
