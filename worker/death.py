"""Why a worker process died: exit status, signal and last words, read as one of the known causes."""

import re
import signal
from dataclasses import dataclass
from typing import Final

from shared.messages import DeathCause
from worker.launch import EXIT_CANNOT_LOAD, EXIT_LOOP_EXCEPTION, EXIT_PLANNED, SENT_BY_ANOTHER

_DETAIL_CHARS_MAX: Final = 400
_MEMORY_SIGNALS: Final = (signal.SIGABRT, signal.SIGSEGV)
# Nobody gets these for a fault of his own.
_SENT_SIGNALS: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
_LOG_LINE: Final = re.compile(r"\S+ \[(debug|info|warning|error) *\]")
_AVAILABLE_SHARE_SHORT: Final = 0.05
_BUDGET_SHARE_SHORT: Final = 0.9
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


@dataclass(frozen=True, slots=True)
class MemoryEvidence:
    """What was known of memory just before a death.

    `available_share` is what the system still had to give, of all it has; `oom_kills` counts what the system
    killed for want of memory in the last moments. `budget_share` is what the worker allowed itself for
    caches, of the most it ever did in this life; `over_cap` says that it held too much and wanted to be
    replaced.
    """

    available_share: float = 1.0
    oom_kills: int = 0
    budget_share: float = 1.0
    over_cap: bool = False

    @property
    def shortage(self) -> str:
        """What speaks for a shortage, in words; empty if nothing does."""
        if self.oom_kills > 0:
            return "the system was killing for want of memory"
        if self.available_share < _AVAILABLE_SHARE_SHORT:
            return f"only {self.available_share:.1%} of the machine's memory was available"
        if self.over_cap:
            return "the worker held memory that it couldn't give back"
        if self.budget_share < _BUDGET_SHARE_SHORT:
            return f"the worker had cut its caches to {self.budget_share:.0%} for want of memory"
        return ""


def death_of(status: int, stderr_tail: str, evidence: MemoryEvidence) -> Death:
    """Classify an end that the supervisor did not bring about.

    What the worker says by its own status or last words counts first, but a loop exception about memory is a
    memory death: MLX raises some allocation failures and aborts on others. SIGABRT and SIGSEGV count as
    memory without a word, too: Metal aborts, and an exhausted address space segfaults. SIGKILL counts as
    memory if something speaks for a shortage, for the system kills silently; else somebody killed it. The
    detail says when the cause is a presumption.
    """
    lines = [line.strip() for line in stderr_tail.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if not _is_of_log(line)), "")
    if status == EXIT_PLANNED:
        return Death("planned", "left on its own account, in order")
    if status == EXIT_CANNOT_LOAD:
        return Death("cannot_load", one_line(last or "the model can't be loaded; stderr doesn't say why"))
    sent = next((line for line in reversed(lines) if _names_a_sender(line)), None)
    if sent is not None:
        return Death("killed", one_line(sent))
    how = _ending(status)
    memory_line = next((line for line in reversed(lines) if speaks_of_memory(line)), None)
    if memory_line is not None:
        return Death("memory", one_line(f"{how}: {memory_line}"))
    return _of_signal(-status, how, last, evidence.shortage) or Death(
        "loop_exception" if status == EXIT_LOOP_EXCEPTION else "crash", one_line(_join(how, last))
    )


def _of_signal(number: int, how: str, last: str, shortage: str) -> Death | None:
    if number in _MEMORY_SIGNALS:
        why = shortage or "presumably for want of memory, though nothing says so"
        return Death("memory", one_line(_join(f"{how}; {why}", last)))
    if number == signal.SIGKILL:
        # Nobody can say anything about his own SIGKILL: the last line on stderr is of something else.
        return Death("memory" if shortage else "killed", f"{how}; {shortage or 'memory was not short'}")
    if number in _SENT_SIGNALS:
        return Death("killed", one_line(_join(how, last)))
    return None


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"ended by {name}, which the supervisor did not send"


def _is_of_log(line: str) -> bool:
    """Whether a line is an ordinary one of the log, as shared.logs writes it in either format."""
    return line.startswith("{") or _LOG_LINE.match(line) is not None


def _names_a_sender(line: str) -> bool:
    return line.startswith("ended by SIG") and line.endswith(SENT_BY_ANOTHER)


def speaks_of_memory(line: str) -> bool:
    """Whether words say that memory, or Metal's count of buffers, is used up."""
    lowered = line.lower()
    return any(words in lowered for words in _MEMORY_WORDS)


def _join(how: str, last_line: str) -> str:
    return f"{how}: {last_line}" if last_line else how


def one_line(detail: str) -> str:
    """Return a detail fit for one line of a log or of an error body."""
    return "".join(char if char.isprintable() else " " for char in detail)[:_DETAIL_CHARS_MAX]
