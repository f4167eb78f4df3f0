"""Says on stderr how far a run is, every second and a half, also while the program waits for others."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from rich.console import Console

_BETWEEN_S: Final = 1.5
_JOIN_S: Final = 5.0

Started = TypeVar("Started")


class Progress:
    """One line a moment, from a thread of its own: event loops and processes that start are waited for."""

    def __init__(self, console: Console | None = None, between_s: float = _BETWEEN_S) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._between_s = between_s

    @contextlib.contextmanager
    def phase(
        self, what: str, seconds: float | None = None, told: Callable[[], str] = lambda: ""
    ) -> Iterator[None]:
        """Say what takes time while the block runs; `seconds` is how long it should, `told` adds to it."""
        over = threading.Event()
        began = time.monotonic()

        def say_now_and_then() -> None:
            self._say(what)
            while not over.wait(self._between_s):
                elapsed_s = time.monotonic() - began
                of = f" of {seconds:.0f}" if seconds is not None else ""
                self._say(", ".join(filter(None, (f"{what}: {elapsed_s:.0f}{of} s", told()))))

        sayer = threading.Thread(target=say_now_and_then, name="progress", daemon=True)
        sayer.start()
        try:
            yield
        finally:
            over.set()
            sayer.join(_JOIN_S)

    @contextlib.contextmanager
    def around(self, what: str, context: contextlib.AbstractContextManager[Started]) -> Iterator[Started]:
        """Enter and leave a context that takes its time both ways: processes start, and finish."""
        with contextlib.ExitStack() as stack:
            with self.phase(f"{what} starts"):
                started = stack.enter_context(context)
            try:
                yield started
            finally:
                with self.phase(f"{what} ends"):
                    stack.close()

    def _say(self, line: str) -> None:
        self._console.print(line, style="dim", markup=False, soft_wrap=True)
