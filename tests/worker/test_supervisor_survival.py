"""The supervisor with real processes: what it does about deaths and orders, and what the journal tells."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from shared.codec import encode
from shared.messages import BackingOff, Care, Exited, Ping, Restart, Starting, Stop
from shared.run_folder import RunFolder, SupervisorLock
from tests.worker.false_process import ROWS
from tests.worker.supervised_house import House, ended, hurry, is_gone, until
from worker import leftovers, restart
from worker.child import StderrFolder
from worker.epochs import EPOCH_FILE_NAME, Past
from worker.journal import FILE_NAME, Ran, read_records
from worker.scribe import Scribe


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    hurry(monkeypatch)
    house = House(tmp_path)
    try:
        yield house
    finally:
        await house.leave()


# --- causes -----------------------------------------------------------------------------------------------


async def test_rows_of_a_memory_death_reach_the_proxy_and_the_next_life_is_a_rung_lower(house: House) -> None:
    async with house.supervisor("memory,healthy"):
        await house.hears(Exited, epoch=1, cause="memory", rows=ROWS)
        await house.hears(Starting, epoch=2, care=Care(1, "closed"))
    assert "bad_alloc" in house.exited(1).detail


async def test_a_signal_that_somebody_sent_is_told_from_a_fault(house: House) -> None:
    async with house.supervisor("sent:SIGSEGV,signal:SIGBUS,healthy"):
        await house.hears(Exited, epoch=2, cause="crash")
    assert house.exited(1).cause == "killed"
    assert house.exited(1).detail == "ended by SIGSEGV, sent by another process"


async def test_a_stopped_worker_is_killed_and_replaced_with_its_rows_told(house: House) -> None:
    async with house.supervisor("busy,healthy", hang_floor_s=2):
        pid = await house.until_ready(1)
        os.kill(pid, signal.SIGSTOP)
        await house.hears(Exited, epoch=1, cause="killed", rows=ROWS)
        await house.until_ready(2)
    assert is_gone(pid)
    assert house.exited(1).detail.startswith("it had been stopped (SIGSTOP) for about")


# --- orders -----------------------------------------------------------------------------------------------


async def test_an_order_to_restart_is_obeyed_once_and_for_the_present_life_alone(house: House) -> None:
    async with house.supervisor("healthy"):
        await house.until_ready(1)
        await house.order(encode(Restart(7)))
        await house.order(encode(Restart(1)))
        await house.until_ready(2)
        await house.order(encode(Restart(1)))
        await house.order(encode(Restart(2)))
        await house.until_ready(3)
    assert [house.exited(epoch).detail for epoch in (1, 2)] == ["restarted by an operator's order"] * 2
    assert house.exited(3).detail == "the supervisor was asked to stop"
    assert not house.has_heard(BackingOff)


async def test_a_worker_deaf_to_an_order_is_killed_and_replaced(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart, "RESTART_GRACE_S", 0.5)
    async with house.supervisor("deaf,healthy"):
        pid = await house.until_ready(1)
        await house.order(encode(Restart(1)))
        await house.until_ready(2)
        assert is_gone(pid)
    assert house.exited(1).cause == "planned"


async def test_an_order_to_stop_ends_worker_and_supervisor(house: House) -> None:
    running = asyncio.create_task(house.new_supervisor("healthy").run())
    pid = await house.until_ready(1)
    await house.order(encode(Stop(99)))
    await asyncio.wait_for(running, 60)
    assert is_gone(pid)
    await house.hears(Exited, epoch=1, cause="planned")


async def test_words_that_make_no_sense_are_dropped_and_counted(house: House) -> None:
    async with house.supervisor("healthy,healthy") as supervisor:
        await house.until_ready(1)
        for frame in (b"", b"\xc1garbage", encode(Ping(1, 1)), encode(Starting(1, Care(0, "closed")))):
            await house.order(frame)
        await house.order(encode(Restart(1)))
        await house.until_ready(2)
        assert supervisor.frames_dropped == 4


async def test_an_idle_worker_over_its_cap_is_recycled(house: House) -> None:
    async with house.supervisor("leaky,healthy", recycle_after_s=1):
        await house.until_ready(2)
        await house.hears(Exited, epoch=1, cause="planned")
    assert "footprint 4 MiB" in house.exited(1).detail


# --- the breaker ------------------------------------------------------------------------------------------


async def test_the_breaker_opens_and_recovers_alone_after_the_folder_is_mended(house: House) -> None:
    async with house.supervisor("mendable", breaker_open_s=1):
        await house.hears(BackingOff, epoch=2, care=Care(0, "open"))
        (house.home / "weights").touch()
        await until(lambda: list(house.home.glob("ready-*")))
        epoch = len(house.pids())
        await house.hears(Starting, epoch=epoch, care=Care(0, "half_open"))
        await house.hears(Starting, epoch=epoch, care=Care(0, "closed"))


async def test_crashes_in_a_row_open_the_breaker(house: House) -> None:
    async with house.supervisor("exit:1", restarts_max=1, breaker_open_s=600):
        await house.hears(BackingOff, epoch=2, care=Care(0, "open"))
        house.heard.clear()
        await house.hears(BackingOff, epoch=2, care=Care(0, "open"))
    assert len(house.pids()) == 2


# --- the journal ------------------------------------------------------------------------------------------


async def test_the_journal_tells_each_life(house: House) -> None:
    async with house.supervisor("memory,busy"):
        await until(lambda: [it for it in read_records(house.logs) if it.kind == Ran.kind and it.epoch == 2])
    after, before = house.lives()
    assert (before.epoch, before.cause, before.rows, before.rung) == (1, "memory", ROWS, 1)
    assert (before.phase, before.tokens, before.stderr_tail) == (
        "decode",
        2,
        "terminate called: std::bad_alloc\n",
    )
    assert before.memory is not None
    assert (after.epoch, after.cause, after.rows, after.rung) == (2, "planned", ROWS, 1)
    assert after.ready_after_s is not None
    assert after.lived_s is not None
    records = read_records(house.logs)
    assert [record.kind for record in records][-1] == "started"
    assert records[0].kind == "stopped"
    (ran,) = [record for record in records if record.kind == Ran.kind and record.epoch == 2]
    assert [row["sequence"] for row in ran.fields["rows"]] == ["s-1", "s-2"]
    assert (house.logs / EPOCH_FILE_NAME).read_text() == "2\n"


async def test_what_a_slow_disk_still_owes_is_written_before_the_end(house: House) -> None:
    async with house.supervisor("healthy") as supervisor:
        await house.until_ready(1)
        supervisor._scribe.submit(lambda: time.sleep(0.2))
    assert read_records(house.logs)[0].kind == "stopped"


async def test_only_the_end_of_a_long_stderr_gets_into_the_journal(house: House) -> None:
    async with house.supervisor("chatty"):
        await house.until_ready(1)
    (life,) = house.lives()
    assert len(life.stderr_tail) == 2048
    assert life.stderr_tail.startswith("x")
    assert "039999" in life.stderr_tail


async def test_a_lost_life_and_a_panic_are_written_down(house: House) -> None:
    past = Past(first_epoch=8, lost_epoch=7, machine_went_down=True)
    async with house.supervisor("healthy", past):
        await house.hears(Starting, epoch=8, care=Care(2, "closed"))
    started = read_records(house.logs)[-1]
    assert (started.fields["lost_epoch"], started.fields["machine_went_down"]) == (7, True)


async def test_a_life_that_writes_too_much_keeps_the_end_of_it(house: House) -> None:
    folder = house.logs / "worker-0-8000"
    async with house.supervisor("chatty", stderr_mb=1) as supervisor:
        await house.until_ready(1)
        await until(lambda: (folder / "1.stderr").stat().st_size < 1 << 20)
        assert supervisor._stderr.tail(1).splitlines()[-1].startswith("039999 ")
    assert b" bytes before this are left out]" in (folder / "1.stderr.before").read_bytes()


async def test_stderr_is_looked_at_again_however_fast_the_look_before_was(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def do_at_once(_scribe: Scribe, job: Callable[[], None]) -> bool:
        job()
        return True

    monkeypatch.setattr(Scribe, "submit", do_at_once)
    monkeypatch.setattr(StderrFolder, "cut", lambda _folder, epoch: looks.append(epoch))
    async with house.supervisor("healthy"):
        await until(lambda: len(looks) >= 3)


async def test_a_home_on_a_full_disk_costs_the_words_and_not_the_worker(house: House) -> None:
    house.logs.mkdir()
    (house.logs / FILE_NAME).symlink_to("/dev/full")
    (house.logs / EPOCH_FILE_NAME).mkdir()
    (house.home / "run" / "8000" / "worker.draft").mkdir()
    async with house.supervisor("exit:1,healthy"):
        await house.until_ready(2)
    await house.hears(Exited, epoch=1, cause="crash", detail="exit status 1: last words of 1")


@pytest.fixture
def full_disk() -> Iterator[IO[bytes]]:
    with Path("/dev/full").open("wb") as file:
        yield file


async def test_a_supervisor_whose_own_log_is_on_a_full_disk_goes_on(
    house: House, full_disk: IO[bytes]
) -> None:
    process = house.start_process("exit:1,exit:1,healthy", stderr=full_disk)
    await house.until_ready(3)
    process.kill()
    await ended(process)


# --- supervisors one after the other ----------------------------------------------------------------------


async def test_a_worker_stopped_when_its_supervisor_was_killed_is_ended_by_the_next(house: House) -> None:
    first = house.start_process("healthy")
    pid = await house.until_ready(1)
    os.kill(pid, signal.SIGSTOP)
    first.kill()
    await ended(first)
    assert not is_gone(pid)
    second = house.start_process("healthy")
    await house.until_ready(2)
    assert is_gone(pid)
    second.terminate()
    assert await ended(second) == 0
    newer, older = house.lives()
    assert (newer.cause, older.cause) == ("planned", None)
    assert older.detail == "its supervisor ended without a word"


async def test_a_second_supervisor_is_refused_in_clear_words(house: House) -> None:
    first = house.start_process("healthy")
    await house.until_ready(1)
    second = await asyncio.to_thread(
        subprocess.run,
        (sys.executable, "-m", "worker", "--folder", str(house.home)),
        env={**os.environ, "FOREBAY_HOME": str(house.home)},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert second.returncode == 2
    folder = RunFolder(house.home, 8000)
    words = f"python -m worker: another supervisor of a worker holds {folder.path}; is Forebay running?"
    assert second.stderr.splitlines()[-1] == words
    first.kill()
    await ended(first)
    await until(lambda: is_gone(house.pids()[0]))
    with SupervisorLock(folder):
        assert len(house.pids()) == 1


async def test_after_the_machine_went_down_under_it_the_next_worker_begins_on_rung_2(house: House) -> None:
    house.logs.mkdir()
    record = {
        "at": "2026-01-01T00:00:00+00:00",
        "boot": "before",
        "port": 8000,
        "kind": "spawned",
        "epoch": 5,
    }
    (house.logs / FILE_NAME).write_text(json.dumps(record) + "\n")
    process = house.start_process("healthy")
    await house.hears(Starting, care=Care(2, "closed"))
    process.terminate()
    await ended(process)
    newer, older = house.lives()
    assert (newer.rung, older.epoch) == (2, 5)
    assert older.detail == "the whole machine went down while it lived"


async def test_a_clock_that_was_set_back_brings_no_epoch_again(house: House) -> None:
    house.logs.mkdir()
    later = 9_000_000_000_000
    (house.logs / EPOCH_FILE_NAME).write_text(f"{later}\n")
    process = house.start_process("healthy")
    await house.until_ready(1)
    process.terminate()
    await ended(process)
    assert house.lives_file.read_text().split()[0] == str(later + 1)


async def test_the_worker_that_runs_is_noted(house: House) -> None:
    async with house.supervisor("healthy"):
        pid = await house.until_ready(1)
        file = RunFolder(house.home, 8000).worker_pid
        await until(file.exists)
        assert leftovers._read(file) == (pid, leftovers.birth(pid, "this boot"))


async def test_a_worker_noted_after_its_end_is_not_taken_for_who_has_its_number_then(house: House) -> None:
    disk_answers = threading.Event()
    supervisor = house.new_supervisor("healthy")
    supervisor._scribe.submit(disk_answers.wait)
    running = asyncio.create_task(supervisor.run())
    pid = await house.until_ready(1)
    birth = leftovers.birth(pid, "this boot")
    supervisor.stop()
    await until(lambda: is_gone(pid))
    disk_answers.set()
    await running
    assert leftovers._read(RunFolder(house.home, 8000).worker_pid) == (pid, birth)
