"""How far a measurement is: a bar on a terminal, a line every two seconds elsewhere."""

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shared.clock import Clock, SystemClock

_QUIET_S: Final = 2.0
_TITLE_COLUMNS: Final = 38


class Bar:
    """All requests of a run, as a bar. `begin` names what is done now, `tick` says how much of it is."""

    def __init__(self, total: int, console: Console | None = None, clock: Clock | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock or SystemClock()
        self._total = total
        self._before = 0
        self._title = ""
        self._said_s = self._clock.now() - _QUIET_S
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False, soft_wrap=True)

    def begin(self, title: str) -> None:
        self._title = title
        self.tick(0)

    def tick(self, done: int) -> None:
        """Say how many requests of what was begun have ended."""
        count = min(self._total, self._before + done)
        shown = self._title if len(self._title) <= _TITLE_COLUMNS else f"{self._title[: _TITLE_COLUMNS - 1]}…"
        self._progress.update(self._task, description=f"{shown:<{_TITLE_COLUMNS}}", completed=count)
        if not self._console.is_terminal and self._clock.now() - self._said_s >= _QUIET_S:
            self._said_s = self._clock.now()
            self.say(f"{self._title}: {count} of {self._total} requests")

    def end(self, done: int) -> None:
        """Count what was begun as done, with so many requests."""
        self._before += done
        self.tick(0)
