"""Signals that somebody sends, and faults of a process's own, in real processes with threads."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pytest

from worker.foreign_signals import watched
from worker.launch import EXIT_PLANNED, SENT_BY_ANOTHER
from worker.planned_end import PlannedEnd

PROCESS: Final = """
import ctypes, os, signal, sys, threading, time
from worker.foreign_signals import ForeignSignals, ensure_blocked
ensure_blocked()
ForeignSignals(lambda: os._exit(75))
def terminate():
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()
def beyond_the_end():
    import mmap, tempfile
    file = tempfile.TemporaryFile()
    file.truncate(mmap.PAGESIZE)
    memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    file.truncate(0)
    memory[0]
DEEDS = {
    "wait": lambda: time.sleep(1000),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "abort in C": lambda: ctypes.CDLL(None).abort(),
    "terminate": terminate,
    "bus error": beyond_the_end,
    "signal to itself": lambda: os.kill(os.getpid(), signal.SIGSEGV) or time.sleep(1000),
}
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("ready", flush=True)
if sys.argv[2] == "thread":
    threading.Thread(target=DEEDS[sys.argv[1]], daemon=True).start()
    time.sleep(1000)
DEEDS[sys.argv[1]]()
"""
LINUX: Final = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere blocked faults are undefined")


@contextmanager
def running(
    deed: str, thread: str = "main", stderr: int | IO[bytes] = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    command = (sys.executable, "-c", PROCESS, deed, thread)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@LINUX
@pytest.mark.parametrize(
    ("deed", "number", "thread"),
    [
        ("segfault", signal.SIGSEGV, "main"),
        ("segfault", signal.SIGSEGV, "thread"),
        ("bus error", signal.SIGBUS, "thread"),
        ("abort", signal.SIGABRT, "main"),
        ("abort in C", signal.SIGABRT, "thread"),
        ("terminate", signal.SIGABRT, "main"),
        ("terminate", signal.SIGABRT, "thread"),
        ("signal to itself", signal.SIGSEGV, "main"),
    ],
)
def test_a_fault_of_its_own_ends_a_process_at_once_and_is_not_said_to_be_sent(
    deed: str, number: int, thread: str
) -> None:
    with running(deed, thread) as process:
        _, words = process.communicate(timeout=60)
    assert process.returncode == -number
    assert SENT_BY_ANOTHER not in words.decode()


@pytest.mark.parametrize("number", sorted(watched(sys.platform) - {signal.SIGTERM}))
def test_a_signal_from_outside_ends_a_process_as_ever_and_says_so(number: signal.Signals) -> None:
    with running("wait") as process:
        process.send_signal(number)
        _, words = process.communicate(timeout=60)
    assert process.returncode == -number
    assert words.decode() == f"ended by {number.name}, {SENT_BY_ANOTHER}\n"


@LINUX
def test_a_signal_ends_a_process_whose_words_find_no_room() -> None:
    with Path("/dev/full").open("wb") as full, running("wait", stderr=full) as process:
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == -signal.SIGHUP


def test_what_asks_for_the_end_only_calls_who_decides_about_it() -> None:
    with running("wait") as process:
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate(timeout=60)
    assert (process.returncode, words) == (EXIT_PLANNED, b"")


def test_on_macos_faults_are_left_alone() -> None:
    """There a thread whose blocked fault is let through by nobody would run into it for ever."""
    assert watched("linux") - watched("darwin") == {
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
    assert {signal.SIGTERM, signal.SIGABRT} <= watched("darwin")


# --- the planned end --------------------------------------------------------------------------------------


@pytest.fixture
def exits() -> list[str]:
    return []


def test_an_end_that_is_asked_for_before_anything_is_served_comes_at_once(exits: list[str]) -> None:
    PlannedEnd(lambda: exits.append("now")).ask()
    assert exits == ["now"]


def test_an_end_that_is_asked_for_while_serving_is_left_to_the_loop(exits: list[str]) -> None:
    end = PlannedEnd(lambda: exits.append("now"))
    end.serve()
    assert not end.asked
    end.ask()
    assert end.asked
    assert exits == []


def test_an_end_that_is_asked_for_twice_comes_at_once(exits: list[str]) -> None:
    end = PlannedEnd(lambda: exits.append("now"))
    end.serve()
    end.ask()
    end.ask()
    assert exits == ["now"]
