"""Shows lines as a table, and says below it how they were measured."""

from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from typing import Final

from rich import box
from rich.table import Table

from ops.engine.lines import Aim, Line, Spread, Unit
from ops.engine.works import Scale

# How many of the columns are words.
_TEXTS: Final = 2
_DIGITS: Final[dict[Unit, int]] = {"tokens/s": 1, "MB": 1, "ms": 1, "s": 2, "x": 2, "tokens": 0}


def table_of(lines: Sequence[Line], caption: str) -> Table:
    """Return a table of the engine's lines."""
    title = f"the engine beside mlx-lm {version('mlx-lm')}'s BatchGenerator"
    headings = ("work", "measured", "engine", "other", "unit", "ratio (range)", "aim")
    return table_under(title, headings, lines, caption)


def table_under(title: str, headings: Sequence[str], lines: Sequence[Line], caption: str) -> Table:
    """Return a table of lines, a section for each work; `headings` are those of its seven columns.

    The eighth says whether an aim was met.
    """
    table = Table(title=title, box=box.SIMPLE, caption=caption)
    table.caption_justify = "left"
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < _TEXTS else "right")
    table.add_column("")
    befores = ["", *(line.work for line in lines)]
    for line, (before, work) in zip(lines, pairwise(befores), strict=True):
        if before and before != work:
            table.add_section()
        table.add_row("" if work == before else work, *_cells(line))
    return table


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.measured,
        shown(line.ours, line.unit),
        shown(line.theirs, line.unit),
        line.unit,
        ranged(line.ratio),
        aimed(line.aim),
        line.verdict,
    )


def shown(value: float, unit: Unit) -> str:
    """Return a number in its unit; bytes come as such and are shown as MB."""
    return f"{value / 1e6 if unit == 'MB' else value:.{_DIGITS[unit]}f}"


def ranged(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def aimed(aim: Aim | None) -> str:
    if aim is None:
        return ""
    return f"{'≥' if aim.side == 'at least' else '≤'} {aim.bound:g}"


def caption_of(scale: Scale, repeats: int) -> str:
    """Say what each work is, and what was done to measure it."""
    return _CAPTION.format(
        repeats=repeats,
        rows=scale.rows,
        others=scale.rows - 1,
        streams=scale.streams,
        equal=scale.equal,
        long=scale.long,
        short=scale.short,
        arriving=scale.arriving,
        steps=scale.steps,
        gaps=scale.gaps,
    )


_CAPTION: Final = """\
Medians of {repeats} runs of each side after a warm-up, in turn, in alternating order;
ratios are of runs side by side.
equal, samplers: {rows} rows of {equal} tokens; mixed, kv8: one of {long} and {others} of {short}.
Only decode steps are timed, {steps} of them, once all rows are prefilled.
kv8's other is the engine itself, without quantised caches.
seeded: {others} rows, and one more, without and with a seed of its own.
arrival: {arriving} tokens come among {streams} streams.
first: prompts of {short} tokens, one after the other, alone and among {others} streams.
p95 is over gaps between tokens, {gaps} steps a stretch.
Processor time is the whole process's: on a machine with other work it is the fairer measure.
KV bytes: each side's own arrays, after the last step. Peak: all that was allocated, prefill included.
BatchGenerator has its defaults, mlx-lm's own samplers and processors, and no seeds:
its seeded row is a sampler with a key of its own (mlx_lm.server runs such a request alone).
It also normalises every row's logits and hands full log probabilities out; the engine, to rows that ask.
Its penalties look back 20 tokens, the engine's over the whole text.
Joins and leaves aren't in the throughput figures: all rows are there before and after the timed steps."""
