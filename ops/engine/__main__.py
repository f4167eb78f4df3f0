"""Measure the engine beside mlx-lm's BatchGenerator and print the ratios: `python -m ops.engine WORK…`."""

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
from ops.engine.bench import Bench
from ops.engine.lines import Line
from ops.engine.subject import SHAPES, Subject, from_folder, random_llama
from ops.engine.table import caption_of, table_of
from ops.engine.works import SCALES, WORKS
from ops.figures.processes import machine
from ops.load.command_line import end_in_order_on_sigterm
from ops.load.progress import Progress
from ops.models import resolve
from shared.config import Settings, child_environment
from shared.errors import ModelError
from worker import memory
from worker.launch import find_openblas, worker_environment

_NOT_COMPARABLE: Final = 2
_INTERRUPTED: Final = 130
_WIDTH: Final = 130  # of tables in a file or a pipe


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; a missed aim is no error."""
    arguments = _parser().parse_args(words)
    end_in_order_on_sigterm()
    device = memory.device_report()
    scale = arguments.scale or ("gpu" if device.is_gpu else "cpu")
    progress = Progress()
    try:
        subject = _subject(arguments, progress)
        bench = Bench(subject, device, SCALES[scale], progress)
    except ModelError as problem:
        print(problem, file=sys.stderr)
        return _NOT_COMPARABLE
    head = {
        "machine": machine(),
        "device": device.name,
        "model": subject.folder.name,
        "scale": scale,
        "repeats": arguments.repeats,
    }
    return _measure(bench, arguments, head)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ops.engine", description=__doc__)
    parser.add_argument(
        "works", nargs="*", type=_work, metavar="WORK", help=f"{', '.join(WORKS)}; all if unsaid"
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", help="a folder or a Hugging Face id; the demo model if unsaid")
    model.add_argument("--random", choices=list(SHAPES), help="a model of these shapes, with random weights")
    parser.add_argument("--scale", choices=list(SCALES), help="lengths of prompts; the device's if unsaid")
    parser.add_argument("--repeats", type=_count, default=3, help="counted runs of each side")
    parser.add_argument("--json", type=Path, help="write all measured values here")
    return parser


def _work(word: str) -> str:
    if word not in WORKS:
        raise argparse.ArgumentTypeError(f"{word} is none of {', '.join(WORKS)}")
    return word


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is no number of runs")
    return int(word)


def _subject(arguments: argparse.Namespace, progress: Progress) -> Subject:
    if arguments.random:
        done = 0

        def on_layer() -> None:
            nonlocal done
            done += 1

        with progress.phase(f"making {arguments.random}", told=lambda: f"{done} layers"):
            return random_llama(arguments.random, on_layer)
    home = Settings.load().home_folder
    folder = resolve(arguments.model, home) if arguments.model else demo.bring(home)
    with progress.phase(f"reading {folder.name}"):
        return from_folder(folder)


def _measure(bench: Bench, arguments: argparse.Namespace, head: dict[str, Any]) -> int:
    """Measure work by work; what is done by then is shown if it is interrupted."""
    screen = Console() if Console().is_terminal else Console(width=_WIDTH)
    screen.print(", ".join(f"{key}: {value}" for key, value in head.items()), soft_wrap=True, highlight=False)
    figures: dict[str, Any] = {**head, "works": {}, "lines": []}
    lines: list[Line] = []
    status = 0
    try:
        for work in arguments.works or WORKS:
            values = bench.values(work, arguments.repeats)
            lines += bench.lines(work, values)
            figures["works"][work] = values
            figures["lines"] = [{**asdict(line), "verdict": line.verdict} for line in lines]
            if arguments.json:
                arguments.json.write_text(json.dumps(figures, indent=2))
    except ModelError as problem:
        print(problem, file=sys.stderr)
        status = _NOT_COMPARABLE
    except KeyboardInterrupt:
        status = _INTERRUPTED
    screen.print(table_of(lines, caption_of(bench.scale, arguments.repeats)))
    return status


def _with_fast_blas() -> None:
    """Begin anew with OpenBLAS in place, as a worker has it; MLX's own on Linux is tens of times slower."""
    environment = worker_environment(find_openblas())
    if environment != child_environment():
        words = [sys.executable, "-m", "ops.engine", *sys.argv[1:]]
        os.execve(sys.executable, words, environment)  # noqa: S606 (this very program)


if __name__ == "__main__":
    _with_fast_blas()
    sys.exit(main())
