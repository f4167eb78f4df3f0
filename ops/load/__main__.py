"""Put a gateway under load and print what it did: `python -m ops.load SCENARIO…`."""

import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ops import demo
from ops.figures.processes import machine
from ops.load import fairness, flood, idle, overload, scrape, token_path, watched
from ops.load.command_line import end_in_order_on_sigterm, parser
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
    scrape.SCENARIO,
    watched.FALSE,
    watched.ENGINE,
)
_INTERRUPTED: Final = 130
_WIDTH: Final = 120  # of tables in a file or a pipe


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser("python -m ops.load", __doc__, SCENARIOS).parse_args(words)
    end_in_order_on_sigterm()
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


if __name__ == "__main__":
    sys.exit(main())
