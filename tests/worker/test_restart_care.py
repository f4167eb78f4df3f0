"""The restart policy's caution: rungs after memory deaths, the breaker after too many of any kind."""

import itertools
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.config import WorkerSettings
from shared.messages import CALM, BackingOff, Care, Exited, ManifestRow, Starting
from tests.worker.policy_bench import FIRST, Bench, cause_of, spawned
from worker.death import MemoryEvidence
from worker.journal import BecameReady, CareChanged, Ended, Ran, Spawned
from worker.launch import EXIT_CANNOT_LOAD, EXIT_LOOP_EXCEPTION
from worker.life import HEALTHY_S, PROOF_TOKENS
from worker.supervision import Kill, Spawn, Tell, Ticked

SETTINGS = WorkerSettings(hang_floor_s=5, load_deadline_s=60, climb_s=100)
ROW = ManifestRow("s1", 1, 7, prefilling=False)


@pytest.fixture
def bench() -> Bench:
    return Bench(SETTINGS)


# --- the ladder -------------------------------------------------------------------------------------------


def test_each_memory_death_is_told_as_a_rung_down(bench: Bench) -> None:
    rungs = []
    for _ in range(3):
        bench.die_of_memory()
        rungs.append(bench.care.rung)
    assert rungs == [1, 2, 3]


def test_other_deaths_leave_the_rung_alone(bench: Bench) -> None:
    for status in (1, EXIT_LOOP_EXCEPTION, -signal.SIGKILL, -signal.SIGBUS):
        bench.die(status)
    assert bench.care == CALM


def test_a_memory_death_on_the_lowest_rung_opens_the_breaker() -> None:
    bench = Bench(SETTINGS, rung=3)
    assert bench.care == Care(3, "closed")
    bench.report(1, "idle")
    said = bench.exit(-signal.SIGABRT, "out of memory\n")
    assert Tell(BackingOff(FIRST, 60.0, Care(3, "open"))) in said


def test_who_finds_no_memory_for_the_model_is_tried_again_soon_and_no_caution_is_learned_from_it() -> None:
    """Somebody else has taken it for a while: less of a budget would make the model no smaller."""
    bench = Bench(SETTINGS, rung=2)
    bench.die_of_memory()
    waits = []
    for _ in range(4):
        bench.report(1, "loading")
        waits.append(bench.die(-signal.SIGABRT, "out of memory\n"))
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert bench.care == Care(3, "closed")


def test_who_takes_long_to_find_no_memory_isnt_tried_for_ever_either() -> None:
    """So long that no window of the breaker's sees too many deaths."""
    bench = Bench(SETTINGS)
    waits = []
    for _ in range(6):
        for step in range(5):
            bench.report(step, "loading")
            assert bench.wait(50) == []
        said = bench.exit(-signal.SIGABRT, "out of memory\n")
        waits += [
            it.message.delay_s for it in said if isinstance(it, Tell) and isinstance(it.message, BackingOff)
        ]
        if bench.care.breaker == "closed" and waits:
            bench.wait(waits[-1])
    assert waits == [1.0, 2.0, 4.0, 8.0, 60.0]
    assert bench.care == Care(0, "open")


def test_healthy_time_climbs_and_the_proxy_hears_it_within_a_tick(bench: Bench) -> None:
    bench.die_of_memory()
    bench.idle(99)
    assert bench.care.rung == 1
    bench.report(1, "idle")
    for _ in range(5):
        bench.now += 0.25
        bench.handle(Ticked(bench.now))
    assert bench.told[-1] == Starting(bench.epoch, CALM)


def test_loading_backing_off_and_sleeping_are_no_healthy_time(bench: Bench) -> None:
    for _ in range(3):
        bench.die_of_memory()
    for step in range(10):
        bench.report(step, "loading")
        assert bench.wait(50) == []
    bench.report(1, "idle")
    bench.sleep(10_000)
    bench.idle(90)
    assert bench.care.rung == 3


@pytest.mark.parametrize(("rung", "keeps"), [(0, True), (1, True), (2, True), (3, False)])
def test_a_worker_that_starts_on_the_lowest_rung_keeps_nothing_of_prompts(rung: int, keeps: bool) -> None:
    assert Spawn(FIRST, keeps_prefixes=keeps) in Bench(SETTINGS, rung=rung).said


