"""What goes wrong in a false worker process, and when: the plan in its arguments, the points it counts."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from worker.launch import EXIT_CANNOT_LOAD

# The device stands still, or the process does, until somebody ends it.
_FOR_EVER_S: Final = 3600.0
_PAUSE_S: Final = 0.3
# What a frame gets to leave the process in, once it was handed over.
_LEAVES_S: Final = 0.005


# Its name, and which of this name it is in a life, from 1.
Point = tuple[str, int]


@dataclass(frozen=True)
class Plan:
    """What is to go wrong.

    `deeds` maps a life, from 1, to the point at which it does its deed. `poison` maps a character to what
    happens in the call of the engine, `poison_in`, that has a row whose prompt contains it, until the file
    `antidote` is there. While the file `broken` exists, loading ends in `broken_deed`. `fills_stderr` has
    each life write to stderr until its file may not grow any more.
    """

    deeds: Mapping[int, tuple[Point, str]] = field(default_factory=dict)
    poison: Mapping[str, str] = field(default_factory=dict)
    poison_in: str = "launch"
    antidote: str = "/dev/null/nothing"
    broken: str = ""
    broken_deed: str = "exit"
    fills_stderr: bool = False
    step_ms: float = 2.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        said = json.loads(text)
        said["deeds"] = {int(life): (tuple(at), deed) for life, (at, deed) in said["deeds"].items()}
        return cls(**said)


class Points:
    """Counts by name the points that one life passes, and does the planned deed at one of them.

    Each point is written down before anything happens there: `diary` gets its name, a line each.
    """

    def __init__(self, plan: Plan, life: int, diary: Path) -> None:
        self._at, self._deed = plan.deeds.get(life, (("", 0), ""))
        self._diary = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._passed: Counter[str] = Counter()
        self.armed = False

    def passed(self, name: str) -> None:
        if not self.armed:
            return
        self._passed[name] += 1
        os.write(self._diary, f"{name}\n".encode())
        if (name, self._passed[name]) == self._at:
            do(self._deed)

    def left(self, name: str) -> None:
        """Pass the point behind a frame that was handed over, and the one when it has left the process."""
        self.passed(f"{name} handed over")
        if self._at[0] == f"{name} left":
            time.sleep(_LEAVES_S)
        self.passed(f"{name} left")


def do(deed: str) -> None:  # noqa: C901 (one case for each deed)
    """Let it happen, in this process, now."""
    pid = os.getpid()
    match deed.partition(":"):
        case "kill", _, _:
            os.kill(pid, signal.SIGKILL)
        case "abort", _, _:
            os.abort()
        case "fault", _, _:
            ctypes.string_at(0)
        case "sent", _, number:
            subprocess.run(("kill", f"-{number}", str(pid)), check=True)
            time.sleep(_FOR_EVER_S)
        case "stop", _, _:
            os.kill(pid, signal.SIGSTOP)
        case "pause", _, _:
            subprocess.Popen(("/bin/sh", "-c", f"sleep {_PAUSE_S}; kill -CONT {pid}"))
            os.kill(pid, signal.SIGSTOP)
        case "raise", _, _:
            raise RuntimeError("the false device is gone")
        case "memory", _, _:
            raise MemoryError("[metal::malloc] Unable to allocate 1 bytes")
        case "exit", _, _:
            os._exit(1)
        case "cannot_load", _, _:
            os.write(2, b"the folder has no weights\n")
            os._exit(EXIT_CANNOT_LOAD)
        case "wedge", _, _:
            time.sleep(_FOR_EVER_S)
        case _:
            raise ValueError(deed)


def fill_stderr() -> None:
    """Write until nothing more can be written."""
    with contextlib.suppress(OSError):
        while True:
            os.write(2, b"something that nobody reads\n" * 1024)
