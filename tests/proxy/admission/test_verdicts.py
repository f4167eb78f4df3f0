"""Suspects: what clears one, what convicts one, and what does neither."""

import pytest

from tests.proxy.admission.small_trials import at_work, die, kill, suspects


@pytest.mark.parametrize("index", [0, 7])
def test_a_suspect_is_cleared_two_tokens_past_the_place_of_death(index):
    desk = at_work("a", "b")
    desk.steps(index, "a", "b")
    die(desk, a=index, b=index)
    assert desk.starts() == ["a"]
    desk.step("a")
    assert desk.decide() == []
    desk.step("a")
    assert desk.decide() == ["park a"]
    assert desk.state.trials.on_trial is desk.state.answers["b"]


def test_a_suspect_that_ends_by_itself_is_cleared():
    desk = at_work("a")
    die(desk, a=50)
    desk.starts()
    desk.end("a")
    desk.arrive("again", "n", fingerprint="what a asks")
    assert desk.starts() == ["again", "n"]


def test_one_whose_client_leaves_is_not():
    desk = at_work("a")
    die(desk, a=50)
    desk.starts()
    desk.end("a", completed=False)
    desk.arrive("again", "n", fingerprint="what a asks")
    assert desk.starts() == ["again"]


def test_those_alike_are_cleared_with_it():
    desk = at_work("a", "b", fingerprint="same")
    desk.arrive("c", fingerprint="same")
    desk.decide()
    die(desk, a=0, b=0)
    assert suspects(desk) == ["a", "b", "c"]
    desk.starts()
    desk.steps(2, "a")
    assert desk.starts() == ["b", "c"]
    assert suspects(desk) == []


def test_the_furthest_place_of_those_alike_must_be_passed():
    desk = at_work("a", "b", fingerprint="same")
    desk.steps(5, "b")
    die(desk, b=5, a=0)
    desk.starts()
    desk.steps(6, "a")
    assert desk.decide() == []
    desk.step("a")
    assert desk.starts() == ["b"]


def test_who_kills_the_worker_on_trial_is_guilty():
    desk = at_work("a", "b")
    assert die(desk, a=3, b=3) is None
    assert desk.starts() == ["a"]
    assert die(desk, a=3) == "what a asks"


def test_who_kills_it_in_another_place_on_trial_is_guilty_too():
    desk = at_work("a", "b")
    die(desk, a=3, b=3)
    desk.starts()
    assert die(desk, a=1) == "what a asks"


def test_nobody_is_guilty_of_a_step_in_which_others_ran():
    """A park or a cancel was lost: then the trial was none."""
    desk = at_work("a", "b")
    die(desk, a=0)
    desk.decide()
    desk.end("b", completed=False)
    assert desk.starts() == ["a"]
    assert die(desk, a=0, b=0, left={"b": "what b asks"}) is None
    desk.arrive("b2", fingerprint="what b asks")
    assert suspects(desk) == ["a", "b2"]
    assert desk.starts() == ["a"]
    assert die(desk, a=0) == "what a asks"


def test_nor_of_one_in_which_somebody_unknown_ran():
    desk = at_work("a")
    die(desk, a=0)
    desk.starts()
    assert die(desk, alone=False, a=0) is None
    assert suspects(desk) == ["a"]


def test_who_passed_its_trial_and_is_there_in_a_later_death_is_a_suspect_again_and_no_more():
    desk = at_work("a")
    die(desk, a=0)
    desk.starts()
    desk.steps(2, "a")
    assert die(desk, a=2) is None
    assert suspects(desk) == ["a"]


def test_a_death_that_names_nobody_leaves_everything_as_it_was():
    desk = at_work("a")
    die(desk, a=0)
    desk.starts()
    assert die(desk) is None
    assert suspects(desk) == ["a"]
    assert desk.starts() == ["a"]


def test_a_client_that_leaves_a_trial_does_not_save_what_it_asked_for():
    """A hang is found out seconds later; an impatient client has gone by then."""
    desk = at_work("a")
    die(desk, a=0)
    desk.starts()
    desk.end("a", completed=False)
    assert kill(desk, a=0, left={"a": "what a asks"}) == "what a asks"


def test_nor_does_a_trial_of_another_that_began_meanwhile():
    """The worker hadn't heard that the first was cancelled."""
    desk = at_work("a", "b")
    die(desk, a=0, b=0)
    assert desk.starts() == ["a"]
    desk.end("a", completed=False)
    assert desk.starts() == ["b"]
    assert kill(desk, a=0, left={"a": "what a asks"}) == "what a asks"


def test_who_was_cleared_and_is_suspected_again_is_not_guilty_before_another_trial():
    desk = at_work("a", "b")
    die(desk, a=0)
    desk.decide()
    desk.end("b")
    assert desk.starts() == ["a"]
    desk.steps(2, "a")
    assert die(desk, a=2) is None
    assert kill(desk, a=2) is None


def test_a_trial_that_the_worker_forgot_and_died_of_counts_all_the_same():
    """It said Hello before it heard the Submit."""
    desk = at_work("a")
    die(desk, a=0)
    assert desk.starts() == ["a"]
    desk.death()
    desk.worker()
    assert kill(desk, a=0) == "what a asks"


def test_suspicion_stays_when_the_client_has_left_and_asks_anew():
    desk = at_work("a")
    desk.end("a", completed=False)
    die(desk, a=0, left={"a": "what a asks"})
    desk.arrive("n", "a2", fingerprint="what a asks")
    assert suspects(desk) == ["n", "a2"]


def test_suspicion_is_forgotten_after_an_hour():
    desk = at_work("a")
    desk.end("a", completed=False)
    die(desk, a=0, left={"a": "what a asks"})
    desk.now = 3599.0
    desk.arrive("b", fingerprint="what a asks")
    assert suspects(desk) == ["b"]
    desk.now = 3600.0
    desk.arrive("c", fingerprint="what a asks")
    assert suspects(desk) == ["b"]


def test_no_more_than_a_thousand_suspicions_are_kept():
    desk = at_work()
    desk.death()
    many = {f"left{number}": 0 for number in range(1025)}
    desk.core.died(many, 0.0, left={name: name for name in many})
    trials = desk.state.trials
    assert not trials.suspects(answer_asking(desk, "left0"), 0.0)
    assert trials.suspects(answer_asking(desk, "left1"), 0.0)


def answer_asking(desk, fingerprint):
    desk.arrive(f"asks {fingerprint}", fingerprint=fingerprint)
    return desk.state.answers[f"asks {fingerprint}"]


def test_one_that_an_alike_cleared_is_not_guilty_for_its_own_trial_before():
    desk = at_work("a", "b", fingerprint="same")
    die(desk, a=0, b=0)
    assert desk.starts() == ["a"]
    desk.end("a", completed=False)
    assert desk.starts() == ["b"]
    desk.steps(2, "b")
    assert kill(desk, a=0, left={"a": "same"}) is None


def test_nobody_is_cleared_before_its_trial_has_begun_however_far_it_is():
    desk = at_work("a", "b")
    desk.steps(10, "a", "b")
    die(desk, a=3)
    assert desk.starts() == ["b"]
    assert desk.decide(at=5.0) == ["park b"]
    desk.step("b")
    assert suspects(desk) == ["a"]
    desk.parked("b")
    assert desk.starts() == ["a"]
    desk.step("a")
    assert desk.starts() == ["b"]
