"""Who looks at a gateway's health from outside, all the while and until something is as it should be."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from ops.chaos.checks import rest_problems
from ops.chaos.client import Client

_LOOK_S: Final = 0.05
_LIVE_S: Final = 0.2
_READY_S: Final = 120.0
_REST_S: Final = 20.0


@contextlib.asynccontextmanager
async def liveness(client: Client) -> AsyncIterator[Counter[int]]:
    """Ask /health/live again and again while the block runs, and count the statuses."""
    statuses: Counter[int] = Counter()

    async def look() -> None:
        while True:
            statuses[(await client.get("/health/live"))[0]] += 1
            await asyncio.sleep(_LIVE_S)

    looking = asyncio.create_task(look())
    try:
        yield statuses
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def live_problems(statuses: Counter[int]) -> list[str]:
    wrong = {status: count for status, count in statuses.items() if status != 200}
    return [f"/health/live was answered with {wrong} (0: not at all)"] if wrong or not statuses else []


async def until(
    client: Client, holds: Callable[[int, dict[str, Any]], bool], patience_s: float = _READY_S
) -> dict[str, Any] | None:
    """Ask /health/ready until what it says is right; return its body, or None if that takes too long."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        status, body = await client.get("/health/ready")
        if body and holds(status, body):
            return body
        await asyncio.sleep(_LOOK_S)
    return None


async def ready_again(client: Client, epoch: int | None) -> dict[str, Any] | None:
    """Wait for a ready worker of another epoch."""
    return await until(client, lambda status, body: status == 200 and body["worker"]["epoch"] != epoch)


async def end_problems(client: Client) -> list[str]:
    """Wait until nothing runs, and say what is left then."""
    body = await until(client, lambda _, body: not rest_problems(body), _REST_S)
    if body is None:
        _, body = await client.get("/health/ready")
        return rest_problems(body)
    return []


async def epoch_of(client: Client) -> int | None:
    _, body = await client.get("/health/ready")
    epoch: int | None = body["worker"]["epoch"] if body else None
    return epoch
