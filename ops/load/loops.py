"""How requests are sent: open, by a timetable that waits for nobody, or closed, each after the one before."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from ops.load.client import Client
from ops.load.records import Ask, Record

_AFTER_FAILURE_S: Final = 0.2
_SETTLE_S_MAX: Final = 60.0
_LOOK_S: Final = 0.05


async def open_loop(
    client: Client, timetable: Iterable[tuple[float, Ask]], *, began: float, patience_s: float
) -> list[Record]:
    """Send each request at `began` plus its seconds, whatever became of those before it; return all records.

    What hasn't ended `patience_s` after the last was sent is cut.
    """
    tasks: set[asyncio.Task[Record]] = set()
    async with _ended(tasks):
        for after_s, ask in timetable:
            due = began + after_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.add(asyncio.create_task(client.ask(replace(ask, scheduled_at=due))))
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
    return client.take()


@contextlib.asynccontextmanager
async def closed_loop(
    client: Client, draw: Callable[[], Ask], streams: int, patience_s: float = 0.0
) -> AsyncIterator[None]:
    """Keep so many requests under way until the block ends; those that run then get `patience_s`."""
    over = False

    async def one_after_another() -> None:
        while not over:
            record = await client.ask(draw())
            if not record.completed:
                # A server that is gone refuses at once: it must not be asked without end.
                await asyncio.sleep(_AFTER_FAILURE_S)

    tasks = {asyncio.create_task(one_after_another()) for _ in range(streams)}
    async with _ended(tasks):
        yield
        over = True
        if tasks and patience_s:
            await asyncio.wait(tasks, timeout=patience_s)


async def settled(least_s: float, *turned_over: tuple[Client, int]) -> float:
    """Wait until load is what it will be from now on; return the seconds that this took.

    That is when each client has so many requests behind it, and `least_s` is over; or after a minute, if a
    server is too slow for that. Before, all streams begin at once: much prefill, few tokens.
    """
    began = time.monotonic()
    while time.monotonic() < began + _SETTLE_S_MAX:
        await asyncio.sleep(_LOOK_S)
        enough = all(len(client.records) >= requests for client, requests in turned_over)
        if enough and time.monotonic() >= began + least_s:
            break
    return time.monotonic() - began


@contextlib.asynccontextmanager
async def _ended(tasks: "set[asyncio.Task[Any]]") -> AsyncIterator[None]:
    """Cancel at the end what still runs, and raise what went wrong in any of them."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
