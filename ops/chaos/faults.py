"""The faults of a worker: each drawn from a bag so that all come equally often, and done to the process."""

import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final

import psutil

from ops.chaos.client import Client
from ops.chaos.house import House
from ops.chaos.timeline import Effect, Fault
from ops.chaos.watch import epoch_of, ready_again
from ops.gateway import Gateway

# Shorter than worker.hang_floor_s: who is stopped so briefly must be left alone.
_PAUSE_S: Final = 2.0
_RESTART_S: Final = 60.0
PAUSE: Final = "short SIGSTOP"
RESTART: Final = "restart order"
SUPERVISOR: Final = "supervisor SIGKILL"
SIGNALS: Final = {
    kind.name: kind
    for kind in (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGSTOP, signal.SIGTERM)
}


# What the supervisor should find; nothing for one that nobody sees end. On macOS a signal of a fault that was
# sent can't be told from a fault.
_CAUSES: Final = {
    "SIGKILL": "killed",
    "SIGABRT": "killed",
    "SIGSTOP": "killed",
    "SIGTERM": "planned",
    RESTART: "planned",
    **({} if sys.platform == "darwin" else {"SIGSEGV": "killed"}),
}


def cause_problems(effects: Iterable[Effect]) -> list[str]:
    """Say which deaths were taken for something else than they were."""
    return [
        f"a {effect.kind} was taken for {effect.cause}"
        for effect in effects
        if effect.cause not in (None, _CAUSES.get(effect.kind, effect.cause))
    ]


class NotBack(Exception):
    """After a fault no new worker became ready in time, so nothing further can be tried."""


def in_bags(numbers: random.Random) -> Iterator[str]:
    """Yield kinds of faults without end: each bag has every kind once, in an order of its own.

    A bag ends with the supervisor's own death, so that a new one begins without any back-off.
    """
    while True:
        bag = [*SIGNALS, PAUSE, RESTART]
        numbers.shuffle(bag)
        yield from bag
        yield SUPERVISOR


async def strike(house: House, client: Client, kind: str) -> Fault:
    """Do it, and wait until a worker is ready again. Raises NotBack."""
    epoch = await epoch_of(client)
    worker = house.worker()
    if worker is None:
        raise NotBack(f"there was no worker for a {kind}")
    at = time.time()
    await _do(house, worker, kind)
    if kind == PAUSE:
        return Fault(kind, at, time.time(), kills=False)
    if await ready_again(client, epoch) is None:
        raise NotBack(f"no worker became ready again after a {kind}")
    if kind == signal.SIGSTOP.name:
        # Late: by then it has been replaced, and nothing may come of it.
        with contextlib.suppress(psutil.Error):
            worker.send_signal(signal.SIGCONT)
    return Fault(kind, at, time.time(), unseen=kind == SUPERVISOR)


async def _do(house: House, worker: psutil.Process, kind: str) -> None:
    if kind == RESTART:
        order = {"drain": False, "timeout_s": _RESTART_S}
        await asyncio.to_thread(Gateway(house.settings).order, "/admin/restart", order)
    elif kind == SUPERVISOR:
        house.kill("worker")
        house.start("worker")
    elif kind == PAUSE:
        worker.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(_PAUSE_S)
        finally:
            worker.send_signal(signal.SIGCONT)
    else:
        worker.send_signal(SIGNALS[kind])