def test_what_a_worker_may_keep_follows_the_rung_that_was_climbed_to_meanwhile() -> None:
    bench = Bench(SETTINGS, rung=3)
    bench.idle(101)
    assert Spawn(FIRST + 1, keeps_prefixes=True) in bench.exit(1)


def test_a_crash_does_not_take_back_the_healthy_time_before_it(bench: Bench) -> None:
    bench.die_of_memory()
    bench.idle(60)
    bench.die()
    bench.idle(42)
    assert bench.care.rung == 0


def test_evidence_of_a_shortage_makes_a_silent_kill_a_memory_death(bench: Bench) -> None:
    bench.report(1)
    said = bench.exit(-signal.SIGKILL, evidence=MemoryEvidence(available_share=0.01))
    assert cause_of(said)[0] == "memory"
    assert bench.care.rung == 1


def test_the_workers_own_reports_are_evidence_too(bench: Bench) -> None:
    bench.report(1, budget_mib=1000)
    bench.report(2, budget_mib=500)
    cause, detail = cause_of(bench.exit(-signal.SIGKILL))
    assert cause == "memory"
    assert "cut its caches to 50%" in detail
    bench.report(1, budget_mib=500)
    assert cause_of(bench.exit(-signal.SIGKILL))[0] == "killed"


# --- the breaker ------------------------------------------------------------------------------------------


def opened(bench: Bench) -> None:
    """Let the worker die until the breaker has opened, and its rest has begun."""
    for _ in range(5):
        bench.die()
    assert Tell(BackingOff(bench.epoch, 60.0, Care(0, "open"))) in bench.exit(1)


def test_the_sixth_death_in_ten_minutes_opens_the_breaker_for_a_minute(bench: Bench) -> None:
    opened(bench)
    assert bench.wait(59.75) == []
    assert Spawn(bench.epoch + 1) in bench.wait(0.25)
    assert bench.care == Care(0, "half_open")


def test_while_it_is_open_the_proxy_hears_it_each_second(bench: Bench) -> None:
    opened(bench)
    bench.wait(1.25)
    bench.told.clear()
    bench.wait(2)
    assert bench.told == [
        message
        for rest_s in (58.0, 57.0)
        for message in (
            Exited(bench.epoch, "crash", "exit status 1", ()),
            BackingOff(bench.epoch, pytest.approx(rest_s, abs=0.5), Care(0, "open")),
        )
    ]


@pytest.mark.parametrize("proof", [{"answers": 1}, {"tokens": PROOF_TOKENS}])
def test_a_trial_that_answers_closes_it(bench: Bench, proof: dict[str, int]) -> None:
    opened(bench)
    bench.wait(60)
    bench.report(1, "decode", tokens=PROOF_TOKENS - 1)
    bench.wait(1)
    assert bench.care.breaker == "half_open"
    bench.report(2, "decode", **proof)
    bench.wait(1)
    assert bench.care == CALM


def test_a_trial_that_has_nothing_to_do_closes_it_after_a_while(bench: Bench) -> None:
    opened(bench)
    bench.wait(60)
    bench.idle(int(HEALTHY_S))
    assert bench.care.breaker == "half_open"
    bench.idle(2)
    assert bench.care == CALM


def test_a_trial_that_is_busy_without_an_answer_proves_nothing(bench: Bench) -> None:
    opened(bench)
    bench.wait(60)
    for step in range(2 * int(HEALTHY_S)):
        bench.report(step, "prefill")
        assert bench.wait(1) == []
    assert bench.care.breaker == "half_open"


def test_a_death_on_trial_opens_it_again(bench: Bench) -> None:
    opened(bench)
    bench.wait(60)
    assert Tell(BackingOff(bench.epoch, 60.0, Care(0, "open"))) in bench.exit(1)


def test_a_model_that_cannot_be_loaded_opens_it_at_once_and_is_tried_each_minute(bench: Bench) -> None:
    for _ in range(3):
        said = bench.exit(EXIT_CANNOT_LOAD, "no weights\n")
        assert cause_of(said) == ("cannot_load", "no weights")
        assert Tell(BackingOff(bench.epoch, 60.0, Care(0, "open"))) in said
        assert bench.wait(59.75) == []
        assert Spawn(bench.epoch + 1) in bench.wait(0.25)
    bench.report(1, "decode", answers=1)
    bench.wait(1)
    assert bench.care == CALM


