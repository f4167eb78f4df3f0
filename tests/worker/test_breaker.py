"""The breaker: it opens after too many deaths, is closed by a trial, and remembers."""

from shared.config import WorkerSettings
from worker.breaker import Breaker

SETTINGS = WorkerSettings(restarts_max=5, restarts_window_s=600, breaker_open_s=60)


def test_five_deaths_in_ten_minutes_are_borne_and_the_sixth_opens() -> None:
    breaker = Breaker(SETTINGS)
    states = []
    for second in range(6):
        breaker.count_death(float(second))
        states.append(breaker.state)
    assert states == ["closed"] * 5 + ["open"]
    assert [breaker.rest_s(at) for at in (5.0, 35.0, 65.0, 100.0)] == [60, 30, 0, 0]


def test_deaths_far_apart_never_open_it() -> None:
    breaker = Breaker(SETTINGS)
    for minute in range(1000):
        breaker.count_death(minute * 120.0)
    assert breaker.state == "closed"


def test_a_death_on_trial_opens_it_again() -> None:
    breaker = Breaker(SETTINGS)
    breaker.open(0.0)
    breaker.begin_trial()
    assert (breaker.state, breaker.rest_s(61.0)) == ("half_open", 0)
    breaker.count_death(70.0)
    assert (breaker.state, breaker.rest_s(70.0)) == ("open", 60)


def test_a_trial_that_went_well_closes_it_but_the_deaths_are_not_forgotten() -> None:
    breaker = Breaker(SETTINGS)
    for second in range(6):
        breaker.count_death(float(second))
    breaker.begin_trial()
    breaker.pass_trial()
    assert breaker.state == "closed"
    breaker.count_death(100.0)
    assert breaker.state == "open"


def test_deaths_grown_old_are_forgotten() -> None:
    breaker = Breaker(SETTINGS)
    for second in range(6):
        breaker.count_death(float(second))
    breaker.begin_trial()
    breaker.pass_trial()
    breaker.count_death(606.0)
    assert breaker.state == "closed"


def test_what_is_no_trial_closes_nothing() -> None:
    breaker = Breaker(SETTINGS)
    breaker.begin_trial()
    assert breaker.state == "closed"
    breaker.open(0.0)
    breaker.pass_trial()
    assert breaker.state == "open"
