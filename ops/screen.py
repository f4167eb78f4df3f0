"""What takes time is shown: a live line on a terminal, plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from shared.clock import Clock, SystemClock

_QUIET_S: Final = 2.0
_MEGABYTE: Final = 1_000_000


class Step(Protocol):
    """One thing that takes time. `tick` is called often; `done_bytes` or `note` is how far it has come."""

    def tick(self, done_bytes: int | None = None, *, note: str = "") -> None: ...


class Screen:
    """The terminal of the person who waits; stderr by default, so that stdout stays for results."""

    def __init__(self, console: Console | None = None, clock: Clock | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock or SystemClock()

    def say(self, line: str) -> None:
        """Print one line as it is, without breaking it."""
        self._console.print(line, markup=False, soft_wrap=True)

    @contextmanager
    def step(self, what: str, total_bytes: int | None = None) -> Iterator[Step]:
        """Show `what` until the block ends, with a bar if the total is known."""
        if self._console.is_terminal:
            with _progress(self._console, with_bar=total_bytes is not None) as progress:
                task = progress.add_task(what, total=total_bytes)
                yield _LiveStep(progress, task, what)
                # Reached only if the block ended well: a failure keeps its spinner, not a tick.
                progress.update(task, total=total_bytes or 1, completed=total_bytes or 1)
        else:
            yield _PlainStep(self, what, total_bytes, self._clock)


def _progress(console: Console, *, with_bar: bool) -> Progress:
    columns: list[ProgressColumn] = [
        SpinnerColumn(finished_text="✓"),
        TextColumn("{task.description}", markup=False),
    ]
    if with_bar:
        columns += [BarColumn(bar_width=20), DownloadColumn()]
    return Progress(*columns, TimeElapsedColumn(), console=console)


class _LiveStep:
    """A line that rich redraws by itself; a tick only moves its bar, or changes the note behind its name."""

    def __init__(self, progress: Progress, task: TaskID, what: str) -> None:
        self._progress = progress
        self._task = task
        self._what = what

    def tick(self, done_bytes: int | None = None, *, note: str = "") -> None:
        if done_bytes is not None:
            self._progress.update(self._task, completed=done_bytes)
        if note:
            self._progress.update(self._task, description=f"{self._what}: {note}")


class _PlainStep:
    """A line at the start, and one more every two seconds, for a log or a pipe."""

    def __init__(self, screen: Screen, what: str, total_bytes: int | None, clock: Clock) -> None:
        self._screen = screen
        self._what = what
        self._total_bytes = total_bytes
        self._clock = clock
        self._began_s = self._said_s = clock.now()
        screen.say(f"{what} …")

    def tick(self, done_bytes: int | None = None, *, note: str = "") -> None:
        now_s = self._clock.now()
        if now_s - self._said_s < _QUIET_S:
            return
        self._said_s = now_s
        self._screen.say(f"{self._what}: {self._how_far(done_bytes, note)}{now_s - self._began_s:.0f} s")

    def _how_far(self, done_bytes: int | None, note: str) -> str:
        if done_bytes is None or self._total_bytes is None:
            return f"{note}, " if note else ""
        return f"{done_bytes // _MEGABYTE} of {self._total_bytes // _MEGABYTE} MB, "
