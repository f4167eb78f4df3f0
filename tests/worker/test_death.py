"""What is read out of an end: status, last words, and what was known of memory."""

import signal

import pytest

from worker.death import MemoryEvidence, death_of
from worker.launch import EXIT_CANNOT_LOAD, EXIT_LOOP_EXCEPTION, EXIT_PLANNED, SENT_BY_ANOTHER

PLENTY = MemoryEvidence()
SENT = f"ended by SIGSEGV, {SENT_BY_ANOTHER}"


@pytest.mark.parametrize(
    ("status", "stderr", "cause", "words"),
    [
        (-signal.SIGABRT, "x: kIOGPUCommandBufferCallbackErrorOutOfMemory\n", "memory", "OutOfMemory"),
        (-signal.SIGABRT, "[metal::malloc] Resource limit (499000)\n\nThread 1:\n", "memory", "499000"),
        (-signal.SIGABRT, "Assertion failed: ok\n", "memory", "presumably"),
        (-signal.SIGSEGV, "", "memory", "SIGSEGV, which the supervisor did not send; presumably"),
        (-signal.SIGKILL, "", "killed", "SIGKILL, which the supervisor did not send; memory was not short"),
        (-signal.SIGKILL, "std::bad_alloc\n", "memory", "bad_alloc"),
        (-signal.SIGBUS, "", "crash", "SIGBUS"),
        (-signal.SIGILL, "", "crash", "SIGILL"),
        (-signal.SIGFPE, "", "crash", "SIGFPE"),
        (-signal.SIGTERM, "bye\n", "killed", "SIGTERM, which the supervisor did not send: bye"),
        (-signal.SIGINT, "", "killed", "SIGINT"),
        (-signal.SIGHUP, "", "killed", "SIGHUP"),
        (-signal.SIGSEGV, f"dump\n{SENT}\n", "killed", SENT),
        (-signal.SIGSEGV, f"out of memory\n{SENT}\nThread 1:\n  frame\n  frame\n  frame\n", "killed", SENT),
        (-signal.SIGSEGV, f"a client wrote: {SENT}\n", "memory", "presumably"),
        (-signal.SIGBUS, "terminate: std::bad_alloc\n", "memory", "bad_alloc"),
        (-99, "", "crash", "signal 99"),
        (1, "MemoryError\n", "memory", "exit status 1: MemoryError"),
        (0, "", "crash", "exit status 0"),
        (EXIT_LOOP_EXCEPTION, "KeyError: 'x'\n", "loop_exception", "exit status 70: KeyError: 'x'"),
        (EXIT_LOOP_EXCEPTION, "RuntimeError: [malloc] Unable to allocate 9 bytes.\n", "memory", "Unable to"),
        (EXIT_PLANNED, "out of memory\n", "planned", "in order"),
        (EXIT_CANNOT_LOAD, "loading\n/models/x: no file\n\n", "cannot_load", "/models/x: no file"),
        (EXIT_CANNOT_LOAD, "/models/x doesn't fit: out of memory", "cannot_load", "/models/x doesn't fit"),
        (EXIT_CANNOT_LOAD, "", "cannot_load", "can't be loaded"),
    ],
)  # fmt: skip
def test_the_end_of_a_process_says_its_cause(status: int, stderr: str, cause: str, words: str) -> None:
    death = death_of(status, stderr, PLENTY)
    assert death.cause == cause
    assert words in death.detail


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (MemoryEvidence(available_share=0.02), "only 2.0% of the machine's memory was available"),
        (MemoryEvidence(oom_kills=1), "was killing for want of memory"),
        (MemoryEvidence(over_cap=True), "held memory that it couldn't give back"),
        (MemoryEvidence(budget_share=0.5), "cut its caches to 50%"),
    ],
)
def test_a_silent_sigkill_is_a_memory_death_when_memory_was_short(
    evidence: MemoryEvidence, words: str
) -> None:
    death = death_of(-signal.SIGKILL, "serving\n", evidence)
    assert death.cause == "memory"
    assert words in death.detail
    assert "serving" not in death.detail


@pytest.mark.parametrize("share", [0.05, 1.0])
def test_memory_that_is_merely_well_used_is_no_shortage(share: float) -> None:
    assert MemoryEvidence(available_share=share, budget_share=0.95).shortage == ""


def test_a_shortage_does_not_turn_an_order_or_an_exception_into_a_memory_death() -> None:
    short = MemoryEvidence(available_share=0.01)
    assert death_of(-signal.SIGTERM, "", short).cause == "killed"
    assert death_of(EXIT_LOOP_EXCEPTION, "KeyError\n", short).cause == "loop_exception"
    assert death_of(-signal.SIGKILL, f"{SENT}\n", short).cause == "killed"


def test_a_detail_is_one_short_line() -> None:
    detail = death_of(1, "\x1b[31m" + "x\0" * 5000, PLENTY).detail
    assert len(detail) <= 400
    assert detail.isprintable()


@pytest.mark.parametrize(
    "line",
    [
        '{"role": "worker", "event": "ready", "level": "info"}',
        "21:55:48 [info  ] ready  epoch=1",
    ],
)
def test_an_ordinary_line_of_the_log_is_no_last_word(line):
    death = death_of(-signal.SIGSEGV, f"terminate called\n{line}\n", PLENTY)
    assert death.detail.endswith("terminate called")
    assert line[:20] not in death_of(-signal.SIGSEGV, f"{line}\n", PLENTY).detail
