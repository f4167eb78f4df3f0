"""`forebay journal`: the last lives of the worker, from its supervisor's journal, in words or as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops.foreground_lock import is_held
from ops.wording import count, printable, size, span
from shared.config import Settings
from shared.errors import SettingsError
from shared.messages import DeathCause, ManifestRow
from shared.readings import MemoryReading
from shared.run_folder import RunFolder
from worker.journal import Life, folder_of, read_lives

_STDERR_LINES: Final = 5
_ROWS_SHOWN: Final = 8

_CAUSES: Final[dict[DeathCause, str]] = {
    "memory": "died for want of memory",
    "crash": "crashed",
    "loop_exception": "ended by an exception in its loop",
    "hang": "hung, and was killed by its supervisor",
    "killed": "was killed from outside",
    "stuck_load": "got stuck while loading, and was killed by its supervisor",
    "planned": "was replaced on purpose",
    "cannot_load": "could not load the model",
}
_LIVES: Final = "lives"
_STYLES: Final = {_LIVES: "green", _CAUSES["planned"]: "cyan"}


def last_lives(settings: Settings, count: int) -> list[Life]:
    """Return the last lives of this home's and port's worker, the newest at the end."""
    folder = folder_of(settings.home_folder)
    try:
        return read_lives(folder, count, port=settings.port)[::-1]
    except OSError as problem:
        raise SettingsError(f"the journal in {folder} can't be read: {problem.strerror}") from problem


def lives_now(settings: Settings) -> bool:
    """Return whether a supervisor of this home and port lives, and so perhaps the newest worker."""
    return is_held(RunFolder(settings.home_folder, settings.port).supervisor_lock)


@dataclass(frozen=True, slots=True)
class View:
    """How to show lives: with all of their last words or the end of them, at which moment, and who lives."""

    now: datetime
    living_epoch: int | None = None
    whole_stderr: bool = False


def show(lives: Sequence[Life], console: Console, view: View) -> None:
    """Print a block for each life, in the order given: broken to fit a terminal, and not at all in a pipe."""
    for number, life in enumerate(lives):
        if number:
            console.print()
        console.print(_heading(life, view), soft_wrap=True)
        if console.is_terminal:
            console.print(_block(life, view))
        else:
            for label, words in _facts(life, view):
                console.print(Text(f"  {label:<7} {words}".rstrip()), soft_wrap=True)


def as_json(life: Life) -> str:
    """Return one line of JSON with all that is known of a life."""
    return json.dumps(asdict(life), default=_moment, ensure_ascii=False)


def _moment(value: object) -> str:
    assert isinstance(value, datetime), "JSON has a form for everything else"
    return value.astimezone(UTC).isoformat()


def _heading(life: Life, view: View) -> Text:
    began = _local(life.spawned_at) if life.spawned_at else "an unknown time"
    heading = Text(f"{began}  worker of epoch {life.epoch} ")
    heading.stylize("bold")
    fate = _fate(life, view)
    return heading.append(fate, style=f"bold {_STYLES.get(fate, 'red')}")


def _fate(life: Life, view: View) -> str:
    if life.cause is not None:
        return _CAUSES[life.cause]
    return _LIVES if life.epoch == view.living_epoch and not life.detail else "ended, and nobody saw how"


def _block(life: Life, view: View) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=9, style="dim")
    table.add_column(overflow="fold")
    for label, words in _facts(life, view):
        table.add_row(f"  {label}", Text(words))
    return table


def _facts(life: Life, view: View) -> Iterator[tuple[str, str]]:
    """Yield a label and words for each thing that is known. Without a label, words go on with the last."""
    yield "lived", _lived(life, view)
    if life.detail:
        yield "detail", printable(life.detail)
    if life.phase is not None or life.rows:
        yield "ran", _doing(life)
    for row in life.rows[:_ROWS_SHOWN]:
        yield "", _row(row)
    if len(life.rows) > _ROWS_SHOWN:
        yield "", f"and {len(life.rows) - _ROWS_SHOWN} more (--json has all)"
    yield "gave", f"{count(life.tokens, 'token')}, {count(life.answers, 'whole answer')}"
    if life.memory is not None and life.memory.footprint_bytes:
        yield "memory", _memory(life.memory)
    if life.ended_at is not None:
        yield "then", f"rung {life.rung}, breaker {life.breaker.replace('_', ' ')}"
    yield from _stderr(life, whole=view.whole_stderr)


def _lived(life: Life, view: View) -> str:
    lived = "nobody saw for how long"
    if life.lived_s is not None:
        lived = span(life.lived_s)
    elif _fate(life, view) == _LIVES and life.spawned_at is not None:
        lived = f"{span((view.now - life.spawned_at).total_seconds())} until now"
    if life.ready_after_s is not None:
        return f"{lived}, ready after {life.ready_after_s:.1f} s"
    return f"{lived}, never ready" if life.ended_at else lived


def _doing(life: Life) -> str:
    rows = count(len(life.rows), "row") if life.rows else "no rows"
    return f"{rows}, {life.phase or 'doing what is unknown'}, at step {life.step}"


def _row(row: ManifestRow) -> str:
    what = "prefilling before" if row.prefilling else "about to make"
    again = f", attempt {row.attempt}" if row.attempt > 1 else ""
    return f"{printable(row.sequence)}: {what} token {row.index}{again}"


def _memory(memory: MemoryReading) -> str:
    parts = {
        "active": memory.active_bytes,
        "cached": memory.cache_bytes,
        "peak": memory.peak_bytes,
        "footprint": memory.footprint_bytes,
    }
    return ", ".join(f"{size(held)} {name}" for name, held in parts.items())


def _stderr(life: Life, *, whole: bool) -> Iterator[tuple[str, str]]:
    lines = [printable(line.rstrip()) for line in life.stderr_tail.splitlines() if line.strip()]
    shown = lines if whole else lines[-_STDERR_LINES:]
    for number, line in enumerate(shown):
        yield ("stderr" if number == 0 else ""), line
    if len(lines) > len(shown):
        yield "", f"({count(len(lines) - len(shown), 'line')} before; --stderr shows them)"


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
