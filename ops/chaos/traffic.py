"""Load of which every answer is known: asked undisturbed first, then again and again while things break."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final

from ops.chaos.client import Client
from ops.chaos.said import Ask

_LEAVES: Final = 0.15  # of the streams' clients
_PATIENCE_S: Final = 120.0
_UNDISTURBED_S: Final = 300.0
_AFTER_FAILURE_S: Final = 0.2


class NotUndisturbed(Exception):
    """An answer that nobody disturbed didn't end well, so nothing can be compared with it."""


async def undisturbed(client: Client, asks: Sequence[Ask]) -> dict[int, str]:
    """Ask everything once, all at the same time; return the texts by number. Raises NotUndisturbed."""
    try:
        async with asyncio.timeout(_UNDISTURBED_S):
            said = await asyncio.gather(*map(client.ask, asks))
    except TimeoutError as problem:
        raise NotUndisturbed(f"not all were answered in {_UNDISTURBED_S:.0f} s") from problem
    for one in said:
        if not one.completed or not one.text:
            raise NotUndisturbed(f"request {one.ask.number} ended so: {', '.join(one.endings)}")
    client.said.clear()
    return {one.ask.number: one.text for one in said}


def again_and_again(
    asks: Sequence[Ask], numbers: random.Random, leaves: float = _LEAVES
) -> Callable[[], Ask]:
    """Return what draws the next ask. Such a share of streams will be left by their clients."""

    def draw() -> Ask:
        ask = numbers.choice(asks)
        if not ask.stream or numbers.random() >= leaves:
            return ask
        return replace(ask, leaves_after=numbers.randint(1, max(1, ask.max_tokens // 2)))

    return draw


@contextlib.asynccontextmanager
async def kept_up(client: Client, draw: Callable[[], Ask], streams: int) -> AsyncIterator[None]:
    """Keep so many requests under way until the block ends; those that run then may finish."""
    over = False

    async def one_after_another() -> None:
        while not over:
            if not (await client.ask(draw())).completed:
                # A server that is gone refuses at once: it must not be asked without end.
                await asyncio.sleep(_AFTER_FAILURE_S)

    tasks = [asyncio.create_task(one_after_another()) for _ in range(streams)]
    try:
        yield
        over = True
        await asyncio.wait(tasks, timeout=_PATIENCE_S)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
