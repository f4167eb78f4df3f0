"""What the programs that run scenarios take as arguments, and how they end when they are told to."""

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ops.load.plan import Scenario


def parser(program: str, description: str | None, scenarios: Sequence[Scenario]) -> argparse.ArgumentParser:
    """Return a parser: which scenarios, with which model, for how long, how often, from which seed."""
    made = argparse.ArgumentParser(prog=program, description=description)
    names = [scenario.name for scenario in scenarios]
    made.add_argument("scenarios", nargs="+", choices=names, metavar="SCENARIO", help=", ".join(names))
    made.add_argument("--model", help="a folder or a Hugging Face id; the demo model if unsaid")
    made.add_argument("--repeats", type=_positive(int), help="how often what is repeated is done")
    made.add_argument("--seconds", type=_positive(float), help="how long the load, or each arm of it, lasts")
    made.add_argument("--json", type=Path, help="write all measured values here")
    made.add_argument("--seed", type=int, help="of all that is drawn; the last run printed its own")
    return made


def end_in_order_on_sigterm() -> None:
    """Take SIGTERM for Ctrl-C, also where a shell had Ctrl-C's signal ignored in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def _positive(kind: Any) -> Any:
    def read(word: str) -> Any:
        value = kind(word)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{word} is not positive")
        return value

    return read
