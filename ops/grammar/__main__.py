"""Measure what a grammar costs: tokens/s with json_schema over without, `python -m ops.grammar`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ops import demo
from ops.engine.lines import Line
from ops.engine.subject import SHAPES, Subject, from_folder, random_llama
from ops.engine.table import table_under
from ops.figures.processes import machine
from ops.grammar.bench import ROWS, Bench, Plan, lines_of
from ops.load.command_line import end_in_order_on_sigterm
from ops.load.progress import Progress
from ops.models import resolve
from shared.config import Settings, child_environment
from shared.errors import ModelError
from worker import memory
from worker.launch import find_openblas, worker_environment

_NOT_MEASURED: Final = 2
_INTERRUPTED: Final = 130
_STEPS: Final = {True: 256, False: 48}  # on a GPU, and without one
_WIDTH: Final = 120  # of a table in a file or a pipe
_CAPTION: Final = """\
Medians of runs of each side after a warm-up, in turn, in alternating order; ratios are of runs side by side.
The rows are the same but for the grammar, at temperature 0.7. Only decode steps are timed."""


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = _read(words)
    end_in_order_on_sigterm()
    device = memory.device_report()
    progress = Progress()
    plan = Plan(arguments.steps or _STEPS[device.is_gpu], arguments.repeats)
    try:
        subject = _subject(arguments, progress)
    except ModelError as problem:
        print(problem, file=sys.stderr)
        return _NOT_MEASURED
    bench = Bench(subject, device, plan, progress, made_up=bool(arguments.random))
    head = {
        "machine": machine(),
        "device": device.name,
        "model": subject.folder.name,
        "steps": plan.steps,
        "repeats": plan.repeats,
    }
    return _measure(bench, arguments, head)


def _read(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.grammar", description=__doc__)
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", help="a folder or a Hugging Face id; the demo model if unsaid")
    model.add_argument(
        "--random", choices=list(SHAPES), help="random weights, and a tokenizer of made-up words"
    )
    parser.add_argument("--rows", type=_count, nargs="*", default=list(ROWS), help="rows side by side")
    parser.add_argument("--steps", type=_count, help="decode steps that are timed; the device's if unsaid")
    parser.add_argument("--repeats", type=_count, default=5, help="counted runs of each side")
    parser.add_argument("--json", type=Path, help="write all measured values here")
    return parser.parse_args(words)


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is no number from 1")
    return int(word)


def _subject(arguments: argparse.Namespace, progress: Progress) -> Subject:
    if arguments.random:
        with progress.phase(f"making {arguments.random}"):
            return random_llama(arguments.random, lambda: None)
    home = Settings.load().home_folder
    folder = resolve(arguments.model, home) if arguments.model else demo.bring(home)
    with progress.phase(f"reading {folder.name}"):
        return from_folder(folder)


def _measure(bench: Bench, arguments: argparse.Namespace, head: dict[str, Any]) -> int:
    """Measure for each number of rows; what is done by then is shown if it is interrupted."""
    screen = Console() if Console().is_terminal else Console(width=_WIDTH)
    screen.print(", ".join(f"{key}: {value}" for key, value in head.items()), soft_wrap=True, highlight=False)
    figures: dict[str, Any] = {**head, "works": {}, "lines": []}
    lines: list[Line] = []
    status = 0
    try:
        for rows in arguments.rows:
            values = bench.values(rows)
            lines += lines_of(rows, values)
            figures["works"][str(rows)] = values
            figures["lines"] = [asdict(line) for line in lines]
            if arguments.json:
                arguments.json.write_text(json.dumps(figures, indent=2))
    except KeyboardInterrupt:
        status = _INTERRUPTED
    headings = ("rows", "measured", "json_schema", "free", "unit", "ratio (range)", "")
    screen.print(table_under("a grammar's cost", headings, lines, _CAPTION))
    return status


def _with_fast_blas() -> None:
    """Begin anew with OpenBLAS in place, as a worker has it; MLX's own on Linux is tens of times slower."""
    environment = worker_environment(find_openblas())
    if environment != child_environment():
        words = [sys.executable, "-m", "ops.grammar", *sys.argv[1:]]
        os.execve(sys.executable, words, environment)  # noqa: S606 (this very program)


if __name__ == "__main__":
    _with_fast_blas()
    sys.exit(main())