STATUSES = (1, 1, 1, -signal.SIGKILL, -signal.SIGABRT, EXIT_CANNOT_LOAD)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 90), st.booleans(), st.sampled_from(STATUSES)), min_size=10, max_size=60)
)
def test_but_for_trials_a_minute_apart_no_window_sees_more_restarts_than_allowed(
    lives: list[tuple[float, bool, int]],
) -> None:
    bench = Bench(SETTINGS)
    restarts: list[float] = []
    trials: list[float] = []
    for lived_s, answers, status in lives:
        if answers:
            bench.report(1, "decode", answers=1)
        bench.now += lived_s
        bench.exit(status)
        told = bench.told[-1]
        if isinstance(told, BackingOff):
            bench.now += told.delay_s
            assert told.epoch + 1 in spawned(bench.order(Ticked(bench.now + 1e-6)))
        was_open = isinstance(told, BackingOff) and told.care.breaker == "open"
        (trials if was_open else restarts).append(bench.now)
    most = SETTINGS.restarts_max + 1
    gaps = [after - before for before, after in itertools.pairwise(trials)]
    assert all(gap > SETTINGS.breaker_open_s - 1e-3 for gap in gaps)
    spans = [last - first for first, last in zip(restarts, restarts[most:], strict=False)]
    assert all(span > SETTINGS.restarts_window_s - 1e-3 for span in spans)


# --- stopped from outside ---------------------------------------------------------------------------------


def test_a_silent_worker_found_stopped_was_killed_and_not_hung(bench: Bench) -> None:
    bench.report(7)
    assert isinstance(bench.wait(5.25)[0], Kill)
    bench.find_stopped()
    cause, detail = cause_of(bench.exit(-signal.SIGKILL))
    assert (cause, detail) == ("killed", "it had been stopped (SIGSTOP) for about 5.2 s")


def test_a_load_found_stopped_was_killed_and_not_stuck(bench: Bench) -> None:
    assert isinstance(bench.wait(60.25)[0], Kill)
    bench.find_stopped()
    assert cause_of(bench.exit(-signal.SIGKILL))[0] == "killed"


def test_a_worker_found_stopped_after_a_death_of_its_own_changes_nothing(bench: Bench) -> None:
    bench.report(7)
    bench.find_stopped()
    assert cause_of(bench.exit(1))[0] == "crash"
    bench.find_stopped()


# --- what is told and written -----------------------------------------------------------------------------


def test_the_rows_of_the_last_step_are_told_and_written(bench: Bench) -> None:
    bench.report(5, "decode", tokens=40, answers=2)
    bench.wait(2)
    said = bench.exit(-signal.SIGABRT, "out of memory\n", rows=(ROW,))
    assert said[0] == Tell(Exited(FIRST, "memory", bench.told[-2].detail, (ROW,)))
    (ended,) = [entry for entry in bench.written if isinstance(entry, Ended)]
    assert (ended.rows, ended.phase, ended.step) == ((ROW,), "decode", 5)
    assert (ended.rung, ended.breaker, ended.stderr_tail) == (1, "closed", "out of memory\n")


def test_a_busy_life_is_written_down_at_once_and_each_half_minute(bench: Bench) -> None:
    for step in range(61):
        bench.report(step)
        bench.wait(1)
    assert [entry.step for entry in bench.written if isinstance(entry, Ran)] == [0, 30, 60]


def test_an_idle_life_is_not_written_down(bench: Bench) -> None:
    bench.idle(100)
    assert bench.written == [Spawned(FIRST, 0, "closed"), BecameReady(FIRST, 0.0)]


def test_each_change_of_care_is_written_down_once(bench: Bench) -> None:
    opened(bench)
    bench.wait(60)
    bench.report(1, "decode", answers=1)
    bench.wait(5)
    assert [entry for entry in bench.written if isinstance(entry, CareChanged)] == [
        CareChanged(FIRST + 5, 0, "open"),
        CareChanged(FIRST + 6, 0, "half_open"),
        CareChanged(FIRST + 6, 0, "closed"),
    ]
