"""Signals that somebody sends to this process, told apart from faults of its own.

Both end a process with the same status, but only a fault says anything about what ran. So the signals are
blocked in every thread, and one thread waits for them: what arrives there was sent to the process. A fault
and abort() hit the thread that caused them and end the process at once, as if nothing were blocked: abort()
unblocks its own signal, and Linux lets a blocked fault through.

macOS doesn't: a thread whose fault is blocked runs into it for ever. So there the signals of faults aren't
blocked, and one that is sent looks like a fault; the rows it is blamed on clear themselves when they run
again. On macOS nothing of this was ever run.

The mask is inherited by threads, so it has to be there before the first one, and a preloaded OpenBLAS starts
threads before Python begins. So who starts a worker does it inside `blocked`; a worker that was started
otherwise starts itself once more. Programs that the worker has run (MLX on the CPU has kernels compiled)
inherit the mask as well; they end by themselves.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

from worker.launch import SENT_BY_ANOTHER

_SENT: Final = frozenset(
    {
        signal.SIGABRT,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
_FAULTS: Final = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}
)


def watched(platform: str) -> frozenset[signal.Signals]:
    """Return what is blocked and waited for on a platform; SIGTERM asks for a planned end."""
    faults: frozenset[signal.Signals] = frozenset() if platform == "darwin" else _FAULTS
    return _SENT | faults | {signal.SIGTERM}


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the signals in this thread meanwhile, so that a process started here begins with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched(sys.platform))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ensure_blocked() -> None:
    """Return if this process began with the signals blocked; else run its program anew, with them blocked."""
    numbers = watched(sys.platform)
    if not numbers <= signal.pthread_sigmask(signal.SIG_BLOCK, numbers):
        os.execv(sys.executable, (sys.executable, *sys.orig_argv[1:]))  # noqa: S606 (our own command line)


class ForeignSignals:
    """Waits for what is sent to this process. Make it in the main thread, after `ensure_blocked`.

    SIGTERM asks for the planned end: `on_end` is called, in the waiting thread, each time it comes. Any other
    signal ends the process as it would have, after words to stderr that it came from somebody else.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._numbers = watched(sys.platform)
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def _watch(self) -> None:
        while True:
            number, is_foreign = _next(self._numbers)
            if number == signal.SIGTERM:
                self._on_end()
                continue
            if is_foreign:
                # A full disk costs the words; without this thread no signal would ever arrive again.
                with contextlib.suppress(OSError):
                    os.write(2, f"ended by {signal.Signals(number).name}, {SENT_BY_ANOTHER}\n".encode())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            signal.raise_signal(number)


def _next(numbers: frozenset[signal.Signals]) -> tuple[int, bool]:
    """Wait for a signal; return it, and whether it came from another process as far as that can be known."""
    if sys.platform == "darwin":
        return signal.sigwait(numbers), True
    sent = signal.sigwaitinfo(numbers)
    return sent.si_signo, sent.si_pid != os.getpid()
