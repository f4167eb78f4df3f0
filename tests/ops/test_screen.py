"""What a waiting person sees, and what a program that failed leaves in words."""

import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ops.screen import Screen
from ops.watched import run_watched
from shared.clock import FalseClock
from shared.config import child_environment
from shared.errors import ModelError


def test_a_pipe_gets_a_line_at_the_start_and_one_every_two_seconds() -> None:
    out, clock = StringIO(), FalseClock()
    with Screen(Console(file=out), clock).step("Downloading", 93_000_000) as step:
        step.tick(1)
        clock.advance(2)
        step.tick(45_000_000)
        step.tick(46_000_000)
    assert out.getvalue().splitlines() == ["Downloading …", "Downloading: 45 of 93 MB, 2 s"]


def test_a_note_says_how_far_it_is_in_a_pipe_and_on_a_terminal() -> None:
    out, clock = StringIO(), FalseClock()
    with Screen(Console(file=out), clock).step("Draining") as step:
        step.tick(note="not shown")
        clock.advance(2)
        step.tick(note="2 answers live")
    assert out.getvalue().splitlines() == ["Draining …", "Draining: 2 answers live, 2 s"]
    live = StringIO()
    with Screen(Console(file=live, force_terminal=True, width=80)).step("Draining") as step:
        step.tick(note="[2] answers live")
    assert "Draining: [2] answers live" in live.getvalue()


def test_a_terminal_gets_a_tick_for_what_ended_well_and_none_for_what_failed() -> None:
    out = StringIO()
    screen = Screen(Console(file=out, force_terminal=True, width=80))
    with screen.step("Good"):
        pass
    with pytest.raises(ModelError), screen.step("Bad"):
        raise ModelError("no")
    good, bad = out.getvalue().split("Bad", maxsplit=1)
    assert "✓" in good
    assert "✓" not in bad


def test_a_long_line_is_not_broken() -> None:
    out = StringIO()
    Screen(Console(file=out, width=20)).say("x" * 100)
    assert out.getvalue() == "x" * 100 + "\n"


def run_code(code: str, log: Path) -> int:
    ticks: list[int] = []
    run_watched(
        (sys.executable, "-c", code),
        log=log,
        environment=child_environment(),
        tick=lambda: ticks.append(1),
    )
    return len(ticks)


def test_a_program_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"failed: no such package \(all of it: "):
        run_code("import sys; print('looking'); sys.exit('no such package\\n')", tmp_path / "log")


def test_a_program_that_takes_time_is_ticked(tmp_path: Path) -> None:
    assert run_code("import time; time.sleep(0.5)", tmp_path / "log") > 0


def test_an_interrupt_ends_the_program_with_its_caller(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    forever = (sys.executable, "-c", "import time; time.sleep(3600)")
    with pytest.raises(KeyboardInterrupt):
        run_watched(forever, log=tmp_path / "log", environment=child_environment(), tick=interrupt)
