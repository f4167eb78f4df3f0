"""The restart policy when a worker is replaced on purpose: by order, for its memory, by itself."""

import signal

import pytest

from shared.config import WorkerSettings
from shared.messages import CALM, BackingOff, Care
from tests.worker.policy_bench import FIRST, Bench, cause_of
from worker.journal import Ended
from worker.launch import EXIT_CANNOT_LOAD, EXIT_PLANNED
from worker.restart import RESTART_GRACE_S, STOP_GRACE_S
from worker.supervision import Kill, Quit, Spawn, Tell, Terminate

SETTINGS = WorkerSettings(hang_floor_s=5, load_deadline_s=60, recycle_after_s=20)


@pytest.fixture
def bench() -> Bench:
    return Bench(SETTINGS)


# --- by order ---------------------------------------------------------------------------------------------


def test_an_order_to_restart_ends_the_worker_and_starts_the_next_at_once(bench: Bench) -> None:
    bench.report(1)
    assert bench.restart() == [Terminate()]
    said = bench.exit(EXIT_PLANNED)
    assert cause_of(said) == ("planned", "restarted by an operator's order")
    assert Spawn(FIRST + 1) in said


@pytest.mark.parametrize("status", [EXIT_PLANNED, 0, -signal.SIGTERM])
def test_a_worker_that_is_still_loading_is_replaced_too(bench: Bench, status: int) -> None:
    assert bench.restart() == [Terminate()]
    assert Spawn(FIRST + 1) in bench.exit(status)


def test_however_often_a_restart_is_ordered_it_counts_as_no_failure(bench: Bench) -> None:
    for _ in range(20):
        bench.report(1, "idle")
        bench.restart()
        assert Spawn(bench.epoch + 1) in bench.exit(EXIT_PLANNED)
    assert bench.care == CALM
    assert [bench.die() for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("epoch", [FIRST - 1, FIRST + 1, 0])
def test_an_order_for_another_life_is_ignored(bench: Bench, epoch: int) -> None:
    assert bench.restart(epoch) == []


def test_an_order_that_comes_twice_is_one(bench: Bench) -> None:
    bench.report(1)
    assert bench.restart() == [Terminate()]
    assert bench.restart() == []
    assert bench.wait(1) == []


def test_a_worker_deaf_to_the_order_is_killed_after_a_grace_and_that_is_still_planned(bench: Bench) -> None:
    bench.report(1)
    bench.restart()
    assert bench.wait(RESTART_GRACE_S - 0.25) == []
    assert isinstance(bench.wait(0.25)[0], Kill)
    said = bench.exit(-signal.SIGKILL)
    assert cause_of(said)[0] == "planned"
    assert Spawn(FIRST + 1) in said


def test_a_death_of_its_own_during_a_planned_end_keeps_its_cause(bench: Bench) -> None:
    bench.report(1)
    bench.restart()
    assert cause_of(bench.exit(-signal.SIGABRT, "out of memory\n"))[0] == "memory"
    assert bench.care == Care(1, "closed")


def test_a_restart_during_a_stop_is_ignored(bench: Bench) -> None:
    bench.stop()
    assert bench.restart() == []
    assert bench.exit(EXIT_PLANNED)[-1] == Quit()


def test_a_stop_during_a_restart_ends_the_supervisor(bench: Bench) -> None:
    bench.report(1)
    bench.restart()
    assert bench.stop() == []
    assert bench.wait(STOP_GRACE_S - 0.25) == []
    assert isinstance(bench.wait(0.25)[0], Kill)
    assert bench.exit(-signal.SIGKILL)[-1] == Quit()


def test_an_order_between_two_lives_ends_the_wait(bench: Bench) -> None:
    """An operator who has mended the folder need not wait for the breaker."""
    said = bench.exit(EXIT_CANNOT_LOAD, "no weights\n")
    assert Tell(BackingOff(FIRST, 60.0, Care(0, "open"))) in said
    assert Spawn(FIRST + 1) in bench.restart()
    assert bench.care == Care(0, "half_open")


# --- for its memory ---------------------------------------------------------------------------------------


def test_an_idle_worker_over_its_cap_is_recycled(bench: Bench) -> None:
    bench.report(1, tokens=100)
    assert bench.idle(20, tokens=100, wants_recycle=True) == [Terminate()]
    said = bench.exit(EXIT_PLANNED)
    cause, detail = cause_of(said)
    assert cause == "planned"
    assert detail.startswith(
        "recycled: held memory that it couldn't give back for 20 idle seconds; footprint 900 MiB"
    )
    assert Spawn(FIRST + 1) in said
    assert [bench.die() for _ in range(2)] == [0, 1]


def test_a_worker_that_gets_work_meanwhile_is_not_recycled(bench: Bench) -> None:
    for _ in range(10):
        assert bench.idle(19, tokens=100, wants_recycle=True) == []
        bench.report(2, "decode", tokens=100, wants_recycle=True)
        assert bench.wait(1) == []


def test_a_worker_that_gave_its_memory_back_is_not_recycled(bench: Bench) -> None:
    for _ in range(10):
        assert bench.idle(19, tokens=100, wants_recycle=True) == []
        assert bench.idle(1, tokens=100) == []


def test_a_worker_that_is_over_its_cap_by_nature_backs_off(bench: Bench) -> None:
    """Replacing one that never answered anything gains nothing: it must not go on for ever."""
    delays = []
    for _ in range(6):
        assert bench.idle(20, wants_recycle=True) == [Terminate()]
        delays.append(bench.die(EXIT_PLANNED))
    assert delays == [0, 1, 2, 4, 8, 60]
    assert bench.care == Care(0, "half_open")


# --- by itself --------------------------------------------------------------------------------------------


def test_a_planned_exit_after_serving_restarts_at_once_and_does_not_count(bench: Bench) -> None:
    for _ in range(3):
        bench.die()
    for _ in range(8):
        assert bench.idle(10) == []
        assert Spawn(bench.epoch + 1) in bench.exit(EXIT_PLANNED)
    assert bench.care == CALM
    assert bench.die() == 4


def test_planned_exits_right_after_readiness_are_failures(bench: Bench) -> None:
    delays = []
    for _ in range(6):
        assert bench.idle(9) == []
        delays.append(bench.die(EXIT_PLANNED))
    assert delays == [0, 1, 2, 4, 8, 60]


def test_a_planned_exit_before_readiness_is_a_failure(bench: Bench) -> None:
    bench.report(1, "loading")
    bench.wait(30)
    assert Spawn(FIRST + 1) in bench.exit(EXIT_PLANNED)
    assert Tell(BackingOff(FIRST + 1, 1.0, CALM)) in bench.exit(EXIT_PLANNED)


def test_the_journal_gets_a_planned_end_like_any_other(bench: Bench) -> None:
    bench.idle(30, tokens=100, answers=3)
    bench.restart()
    bench.exit(EXIT_PLANNED)
    (ended,) = [entry for entry in bench.written if isinstance(entry, Ended)]
    assert (ended.cause, ended.tokens, ended.answers, ended.lived_s) == ("planned", 100, 3, 30.0)
