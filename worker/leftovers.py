"""A worker process that outlived its supervisor: it is found by a note in the run folder, and ended.

A worker ends with its supervisor by itself, unless it was stopped (SIGSTOP) just then: it would wake up one
day and hold a model's memory beside the next worker. A process is told from a later one with the same number
by the moment of its birth.
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

import psutil

_WAIT_S: Final = 5.0
_BETWEEN_LOOKS_S: Final = 0.02


def note(file: Path, pid: int, its_birth: str | None) -> None:
    """Write down which process was started, and when. Raises OSError."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps({"pid": pid, "birth": its_birth}), "utf-8")
    draft.replace(file)


def end_leftover(file: Path, boot: str) -> int | None:
    """End the process that was noted, if it still runs; return its number if there was one."""
    noted = _read(file)
    if noted is None or birth(noted[0], boot) != noted[1]:
        return None
    pid, its_birth = noted
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _WAIT_S
    while birth(pid, boot) == its_birth and time.monotonic() < deadline:
        time.sleep(_BETWEEN_LOOKS_S)
    return pid


def birth(pid: int, boot: str) -> str | None:
    """Return when a process was born, as the system tells it; None if there is none, or only its remains."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        moment = _ticks(pid) if sys.platform == "linux" else f"{process.create_time():.6f}"
    except (psutil.Error, OSError, ValueError, IndexError):
        return None
    return f"{boot} {moment}"


def _ticks(pid: int) -> str:
    """Return a process's start in ticks since the boot: the wall clock may be set meanwhile.

    It is field 22 of the process's `stat`, the second of which, in parentheses, may hold anything.
    """
    return Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()[19]


def _read(file: Path) -> tuple[int, str] | None:
    try:
        noted = json.loads(file.read_bytes())
        pid, its_birth = noted["pid"], noted["birth"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(pid, int) or not isinstance(its_birth, str) or pid <= 1 or pid == os.getpid():
        return None
    return pid, its_birth
