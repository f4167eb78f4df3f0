"""Whose turn it is in a lane: keys pay for the device's time by weight, and the house for what it caused."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admission import fairness
from proxy.admission.fairness import Counters
from tests.proxy.admission.small_core import HIGH, Desk, lane


def desk_of(slots=1, *lanes):
    desk = Desk(*lanes or (HIGH,))
    desk.worker(slots=slots)
    return desk


def counter(desk, key, lane="high"):
    return desk.lane(lane).counters.of(key)


# --- turns --------------------------------------------------------------------------------------------------


def test_the_key_that_had_least_goes_next():
    desk = desk_of()
    desk.arrive("a1", "a2", key="a")
    desk.arrive("b1", "b2", key="b")
    assert desk.starts() == ["a1"]
    desk.step("a1", ms=100.0)
    desk.end("a1")
    assert desk.starts() == ["b1"]
    desk.step("b1", ms=90.0)
    desk.end("b1")
    assert desk.starts() == ["b2"]
    desk.step("b2", ms=20.0)
    desk.end("b2")
    assert desk.starts() == ["a2"]


def test_one_decision_does_not_give_every_row_to_one_key():
    """A start is charged what its prefill will cost, before the device has worked it off."""
    desk = desk_of(slots=2)
    desk.arrive("a1", "a2", key="a")
    desk.arrive("b1", key="b")
    assert desk.starts() == ["a1", "b1"]


def test_of_equal_counters_the_key_with_fewer_rows_goes_first():
    desk = desk_of(slots=2)
    desk.arrive("a1", "a2", key="a")
    desk.arrive("b1", key="b")
    assert desk.starts() == ["a1", "b1"]
    desk.end("b1", completed=False)
    desk.arrive("b2", key="b")
    desk.lane("high").counters._ms.update(a=7.0, b=7.0)
    assert desk.starts() == ["b2"]


def test_what_was_prepaid_and_not_worked_off_is_given_back():
    desk = desk_of(slots=2)
    desk.arrive("a1", "a2", key="a")
    assert desk.starts() == ["a1", "a2"]
    assert counter(desk, "a") > 0
    desk.end("a1")
    desk.core.interrupted(["a2"], 0.0)
    assert counter(desk, "a") == pytest.approx(0.0)


def test_who_leaves_in_the_middle_of_a_prefill_has_paid_for_it():
    """Or a key could have any number of prompts prefilled for nothing."""
    desk = desk_of(slots=2)
    desk.arrive("a1", "a2", key="a")
    assert desk.starts() == ["a1", "a2"]
    prepaid = counter(desk, "a")
    desk.end("a1", completed=False)
    assert counter(desk, "a") == prepaid


def test_what_was_prepaid_is_not_charged_again():
    """5 tokens of prefill at 1 ms and a step of 50 ms are prepaid; 57 ms of work are charged 57."""
    desk = desk_of()
    desk.arrive("a1", "a2", key="a")
    assert desk.starts() == ["a1"]
    assert counter(desk, "a") == pytest.approx(55.0)
    desk.prefill("a1", 4, ms=7.0)
    assert counter(desk, "a") == pytest.approx(55.0)
    desk.step("a1", ms=48.0)
    assert counter(desk, "a") == pytest.approx(55.0)
    desk.step("a1", ms=2.0)
    assert counter(desk, "a") == pytest.approx(57.0)


def test_time_is_charged_by_weight():
    desk = desk_of(slots=2)
    desk.arrive("a", key="a", weight=2.0)
    desk.arrive("b", key="b", weight=0.5)
    desk.starts()
    for name in ("a", "b"):
        desk.prefill(name, 4, ms=40.0)
    desk.steps(3, "a", "b")
    desk.step("a", "b", ms=85.0)
    assert counter(desk, "a") == pytest.approx((40 + 15 + 42.5) / 2)
    assert counter(desk, "b") == pytest.approx((40 + 15 + 42.5) * 2)


def test_the_prepaid_is_weighted_too():
    desk = desk_of()
    desk.arrive("a", key="a", weight=5.0)
    desk.starts()
    assert counter(desk, "a") == pytest.approx(11.0)


def test_a_key_of_twice_the_weight_gets_twice_the_time():
    desk = desk_of()
    served = {"a": 0, "b": 0}
    for number in range(120):
        desk.arrive(f"a{number}", key="a", weight=2.0)
        desk.arrive(f"b{number}", key="b")
    for _ in range(90):
        (name,) = desk.starts()
        served[name[0]] += 1
        desk.step(name, ms=60.0)
        desk.end(name, completed=False)
    assert served == {"a": 60, "b": 30}


# --- coming and going ---------------------------------------------------------------------------------------


def test_a_key_that_returns_is_lifted_to_the_least_of_those_that_stayed():
    desk = desk_of(slots=3)
    desk.arrive("a", key="a")
    desk.arrive("b", key="b")
    desk.starts()
    desk.step("a", ms=300.0)
    desk.step("b", ms=200.0)
    desk.arrive("new", key="new")
    assert counter(desk, "new") == counter(desk, "b") == pytest.approx(200.0)


def test_a_pause_forgives_nothing():
    desk = desk_of(slots=3)
    desk.arrive("a", key="a")
    desk.arrive("b", key="b")
    desk.starts()
    desk.step("a", ms=300.0)
    desk.end("a")
    desk.arrive("a again", key="a")
    assert counter(desk, "a") == pytest.approx(300.0)


def test_after_everybody_left_a_newcomer_owes_as_much_as_the_last():
    counters = Counters()
    counters.entered("a")
    counters.charge("a", 50.0, 1.0)
    counters.left("a")
    counters.entered("b")
    counters.entered("a")
    assert (counters.of("a"), counters.of("b")) == (50.0, 50.0)


def test_nobody_is_charged_who_has_no_answers():
    with pytest.raises(AssertionError):
        Counters().charge("a", 1.0, 1.0)


def test_counters_of_keys_that_left_are_forgotten_once_they_say_nothing():
    counters = Counters()
    counters.entered("stays")
    for number in range(10):
        counters.entered(str(number))
        counters.charge(str(number), number, 1.0)
        counters.left(str(number))
    assert len(counters._ms) == 10  # the one that stays, and nine above it
    counters.charge("stays", 100.0, 1.0)
    counters.entered("x")
    counters.left("x")
    assert set(counters._ms) == {"stays"}


def test_no_more_counters_are_kept_than_a_bound(monkeypatch):
    monkeypatch.setattr(fairness, "_KEYS_KEPT", 64)
    counters = Counters()
    counters.entered("stays")
    for number in range(200):
        counters.entered(str(number))
        counters.charge(str(number), 1.0, 1.0)
        counters.left(str(number))
    assert len(counters._ms) <= 64 + 1
    assert "199" in counters._ms
    assert counters.active() == ("stays",)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["enter", "leave", "work"])), max_size=60))
def test_the_least_of_the_active_never_falls_and_no_counter_is_lowered_by_coming_back(events):
    counters, active = Counters(), {}
    least = owed = 0.0
    for key, event in events:
        if event == "enter":
            before = counters.of(key)
            counters.entered(key)
            active[key] = active.get(key, 0) + 1
            assert counters.of(key) >= min(before, least)
        elif active.get(key):
            if event == "work":
                counters.charge(key, 3.0, 1.0)
                owed += 3.0
            else:
                counters.left(key)
                active[key] -= 1
        now_active = [each for each, answers in active.items() if answers]
        assert set(counters.active()) == set(now_active)
        if now_active:
            assert min(counters.of(each) for each in now_active) >= least
            least = min(counters.of(each) for each in now_active)
            assert math.isfinite(least)
            assert least <= owed


# --- the house ----------------------------------------------------------------------------------------------


def worked(disturb):
    """Run an answer of 6 + 80 tokens, disturbed after 70; return what its key and what the house pay."""
    desk = desk_of(1, HIGH, lane("low", parkable=True))
    desk.arrive("a", lane="low", key="a", prompt_tokens=6, max_tokens=80)
    desk.arrive("idle", lane="low", key="idle")
    assert desk.starts() == ["a"]
    desk.prefill("a", 5, ms=5.0)
    desk.steps(70, "a")
    before = desk.state.house_ms
    if disturb is not None:
        disturb(desk)
        desk.end("idle", completed=False)
        assert desk.starts() == ["a"]
        desk.prefill("a", 50, ms=55.0)
        desk.prefill("a", 25, ms=30.0)
    desk.steps(10, "a")
    charged = counter(desk, "a", "low")
    desk.end("a")
    return charged, desk.state.house_ms - before


def park(desk):
    desk.arrive("h")
    assert desk.decide() == ["park a", "start h"]
    desk.parked("a")
    desk.end("h", completed=False)


def die(desk):
    desk.death()
    desk.worker(slots=1)


@pytest.mark.parametrize("disturb", [park, die])
def test_the_house_pays_for_computing_again(disturb):
    undisturbed, nothing = worked(None)
    charged, house_ms = worked(disturb)
    assert charged == pytest.approx(undisturbed) == pytest.approx(5 + 800)
    assert nothing == pytest.approx(0)
    assert house_ms == pytest.approx(85.0)


def test_a_key_pays_for_what_a_death_left_uncomputed():
    """Of 100 tokens 60 were prefilled before the death: their second time is the house's, 39 are new."""
    desk = desk_of()
    desk.arrive("a", key="a", prompt_tokens=100, max_tokens=4)
    desk.starts()
    desk.prefill("a", 60, ms=60.0)
    die(desk)
    assert counter(desk, "a") == pytest.approx(60.0)
    desk.starts()
    desk.prefill("a", 80, ms=80.0)
    desk.prefill("a", 19, ms=19.0)
    desk.step("a", ms=80.0)
    assert counter(desk, "a") == pytest.approx(60 + 39 + 80)
    assert desk.state.house_ms == pytest.approx(60.0)


