"""Runs the process that plans, shows that it goes on, and ends it if it takes what no plan needs."""

import subprocess
import sys
import tempfile
import time
from typing import IO, Final

import psutil
from pydantic import TypeAdapter

from ops.plan.record import Order, Plan
from ops.screen import Screen
from shared.config import child_environment
from shared.errors import ModelError
from shared.limits import MIB, PLAN_BYTES_MAX, PLAN_S_MAX

_TICK_S: Final = 0.1
_EXIT_NO_PLAN: Final = 3
COMMAND: Final = (sys.executable, "-m", "ops.plan.work")


def ask(order: Order, screen: Screen, command: tuple[str, ...] = COMMAND) -> Plan:
    """Return the plan that a process of its own makes; ModelError in words if it makes none."""
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as words,
    ):
        given.write(TypeAdapter(Order).dump_json(order))
        given.seek(0)
        with (
            screen.step(f"Planning {order.source.name}") as step,
            subprocess.Popen(  # noqa: S603 (Forebay's own command)
                command, stdin=given, stdout=answer, stderr=words, env=child_environment(HF_HUB_OFFLINE="1")
            ) as process,
        ):
            began_s = time.monotonic()
            try:
                while not _ended(process):
                    step.tick()
                    _check(order, process.pid, time.monotonic() - began_s)
            finally:
                if process.returncode is None:
                    process.kill()
        if process.returncode == 0:
            return TypeAdapter(Plan).validate_json(_all_of(answer))
        lines = _all_of(words).decode("utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
        if process.returncode == _EXIT_NO_PLAN:
            raise ModelError("\n".join(lines[-1:]))
        raise ModelError(f"{order.source.name}: planning failed: {lines[-1]}")


def _ended(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(_TICK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _check(order: Order, pid: int, taken_s: float) -> None:
    """Raise ModelError once the process takes too much: then the model's code computes something."""
    if taken_s > PLAN_S_MAX:
        raise ModelError(f"{order.source.name}: no plan within {PLAN_S_MAX:.0f} s")
    try:
        held_bytes = psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return  # it has just ended
    if held_bytes > PLAN_BYTES_MAX:
        raise ModelError(
            f"{order.source.name}: can't be planned without its weights: planning took more than"
            f" {PLAN_BYTES_MAX // MIB} MiB, so this family's code computes where others only plan to"
        )


def _all_of(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
