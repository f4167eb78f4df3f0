"""A worker that outlived its supervisor is ended; any other process is left alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker import leftovers
from worker.boot import boot_identity

BOOT = "this boot"


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "worker.pid"


def test_a_process_that_was_noted_is_ended_even_if_it_is_stopped(
    file: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    leftovers.note(file, sleeper.pid, leftovers.birth(sleeper.pid, BOOT))
    sleeper.send_signal(signal.SIGSTOP)
    assert leftovers.end_leftover(file, BOOT) == sleeper.pid
    assert sleeper.wait(20) == -signal.SIGKILL


def test_a_process_that_is_gone_is_no_leftover(file: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    leftovers.note(file, sleeper.pid, leftovers.birth(sleeper.pid, BOOT))
    sleeper.kill()
    sleeper.wait()
    assert leftovers.end_leftover(file, BOOT) is None


def test_the_remains_of_a_process_are_no_leftover(file: Path, sleeper: "subprocess.Popen[bytes]") -> None:
    leftovers.note(file, sleeper.pid, leftovers.birth(sleeper.pid, BOOT))
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert leftovers.end_leftover(file, BOOT) is None


def test_a_process_of_the_same_number_and_another_birth_is_left_alone(
    file: Path, sleeper: "subprocess.Popen[bytes]"
) -> None:
    file.write_text(json.dumps({"pid": sleeper.pid, "birth": f"{BOOT} 12345"}))
    assert leftovers.end_leftover(file, BOOT) is None
    leftovers.note(file, sleeper.pid, leftovers.birth(sleeper.pid, "another boot"))
    assert leftovers.end_leftover(file, BOOT) is None
    assert sleeper.poll() is None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "5", "\xff", '{"pid": "x", "birth": "y"}', '{"pid": 1, "birth": null}']
)
def test_a_note_that_makes_no_sense_ends_nobody(file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    assert leftovers.end_leftover(file, BOOT) is None


@pytest.mark.parametrize("pid", [0, -1, 1, os.getpid()], ids=["0", "-1", "1", "ourselves"])
def test_no_note_ends_ourselves_or_everybody(file: Path, pid: int) -> None:
    file.write_text(json.dumps({"pid": pid, "birth": leftovers.birth(abs(pid), BOOT)}))
    assert leftovers.end_leftover(file, BOOT) is None


def test_no_note_is_no_leftover(file: Path) -> None:
    assert leftovers.end_leftover(file, BOOT) is None


def test_a_birth_is_the_same_each_time_it_is_asked_for(sleeper: "subprocess.Popen[bytes]") -> None:
    birth = leftovers.birth(sleeper.pid, BOOT)
    assert birth is not None
    assert birth == leftovers.birth(sleeper.pid, BOOT) != leftovers.birth(os.getpid(), BOOT)


def test_the_identity_of_a_boot_is_one_line_that_stays() -> None:
    assert boot_identity() == boot_identity()
    assert boot_identity().isprintable()
    assert len(boot_identity()) > 5
