"""The supervisor with real processes: a false worker that dies as it is told, a false proxy that listens."""

import asyncio
import gc
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.config import Settings
from shared.limits import RUNG_MAX
from shared.messages import BackingOff, Care, Exited, Starting
from tests.worker import false_process
from tests.worker.supervised_house import FRESH, House, ended, hurry, is_gone, open_descriptors, until
from worker import epochs, launch, life
from worker.__main__ import main
from worker.child import Child, Launcher
from worker.epochs import Past
from worker.launch import LaunchSpec
from worker.supervisor import Supervisor


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    hurry(monkeypatch)
    house = House(tmp_path)
    try:
        yield house
    finally:
        await house.leave()


def test_what_stands_in_for_a_worker_ends_with_the_same_words_and_numbers() -> None:
    for name in ("EXIT_PLANNED", "EXIT_CANNOT_LOAD", "SENT_BY_ANOTHER"):
        assert getattr(false_process, name) == getattr(launch, name)


async def test_a_worker_killed_from_outside_is_missed_and_replaced(house: House) -> None:
    async with house.supervisor("healthy"):
        await house.hears(Starting, epoch=1)
        os.kill(await house.until_lives(1), signal.SIGKILL)
        await house.until_lives(2)
        await house.hears(Starting, epoch=2)
    await house.hears(Exited, epoch=1, cause="killed")
    await house.hears(Exited, epoch=2, cause="planned")


async def test_deaths_in_a_row_are_told_and_backed_off(house: House) -> None:
    async with house.supervisor("exit:70,signal:SIGABRT,healthy"):
        await house.until_lives(3)
        await house.hears(Starting, epoch=3)
    await house.hears(Exited, epoch=1, cause="loop_exception", detail="exit status 70: last words of 1")
    await house.hears(Exited, epoch=2, cause="memory")
    await house.hears(BackingOff, epoch=2)


async def test_a_model_that_cannot_be_loaded_is_told_in_its_own_words(house: House) -> None:
    async with house.supervisor("unmendable"):
        await house.hears(BackingOff, epoch=1, care=Care(0, "open"))
    await house.hears(Exited, epoch=1, cause="cannot_load", detail="the folder has no weights")


async def test_a_planned_recycle_restarts_without_a_wait(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "SERVED_S_MIN", 0.0)
    async with house.supervisor("recycle,recycle,recycle,healthy"):
        await house.until_ready(4)
        await house.hears(Exited, epoch=3, cause="planned")
    assert not house.has_heard(BackingOff)


async def test_a_worker_that_only_recycles_backs_off(house: House) -> None:
    async with house.supervisor("recycle,recycle,healthy"):
        await house.hears(BackingOff, epoch=2)


