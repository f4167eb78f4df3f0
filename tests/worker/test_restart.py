"""The restart policy: events in, instructions out, and no time passes."""

import signal

import pytest

from shared.config import WorkerSettings
from shared.messages import CALM, BackingOff, Exited, Starting
from tests.worker.policy_bench import FIRST, Bench, cause_of
from worker.restart import KILL_AGAIN_S, STOP_GRACE_S, backoff_s
from worker.supervision import Instruction, Kill, Quit, Spawn, SpawnFailed, Tell, Terminate, Ticked


@pytest.fixture
def bench() -> Bench:
    return Bench(WorkerSettings(hang_floor_s=5, load_deadline_s=60, restarts_max=100))


# --- the first life, and the next ---------------------------------------------------------------------------


def test_a_worker_is_started_at_once(bench: Bench) -> None:
    assert bench.said == [Spawn(FIRST), Tell(Starting(FIRST, CALM))]


def test_the_first_death_is_followed_by_the_next_life_at_once(bench: Bench) -> None:
    bench.report(1)
    said = bench.exit(1, "Traceback\nValueError: no\n")
    assert said == [
        Tell(Exited(FIRST, "crash", "exit status 1: ValueError: no", ())),
        Spawn(FIRST + 1),
        Tell(Starting(FIRST + 1, CALM)),
    ]


