"""Why a worker process died: exit status, signal and last words, read as one of the known causes."""

import signal
from dataclasses import dataclass
from typing import Final

from shared.messages import DeathCause
from worker.launch import EXIT_CANNOT_LOAD, EXIT_LOOP_EXCEPTION, EXIT_PLANNED

_DETAIL_CHARS_MAX: Final = 400
_MEMORY_SIGNALS: Final = (signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL)
# What MLX, Metal, CUDA, the C++ library and Python say when memory (or Metal's count of buffers) is used up.
_MEMORY_WORDS: Final = (
    "resource limit",
    "unable to allocate",
    "attempting to allocate",
    "cannot allocate memory",
    "out of memory",
    "outofmemory",
    "insufficient memory",
    "memoryerror",
    "bad_alloc",
)


@dataclass(frozen=True, slots=True)
class Death:
    """Why a process ended, as one of the known causes and in words."""

    cause: DeathCause
    detail: str


def death_of(status: int, stderr_tail: str) -> Death:
    """Classify an end that the supervisor did not bring about (design §8).

    What the worker says by its own status counts first, but a loop exception about memory is a memory death:
    MLX raises some allocation failures and aborts on others. SIGABRT, SIGSEGV and SIGKILL count as memory
    without a word on stderr too: Metal aborts, an exhausted address space segfaults, and the system kills
    silently. The detail says when that is a presumption.
    """
    lines = [line.strip() for line in stderr_tail.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if status == EXIT_PLANNED:
        return Death("planned", "left for a planned recycle")
    if status == EXIT_CANNOT_LOAD:
        return Death("cannot_load", one_line(last or "the model can't be loaded; stderr doesn't say why"))
    how = _ending(status)
    memory_line = next((line for line in reversed(lines) if _speaks_of_memory(line)), None)
    if memory_line is not None:
        return Death("memory", one_line(f"{how}: {memory_line}"))
    if -status in _MEMORY_SIGNALS:
        presumed = f"{how}, presumably for want of memory, though stderr doesn't say so"
        return Death("memory", one_line(_join(presumed, last)))
    cause: DeathCause = "loop_exception" if status == EXIT_LOOP_EXCEPTION else "crash"
    return Death(cause, one_line(_join(how, last)))


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"ended by {name}, which the supervisor did not send"


def _speaks_of_memory(line: str) -> bool:
    lowered = line.lower()
    return any(words in lowered for words in _MEMORY_WORDS)


def _join(how: str, last_line: str) -> str:
    return f"{how}: {last_line}" if last_line else how


def one_line(detail: str) -> str:
    """Return a detail fit for one line of a log or of an error body."""
    return "".join(char if char.isprintable() else " " for char in detail)[:_DETAIL_CHARS_MAX]
