"""Put a gateway under load and print what it did: `python -m ops.load SCENARIO…`."""

import argparse
import json
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console

from ops import demo
from ops.figures.processes import machine
from ops.load import fairness, flood, idle, overload, token_path
from ops.load.plan import Plan, Scenario
from ops.load.progress import Progress
from ops.models import resolve
from shared.config import Settings

SCENARIOS: Final[tuple[Scenario, ...]] = (
    flood.SCENARIO,
    overload.SCENARIO,
    fairness.SCENARIO,
    token_path.SCENARIO,
    idle.SCENARIO,
)
_INTERRUPTED: Final = 130
_WIDTH: Final = 120  # of tables in a file or a pipe


def main(words: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    # Also where a shell started us in the background, with Ctrl-C's signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    chosen = [scenario for scenario in SCENARIOS if scenario.name in arguments.scenarios]
    home = Settings.load().home_folder
    folder = resolve(arguments.model, home) if arguments.model else demo.bring(home)
    screen = Console() if Console().is_terminal else Console(width=_WIDTH)
    screen.print(f"seed {seed}, on {machine()}, with {folder.name}", soft_wrap=True)
    figures: dict[str, Any] = {"seed": seed, "machine": machine(), "model": folder.name, "scenarios": {}}
    try:
        with tempfile.TemporaryDirectory(prefix="fb-") as scratch:
            plan = Plan(folder, Path(scratch), seed, Progress(), arguments.seconds, arguments.repeats)
            for scenario in chosen:
                measured = scenario.measure(plan)
                screen.print(scenario.table(measured))
                figures["scenarios"][scenario.name] = measured
                _write(arguments.json, figures)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _write(file: Path | None, figures: dict[str, Any]) -> None:
    """Write what there is after each scenario: a run that is interrupted keeps what it has."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=2))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Take SIGTERM for Ctrl-C: what was started is ended in order."""
    signal.raise_signal(signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ops.load", description=__doc__)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("scenarios", nargs="+", choices=names, metavar="SCENARIO", help=", ".join(names))
    parser.add_argument("--model", help="a folder or a Hugging Face id; the demo model if unsaid")
    parser.add_argument("--repeats", type=_positive(int), help="how often each arm runs")
    parser.add_argument("--seconds", type=_positive(float), help="how long each arm is measured")
    parser.add_argument("--json", type=Path, help="write all measured values here")
    parser.add_argument("--seed", type=int, help="of all that is drawn; the last run printed its own")
    return parser


def _positive(kind: Any) -> Any:
    def read(word: str) -> Any:
        value = kind(word)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{word} is not positive")
        return value

    return read


if __name__ == "__main__":
    sys.exit(main())