def test_deaths_in_a_row_wait_longer_and_longer(bench: Bench) -> None:
    assert [bench.die() for _ in range(9)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_jitter_takes_off_up_to_a_quarter() -> None:
    assert [backoff_s(n, 0.5) for n in (1, 2, 7, 10_000)] == [0, 0.875, 26.25, 26.25]


def test_two_healthy_minutes_forget_the_past(bench: Bench) -> None:
    for _ in range(4):
        bench.die()
    for second in range(121):
        bench.report(second)
        assert bench.wait(1) == []
    assert bench.die() == 0


def test_less_than_two_healthy_minutes_forget_nothing(bench: Bench) -> None:
    for _ in range(4):
        bench.die()
    for second in range(150):
        bench.report(second, "loading" if second < 30 else "idle")
        assert bench.wait(1) == []
    assert bench.die() == 8


def test_a_process_that_cannot_be_started_backs_off_like_a_death(bench: Bench) -> None:
    said = bench.order(SpawnFailed("Too many open files", 0.0))
    assert cause_of(said) == ("crash", "could not be started: Too many open files")
    assert Spawn(FIRST + 1) in said
    said = bench.order(SpawnFailed("Too many open files", 0.0))
    assert Tell(BackingOff(FIRST + 1, 1.0, CALM)) in said


# --- silence ------------------------------------------------------------------------------------------------


def test_a_busy_worker_whose_step_stands_still_is_killed(bench: Bench) -> None:
    bench.report(7)
    assert bench.wait(5) == []
    (kill,) = bench.wait(0.25)
    assert isinstance(kill, Kill)
    cause, detail = cause_of(bench.exit(-signal.SIGKILL))
    assert cause == "hang"
    assert "decode at step 7" in detail


def test_a_busy_worker_that_repeats_its_step_is_killed(bench: Bench) -> None:
    said: list[Instruction] = []
    for phase in ("prefill", "decode") * 4:
        bench.report(7, phase)
        said += bench.wait(1)
    assert [type(it) for it in said] == [Kill]


def test_a_healthy_prefill_of_15_s_is_left_alone(bench: Bench) -> None:
    bench.report(7, "prefill", expected_ms=15_000)
    assert bench.wait(59) == []
    assert isinstance(bench.wait(2)[0], Kill)


def test_no_expectation_buys_for_ever(bench: Bench) -> None:
    bench.report(7, "prefill", expected_ms=1e300)
    assert bench.wait(600) == []
    assert isinstance(bench.wait(1)[0], Kill)


def test_a_worker_that_steps_is_left_alone(bench: Bench) -> None:
    for step in range(100):
        bench.report(step)
        assert bench.wait(4.75) == []


def test_an_idle_worker_that_reports_is_left_alone(bench: Bench) -> None:
    for _ in range(100):
        bench.report(7, "idle", expected_ms=0.0)
        assert bench.wait(1) == []


def test_an_idle_worker_that_is_stopped_is_killed(bench: Bench) -> None:
    bench.report(7, "idle")
    assert bench.wait(7) == []
    assert isinstance(bench.wait(0.25)[0], Kill)
    assert cause_of(bench.exit(-signal.SIGKILL))[0] == "hang"


def test_work_after_a_long_idleness_starts_with_a_fresh_allowance(bench: Bench) -> None:
    for _ in range(10):
        bench.report(7, "idle")
        assert bench.wait(1) == []
    bench.report(7, "prefill")
    assert bench.wait(5) == []


def test_a_load_without_progress_is_killed_and_backed_off(bench: Bench) -> None:
    bench.die()
    bench.report(1, "loading")
    assert bench.wait(59) == []
    bench.report(2, "loading")
    assert bench.wait(30) == []
    bench.report(2, "loading")
    assert bench.wait(30) == []
    assert isinstance(bench.wait(0.25)[0], Kill)
    said = bench.exit(-signal.SIGKILL)
    assert cause_of(said)[0] == "stuck_load"
    assert Tell(BackingOff(FIRST + 1, 1.0, CALM)) in said


def test_a_worker_that_never_says_a_word_is_a_stuck_load(bench: Bench) -> None:
    assert bench.wait(60) == []
    assert isinstance(bench.wait(0.25)[0], Kill)


def test_the_word_of_an_earlier_life_is_no_sign_of_life(bench: Bench) -> None:
    bench.die()
    bench.epoch = FIRST
    assert bench.wait(59) == []
    bench.report(99, "idle")
    assert isinstance(bench.wait(2)[0], Kill)


def test_a_sleep_of_the_whole_machine_is_no_hang(bench: Bench) -> None:
    bench.report(7)
    assert bench.wait(4) == []
    assert bench.sleep(3600) == []
    assert bench.wait(5) == []
    assert isinstance(bench.wait(0.25)[0], Kill)


def test_a_process_that_outlives_its_kill_is_killed_again(bench: Bench) -> None:
    bench.report(7)
    kills = [it for it in bench.wait(5.25 + 3 * KILL_AGAIN_S) if isinstance(it, Kill)]
    assert len(kills) == 4
    assert cause_of(bench.exit(-signal.SIGKILL))[0] == "hang"


def test_a_death_of_its_own_just_before_the_kill_keeps_its_cause(bench: Bench) -> None:
    bench.report(7)
    assert isinstance(bench.wait(5.25)[0], Kill)
    assert cause_of(bench.exit(-signal.SIGABRT, "out of memory"))[0] == "memory"


# --- what the proxy is told ---------------------------------------------------------------------------------


def told_again(bench: Bench, seconds: float) -> list[Instruction]:
    said: list[Instruction] = []
    for _ in range(round(seconds * 4)):
        bench.now += 0.25
        said += bench.handle(Ticked(bench.now))
    return said


def test_a_proxy_that_comes_late_hears_of_the_present_life(bench: Bench) -> None:
    assert told_again(bench, 3) == [Tell(Starting(FIRST, CALM), again=True)] * 3


def test_a_proxy_that_comes_late_hears_of_the_death_and_of_what_is_left_of_the_wait(bench: Bench) -> None:
    for _ in range(3):
        bench.die()
    bench.exit(1)
    exited = Tell(Exited(FIRST + 3, "crash", "exit status 1", ()), again=True)
    assert told_again(bench, 2) == [
        exited,
        Tell(BackingOff(FIRST + 3, 3.0, CALM), again=True),
        exited,
        Tell(BackingOff(FIRST + 3, 2.0, CALM), again=True),
    ]


# --- the end ------------------------------------------------------------------------------------------------


def test_a_stop_asks_the_worker_to_end_and_quits_after_it(bench: Bench) -> None:
    assert bench.stop() == [Terminate()]
    assert bench.exit(-signal.SIGTERM) == [
        Tell(Exited(FIRST, "planned", "the supervisor was asked to stop", ())),
        Quit(),
    ]
    assert bench.wait(60) == []


def test_a_worker_deaf_to_the_stop_is_killed(bench: Bench) -> None:
    assert bench.stop() == [Terminate()]
    assert bench.wait(STOP_GRACE_S - 0.25) == []
    assert isinstance(bench.wait(0.25)[0], Kill)
    assert bench.exit(-signal.SIGKILL)[-1] == Quit()


def test_a_second_stop_does_not_wait(bench: Bench) -> None:
    bench.stop()
    assert isinstance(bench.stop()[0], Kill)


def test_a_stop_at_once_does_not_wait(bench: Bench) -> None:
    assert isinstance(bench.stop(at_once=True)[0], Kill)


def test_a_stop_between_two_lives_quits_at_once(bench: Bench) -> None:
    bench.die()
    bench.exit(1)
    assert bench.stop() == [Quit()]
    assert bench.stop() == []
    assert bench.wait(60) == []


def test_a_stop_while_a_hung_worker_is_being_killed_waits_for_its_end(bench: Bench) -> None:
    bench.report(7)
    bench.wait(5.25)
    assert bench.stop() == []
    said = bench.exit(-signal.SIGKILL)
    assert cause_of(said)[0] == "hang"
    assert said[-1] == Quit()