def test_work_for_somebody_who_left_is_the_houses():
    desk = desk_of()
    desk.arrive("a", key="a")
    desk.prefill("left", 5, ms=8.0)
    assert desk.state.house_ms == pytest.approx(8.0)
    assert counter(desk, "a") == 0.0


def test_a_lanes_share_of_time_counts_the_houses_work_too():
    desk = desk_of(1, HIGH, lane("low"))
    desk.arrive("a", lane="low")
    desk.arrive("b")
    desk.starts()
    desk.prefill("b", 4, ms=30.0)
    die(desk)
    desk.starts()
    desk.prefill("b", 4, ms=30.0)
    desk.prefill("a", 4, ms=20.0)
    assert desk.state.shares.of("low", desk.now) == pytest.approx(0.25)


# --- the bound ----------------------------------------------------------------------------------------------

SLOTS = 3
COST_MS_MAX = 8.0 * 20.0 + 8.0 * 3.0 + 51.0  # eight tokens of prefill and of decode, and what is prepaid


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["step", "end", "visit", "leave", "lose"]), st.integers(0, 9), st.floats(0.1, 20)
        ),
        min_size=20,
        max_size=150,
    ),
    st.sampled_from([1.0, 4.0]),
)
def test_keys_that_always_have_work_waiting_stay_within_a_bound_of_each_other(events, weight):
    """However others come and go: never further apart than what all rows may cost, for each of the two."""
    desk = desk_of(SLOTS)
    weights, numbers = {"a": 1.0, "b": weight, "guest": 1.0}, 0
    bound_ms = 2 * SLOTS * COST_MS_MAX
    for event, choice, ms in events:
        for key in ("a", "b", *(["guest"] if event == "visit" else [])):
            while desk.lane("high").fresh_of(key) < 2:
                numbers += 1
                desk.arrive(f"{key}{numbers}", key=key, prompt_tokens=8, max_tokens=8, weight=weights[key])
        desk.starts()
        running = list(desk.lane("high").running.values())
        row = running[choice % len(running)]
        if event == "step":
            desk.step(*(each.name for each in running), ms=ms * len(running))
        elif event == "lose":
            desk.core.interrupted([row.name], 0.0)
        elif event == "end":
            desk.end(row.name)
        elif event == "leave":
            guests = [each for each in desk.state.answers.values() if each.key == "guest"]
            desk.end(*(each.name for each in guests), completed=False)
        desk.end(*(each.name for each in running if not each.remaining))
        assert abs(counter(desk, "a") - counter(desk, "b")) <= bound_ms


def test_a_token_that_prefill_brought_is_no_step_that_took_no_time():
    desk = desk_of()
    desk.arrive("a")
    desk.decide()
    desk.step("a", ms=40.0)
    desk.step("a", ms=0.0)
    assert desk.state.speeds.step_ms(1) == 40.0
    assert desk.state.answers["a"].emitted == 2
