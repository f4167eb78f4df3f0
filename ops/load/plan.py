"""What every scenario is given, and what it gives back."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from rich import box
from rich.table import Table

from ops.load.progress import Progress
from shared.model_folder import ModelFolder

Figures = dict[str, Any]
Measured = TypeVar("Measured")


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `seconds` and `repeats` are of each arm, unset where the scenario's own are wanted."""

    folder: ModelFolder
    scratch: Path
    seed: int
    progress: Progress
    seconds: float | None = None
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """`measure` starts what it needs, ends it, and returns what JSON can hold; `table` shows just that."""

    name: str
    measure: Callable[[Plan], Figures]
    table: Callable[[Figures], Table]


def run(measuring: Coroutine[Any, Any, Measured]) -> Measured:
    """Run on uvloop, as the proxy does: the client's own share of every time is small."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measuring)


def rows_table(title: str, headings: tuple[str, ...], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table whose first column is words and whose others are numbers."""
    table = Table(title=title, box=box.SIMPLE)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def shown(value: float | None, digits: int = 0, unit: str = "") -> str:
    """Return a number as a cell; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def shown_ms(seconds: float | None, digits: int = 0) -> str:
    return shown(None if seconds is None else 1000 * seconds, digits, " ms")
