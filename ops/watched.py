"""Another program run to its end: its words go to a log, and the one who waits sees that it goes on."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from shared.errors import ModelError

_TICK_S: Final = 0.1


def run_watched(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str], tick: Callable[[], None]
) -> None:
    """Run `command`, calling `tick` ten times a second; ModelError with its last words if it fails.

    The program never outlives this call: an interrupt here ends it.
    """
    with (
        log.open("ab") as output,
        subprocess.Popen(  # noqa: S603 (the callers' own fixed commands)
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        ) as program,
    ):
        try:
            while not _ended(program):
                tick()
        finally:
            if program.returncode is None:
                program.kill()
    if program.returncode != 0:
        raise ModelError(
            f"`{' '.join(command[2:5])} …` failed: {last_line(log) or 'it said nothing'} (all of it: {log})"
        )


def _ended(program: "subprocess.Popen[bytes]") -> bool:
    try:
        program.wait(_TICK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def last_line(log: Path) -> str:
    """Return the last line of a log that says anything."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
