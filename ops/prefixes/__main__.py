"""Measure what kept and shared beginnings of prompts are good for: `python -m ops.prefixes WORK…`."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from rich.console import Console

from ops import demo
from ops.engine.lines import Line
from ops.engine.subject import SHAPES, Subject, from_folder, random_llama
from ops.figures.processes import NotStarted, machine
from ops.load.command_line import end_in_order_on_sigterm
from ops.load.progress import Progress
from ops.models import resolve
from ops.prefixes.in_process import Bench
from ops.prefixes.plan import SCALES, NotMeasured, Plan
from ops.prefixes.table import table_of
from ops.prefixes.works import IN_PROCESS, SERVED, WORKS, Measuring
from shared.config import Settings, child_environment
from shared.errors import ModelError
from shared.model_folder import ModelFolder
from worker import memory
from worker.launch import find_openblas, worker_environment

_NOT_MEASURED: Final = 2
_INTERRUPTED: Final = 130
_WIDTH: Final = 140  # of tables in a file or a pipe


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; a missed aim is no error."""
    arguments = _read(words)
    end_in_order_on_sigterm()
    device = memory.device_report()
    progress = Progress()
    scale_name = arguments.scale or ("gpu" if device.is_gpu else "cpu")
    try:
        folder = None if arguments.random else _folder(arguments)
        with tempfile.TemporaryDirectory(prefix="fb-") as scratch:
            plan = Plan(folder, Path(scratch), SCALES[scale_name], arguments.repeats, progress)
            measuring = Measuring(
                plan,
                lambda: Bench(_subject(arguments, plan, progress), device, plan.scale, progress),
                checks=arguments.check,
            )
            head = {
                "machine": machine(),
                "device": device.name,
                "model": folder.name if folder else _random_name(arguments),
                "scale": scale_name,
                "repeats": arguments.repeats,
            }
            return _measure(measuring, plan, arguments, head)
    except ModelError as problem:
        print(problem, file=sys.stderr)
        return _NOT_MEASURED


def _read(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.prefixes", description=__doc__)
    parser.add_argument(
        "works", nargs="*", type=_work, metavar="WORK", help=f"{', '.join(WORKS)}; all if unsaid"
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", help="a folder or a Hugging Face id; the demo model if unsaid")
    model.add_argument("--random", choices=list(SHAPES), help="a model of these shapes, with random weights")
    parser.add_argument(
        "--float32", action="store_true", help="make --random's weights so, which leaves few near ties"
    )
    parser.add_argument("--scale", choices=list(SCALES), help="lengths of prompts; the device's if unsaid")
    parser.add_argument("--repeats", type=_count, default=5, help="counted runs of each side")
    parser.add_argument("--check", action="store_true", help="compare what rows say, shared and with copies")
    parser.add_argument("--json", type=Path, help="write all measured values here")
    arguments = parser.parse_args(words)
    arguments.works = arguments.works or (IN_PROCESS if arguments.random else WORKS)
    if arguments.float32 and not arguments.random:
        parser.error("--float32 is for --random; a folder's weights are as they are")
    if arguments.random and (served := [work for work in arguments.works if work in SERVED]):
        parser.error(f"{', '.join(served)}: a model with random weights has no folder to be served from")
    return arguments


def _random_name(arguments: argparse.Namespace) -> str:
    precision = "float32" if arguments.float32 else "bfloat16"
    return f"{arguments.random}, random weights in {precision}"


def _work(word: str) -> str:
    if word not in WORKS:
        raise argparse.ArgumentTypeError(f"{word} is none of {', '.join(WORKS)}")
    return word


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is no number of runs")
    return int(word)


def _folder(arguments: argparse.Namespace) -> ModelFolder:
    home = Settings.load().home_folder
    return resolve(arguments.model, home) if arguments.model else demo.bring(home)


def _subject(arguments: argparse.Namespace, plan: Plan, progress: Progress) -> Subject:
    if plan.folder is not None:
        with progress.phase(f"reading {plan.folder.name}"):
            return from_folder(plan.folder)
    done = 0

    def on_layer() -> None:
        nonlocal done
        done += 1

    with progress.phase(f"making {arguments.random}", told=lambda: f"{done} layers"):
        return random_llama(arguments.random, on_layer, mx.float32 if arguments.float32 else None)


def _measure(measuring: Measuring, plan: Plan, arguments: argparse.Namespace, head: dict[str, Any]) -> int:
    """Measure work by work; what is done by then is shown if one fails, or if it is interrupted."""
    screen = Console() if Console().is_terminal else Console(width=_WIDTH)
    screen.print(", ".join(f"{key}: {value}" for key, value in head.items()), soft_wrap=True, highlight=False)
    screen.print("measured on Metal" if _is_metal() else "nothing here is Metal")
    figures: dict[str, Any] = {**head, "metal": _is_metal(), "works": {}, "lines": []}
    lines: list[Line] = []
    status = 0
    try:
        for work in arguments.works:
            for found in measuring.measure(work):
                lines += found.lines
                figures["works"][found.name] = found.values
                figures["lines"] = [{**asdict(line), "verdict": line.verdict} for line in lines]
                if arguments.json:
                    arguments.json.write_text(json.dumps(figures, indent=2))
    except (NotMeasured, NotStarted, ModelError) as problem:
        print(problem, file=sys.stderr)
        status = _NOT_MEASURED
    except KeyboardInterrupt:
        status = _INTERRUPTED
    if lines:
        screen.print(table_of(lines, arguments.works, plan.scale, plan.repeats))
    return status


def _is_metal() -> bool:
    return bool(mx.metal.is_available()) and mx.default_device() == mx.gpu


def _with_fast_blas() -> None:
    """Begin anew with OpenBLAS in place, as a worker has it; MLX's own on Linux is tens of times slower."""
    environment = worker_environment(find_openblas())
    if environment != child_environment():
        words = [sys.executable, "-m", "ops.prefixes", *sys.argv[1:]]
        os.execve(sys.executable, words, environment)  # noqa: S606 (this very program)


if __name__ == "__main__":
    _with_fast_blas()
    sys.exit(main())