async def test_a_report_behind_garbage_is_understood(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a worker that has reported itself ready may recycle without a wait."""
    monkeypatch.setattr(life, "SERVED_S_MIN", 0.0)
    async with house.supervisor("garbled_recycle,garbled_recycle,healthy"):
        await house.until_ready(3)
        await house.hears(Exited, epoch=2, cause="planned")
    assert not house.has_heard(BackingOff)


async def test_a_hang_in_a_step_is_noticed(house: House) -> None:
    async with house.supervisor("hang,healthy", hang_floor_s=0.5):
        await house.until_lives(2)
        await house.hears(Exited, epoch=1, cause="hang")


async def test_a_stuck_load_is_noticed(house: House) -> None:
    async with house.supervisor("stuck_load,healthy", load_deadline_s=1):
        await house.until_lives(2)
        await house.hears(Exited, epoch=1, cause="stuck_load")


async def test_what_each_life_wrote_is_kept_for_the_newest_few(house: House) -> None:
    async with house.supervisor("exit:1,exit:1,healthy", stderr_lives_kept=2):
        await house.until_lives(3)
    files = sorted(file.name for file in (house.home / "logs" / "worker-0-8000").iterdir())
    assert files == ["2.stderr", "3.stderr"]
    assert (house.home / "logs" / "worker-0-8000" / "2.stderr").read_text() == "last words of 2\n"


async def test_a_home_that_takes_no_logs_costs_the_words_and_not_the_worker(house: House) -> None:
    (house.home / "logs").write_text("a file where a folder should be")
    async with house.supervisor("exit:1,healthy"):
        await house.until_lives(2)
    await house.hears(Exited, epoch=1, cause="crash", detail="exit status 1")


async def test_a_command_that_is_not_there_is_a_death_that_backs_off(house: House) -> None:
    supervisor = Supervisor(
        Settings(home=house.home),
        house.home,
        "demo",
        past=FRESH,
        boot="this boot",
        command=(str(house.home / "nothing"),),
    )
    running = asyncio.create_task(supervisor.run())
    await house.hears(Exited, cause="crash")
    await house.hears(BackingOff)
    supervisor.stop()
    await running
    exited = next(message for message in house.heard if isinstance(message, Exited))
    assert "could not be started" in exited.detail


async def test_a_worker_that_no_thread_can_wait_for_is_a_death_that_backs_off(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(_launcher: Launcher, _epoch: int, **_named: object) -> Child:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Launcher, "start", start)
    async with house.supervisor("healthy"):
        # A word that is said before the wire is connected is lost, and said again in the next wait.
        await house.hears(Exited, cause="crash", detail="could not be started: can't start new thread")
        await house.hears(BackingOff)


@pytest.mark.parametrize(("rung", "kept_mb"), [(RUNG_MAX, 0), (RUNG_MAX - 1, 900)])
async def test_only_on_the_lowest_rung_a_process_is_told_to_keep_nothing_of_prompts(
    house: House, monkeypatch: pytest.MonkeyPatch, rung: int, kept_mb: int
) -> None:
    told: list[LaunchSpec] = []

    async def exec_of(_launcher: Launcher, spec: LaunchSpec, _output: object) -> Process:
        told.append(spec)
        raise OSError("that was all")

    monkeypatch.setattr(Launcher, "_exec", exec_of)
    monkeypatch.setattr(epochs, "RUNG_AFTER_A_PANIC", rung)
    past = Past(first_epoch=1, machine_went_down=True)
    async with house.supervisor("healthy", past, cache_memory_mb=900):
        await until(lambda: told)
    assert told[0].settings.cache_memory_mb == kept_mb


async def test_a_proxy_that_comes_late_learns_the_present_state(house: House) -> None:
    async with house.supervisor("healthy"):
        await house.hears(Starting)
        house.heard.clear()
        await house.hears(Starting, epoch=1)


async def test_a_worker_deaf_to_the_stop_is_killed_by_the_second(house: House) -> None:
    async with house.supervisor("deaf") as supervisor:
        pid = await house.until_ready(1)
        supervisor.stop()
        await asyncio.sleep(0.5)
        assert not is_gone(pid)


async def test_a_worker_does_not_get_the_terminals_signals(house: House) -> None:
    async with house.supervisor("healthy"):
        pid = await house.until_lives(1)
        assert os.getsid(pid) == pid


async def test_starting_a_worker_leaves_the_supervisors_own_signals_as_they_were(house: House) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    async with house.supervisor("healthy"):
        await house.until_ready(1)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


async def test_no_descriptor_is_left_open(house: House) -> None:
    async with house.supervisor("healthy"):
        await house.until_lives(1)
    house.lives_file.unlink()
    gc.collect()
    before = open_descriptors()
    async with house.supervisor("exit:1,recycle,healthy"):
        await house.until_lives(3)
    await until(lambda: open_descriptors() <= before)


async def test_a_bug_in_the_supervisor_leaves_no_worker_behind(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = house.new_supervisor("healthy")
    running = asyncio.create_task(supervisor.run())
    pid = await house.until_lives(1)
    monkeypatch.setattr(supervisor._policy, "handle", lambda _: 1 / 0)
    with pytest.raises(ExceptionGroup):
        await running
    assert is_gone(pid)


# --- supervisors in processes of their own ------------------------------------------------------------------


async def test_a_worker_dies_with_its_supervisor(house: House) -> None:
    process = house.start_process("deaf")
    pid = await house.until_ready(1)
    process.kill()
    await ended(process)
    await until(lambda: is_gone(pid))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_both(house: House, number: signal.Signals) -> None:
    process = house.start_process("healthy")
    pid = await house.until_lives(1)
    process.send_signal(number)
    assert await ended(process) == 0
    assert is_gone(pid)


async def test_a_deaf_worker_is_killed_after_a_grace(house: House) -> None:
    process = house.start_process("deaf")
    pid = await house.until_ready(1)
    process.terminate()
    assert await ended(process) == 0
    assert is_gone(pid)


async def test_a_supervisor_ends_with_its_own_lifeline(house: House) -> None:
    theirs, ours = os.pipe()
    process = house.start_process("deaf", lifeline_fd=theirs)
    os.close(theirs)
    pid = await house.until_ready(1)
    os.close(ours)
    assert await ended(process) == 0
    assert is_gone(pid)


async def test_epochs_never_come_twice(house: House) -> None:
    for _ in range(2):
        process = house.start_process("healthy")
        lives = len(house.pids())
        await house.until_lives(lives + 1)
        process.terminate()
        await ended(process)
    epochs = [int(line.split()[0]) for line in house.lives_file.read_text().splitlines()]
    assert 0 < epochs[0] < epochs[-1]
    assert epochs[-1] <= time.time() * 1000


# --- the command line ---------------------------------------------------------------------------------------


def test_a_missing_folder_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--folder", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == f"python -m worker: {tmp_path / 'nowhere'}: no such folder\n"


def test_settings_that_are_wrong_are_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text("[worker]\nslotz = 3\n")
    assert main(["--folder", str(tmp_path), "--config", str(config)]) == 2
    assert "did you mean worker.slots?" in capsys.readouterr().err


def test_a_lifeline_that_is_not_open_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--folder", ".", "--lifeline-fd", "987654"])
    assert "no open descriptor" in capsys.readouterr().err
