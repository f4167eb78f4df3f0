"""Waiting for what other threads do, without guessing how long that takes."""

import asyncio
from collections.abc import Callable
from typing import Final

_PATIENCE_S: Final = 20.0
_BETWEEN_LOOKS_S: Final = 0.002


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until it holds; TimeoutError if it never does."""
    async with asyncio.timeout(_PATIENCE_S):
        while not holds():  # noqa: ASYNC110 (what other threads do sets no event)
            await asyncio.sleep(_BETWEEN_LOOKS_S)
