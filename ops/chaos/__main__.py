"""Break a gateway on purpose, judge it from outside, and print it all: `python -m ops.chaos SCENARIO…`.

The exit status is 1 if anything was found that must not be.
"""

import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from ops import demo
from ops.chaos import crowded, down, exhaustion, kills, poison, proxy_death, soak, upgrade
from ops.chaos.traffic import NotUndisturbed
from ops.figures.processes import NotStarted, machine
from ops.load.command_line import end_in_order_on_sigterm, parser
from ops.load.plan import Plan, Scenario
from ops.load.progress import Progress
from ops.models import resolve
from shared.config import Settings

SCENARIOS: Final[tuple[Scenario, ...]] = (
    kills.SCENARIO,
    exhaustion.SCENARIO,
    crowded.SCENARIO,
    poison.SCENARIO,
    down.SCENARIO,
    proxy_death.SCENARIO,
    upgrade.SCENARIO,
    soak.SCENARIO,
)
_FAILED: Final = 1
_INTERRUPTED: Final = 130
_WIDTH: Final = 160  # of tables in a file or a pipe


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser("python -m ops.chaos", __doc__, SCENARIOS).parse_args(words)
    end_in_order_on_sigterm()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    chosen = [scenario for scenario in SCENARIOS if scenario.name in arguments.scenarios]
    home = Settings.load().home_folder
    folder = resolve(arguments.model, home) if arguments.model else demo.bring(home)
    screen = Console() if Console().is_terminal else Console(width=_WIDTH)
    screen.print(f"seed {seed}, on {machine()}, with {folder.name}", soft_wrap=True)
    figures: dict[str, Any] = {"seed": seed, "machine": machine(), "model": folder.name, "scenarios": {}}
    try:
        with tempfile.TemporaryDirectory(prefix="fb-", ignore_cleanup_errors=True) as scratch:
            plan = Plan(folder, Path(scratch), seed, Progress(), arguments.seconds, arguments.repeats)
            for scenario in chosen:
                began = time.monotonic()
                measured = measured_or_not(scenario, plan)
                figures["scenarios"][scenario.name] = {**measured, "took_s": time.monotonic() - began}
                show(screen, scenario, measured)
                if arguments.json is not None:
                    arguments.json.write_text(json.dumps(figures, indent=2))
    except KeyboardInterrupt:
        return _INTERRUPTED
    return _FAILED if any(each["problems"] for each in figures["scenarios"].values()) else 0


def measured_or_not(scenario: Scenario, plan: Plan) -> dict[str, Any]:
    """Return a scenario's figures, or only a problem where it could not even begin."""
    try:
        return scenario.measure(plan)
    except (NotStarted, NotUndisturbed) as problem:
        return {"problems": [f"it could not begin: {problem}"], "began": False}


def show(screen: Console, scenario: Scenario, measured: dict[str, Any]) -> None:
    """Print the table, and the verdict in words."""
    if measured.get("began", True):
        screen.print(scenario.table(measured))
    if not measured["problems"]:
        screen.print(f"{scenario.name}: all is well", style="green")
    for problem in measured["problems"]:
        screen.print(f"{scenario.name} FAILED: {problem}", style="red", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
