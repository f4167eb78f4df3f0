"""The process that plans: an order comes in on stdin as JSON, a plan or an error goes out on stdout.

It builds the model's classes, which is other people's code at work on a file from anywhere. So it is a
process of its own, which the command watches: see ops/plan/child.py.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from ops.plan.machine import Target, mac_of, this_machine
from ops.plan.reckoning import Estimated, plan
from ops.plan.record import Order, Plan
from shared.errors import ModelError
from worker.engine.estimate import estimate
from worker.engine.estimate_build import Told

EXIT_NO_PLAN: Final = 3


def carry_out(order: Order) -> Plan:
    """Make a plan; ModelError in words if there can be none."""
    asked = order.asked
    target = this_machine() if asked.memory_bytes is None else mac_of(asked.memory_bytes)
    return plan(order.source.name, asked, target, _estimates(order, target))


def _estimates(order: Order, target: Target) -> Callable[[int], Estimated | None]:
    source = order.source
    folder = Path(source.folder) if source.folder is not None else None
    told = Told(source.config, source.name, source.index, folder)

    def estimated(kv_bits: int) -> Estimated | None:
        try:
            return estimate(told, kv_bits, share_tokens=order.asked.share_tokens, as_metal=target.is_metal)
        except ModelError:
            if kv_bits == order.asked.kv_bits:
                raise
            return None  # a way out that is none

    return estimated


def main() -> int:
    order = TypeAdapter(Order).validate_json(sys.stdin.buffer.read())
    try:
        made = carry_out(order)
    except ModelError as problem:
        sys.stderr.write(f"{problem}\n")
        return EXIT_NO_PLAN
    sys.stdout.buffer.write(TypeAdapter(Plan).dump_json(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
