"""Prints how each mechanism of admission changes what clients get, in simulated hours."""

import argparse
import json
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from rich.console import Console
from rich.table import Table

from tests.simulation.policies import POLICIES
from tests.simulation.table import Outcome, measure


def main() -> None:
    arguments = _arguments()
    names = arguments.policies.split(",") if arguments.policies else [policy.name for policy in POLICIES]
    chosen = [policy for policy in POLICIES if policy.name in names]
    with ProcessPoolExecutor(arguments.processes) as pool:
        futures = [pool.submit(measure, policy, arguments.seed, arguments.seconds) for policy in chosen]
        outcomes = [future.result() for future in futures]
    if arguments.json:
        print(json.dumps([outcome.as_dict() for outcome in outcomes], indent=2))
    else:
        Console(width=130).print(_table(outcomes, arguments.seed, arguments.seconds))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=4000.0, help="simulated time (4000)")
    parser.add_argument("--policies", help=", ".join(policy.name for policy in POLICIES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _table(outcomes: Sequence[Outcome], seed: int, seconds: float) -> Table:
    by_name = {outcome.policy: outcome for outcome in outcomes}
    unloaded, alone = by_name.get("unloaded"), by_name.get("batch alone")
    table = Table(title=f"seed {seed}, {seconds:g} s: a cost model's seconds, no measurement")
    for title in ("policy", "TTFT p50", "p95", "x unloaded", "ITL p99", "tok/s", "% of batch alone"):
        table.add_column(title, justify="left" if title == "policy" else "right")
    for title in ("batch tok/s", "parks", "recomputed", "refused"):
        table.add_column(title, justify="right")
    for each in outcomes:
        table.add_row(
            each.policy,
            _number(each.ttft_p50_s),
            _number(each.ttft_p95_s),
            _number(each.ttft_p95_s / unloaded.ttft_p95_s if unloaded else math.nan),
            _number(each.itl_p99_s),
            f"{each.tokens_a_second:.1f}",
            _number(100 * each.tokens_a_second / alone.tokens_a_second if alone else math.nan),
            f"{each.batch_tokens_a_second:.1f}",
            str(each.parks),
            f"{100 * each.recomputed_share:.1f} %",
            f"{each.refused} of {each.answers}",
        )
    return table


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


if __name__ == "__main__":
    main()
