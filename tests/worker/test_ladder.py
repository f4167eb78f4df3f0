"""The ladder: down with each death for want of memory, up with healthy time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.limits import RUNG_MAX
from worker.ladder import Ladder

CLIMB_S = 600.0


def test_each_memory_death_is_a_rung_down_until_there_is_none() -> None:
    ladder = Ladder(CLIMB_S)
    assert [(ladder.step_down(), ladder.rung) for _ in range(5)] == [
        (True, 1),
        (True, 2),
        (True, 3),
        (False, RUNG_MAX),
        (False, RUNG_MAX),
    ]


def test_healthy_time_climbs_one_rung_at_a_time() -> None:
    ladder = Ladder(CLIMB_S, rung=2)
    rungs = []
    for _ in range(6):
        ladder.pass_healthy(CLIMB_S / 2)
        rungs.append(ladder.rung)
    assert rungs == [2, 1, 1, 0, 0, 0]


def test_time_at_the_top_is_no_credit_for_later() -> None:
    ladder = Ladder(CLIMB_S)
    ladder.pass_healthy(10 * CLIMB_S)
    ladder.step_down()
    ladder.pass_healthy(CLIMB_S - 1)
    assert ladder.rung == 1


def test_a_memory_death_takes_back_the_healthy_time_before_it() -> None:
    ladder = Ladder(CLIMB_S, rung=1)
    ladder.pass_healthy(CLIMB_S - 1)
    ladder.step_down()
    ladder.pass_healthy(CLIMB_S - 1)
    assert ladder.rung == 2


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1000)), max_size=100))
def test_the_rung_stays_within_bounds_and_moves_by_one(deeds: list[float | None]) -> None:
    ladder = Ladder(CLIMB_S)
    for seconds in deeds:
        before = ladder.rung
        if seconds is None:
            assert ladder.step_down() == (before < RUNG_MAX)
            assert ladder.rung == min(before + 1, RUNG_MAX)
        else:
            ladder.pass_healthy(seconds)
            assert before - 1 <= ladder.rung <= before
        assert 0 <= ladder.rung <= RUNG_MAX
