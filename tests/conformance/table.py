"""The whole table, and what comes of its rows."""

import asyncio
import contextlib
import tempfile
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conformance import (
    chat_rows,
    chat_tools_rows,
    completions_rows,
    format_rows,
    hostile_rows,
    keys_rows,
    messages_errors_rows,
    messages_rows,
    models_rows,
    responses_rows,
    structured_rows,
    vllm_rows,
)
from tests.conformance.row import Row
from tests.conformance.world import World, world

TABLE: Final[tuple[Row, ...]] = (
    *chat_rows.SECTION.rows,
    *chat_tools_rows.SECTION.rows,
    *structured_rows.SECTION.rows,
    *format_rows.ROWS,
    *vllm_rows.CHATS.rows,
    *completions_rows.SECTION.rows,
    *vllm_rows.TEXTS.rows,
    *responses_rows.SECTION.rows,
    *messages_rows.SECTION.rows,
    *messages_errors_rows.COUNTED.rows,
    *messages_errors_rows.SECTION.rows,
    *models_rows.MODELS.rows,
    *models_rows.TOKENS.rows,
    *models_rows.REST.rows,
    *hostile_rows.SECTION.rows,
    *keys_rows.SECTION.rows,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row, and what it failed by: nothing if it passed."""

    row: Row
    problem: str = ""


async def tried(row: Row, here: World) -> Outcome:
    """Check a row in a world that is as rows expect it."""
    await here.begin()
    # Whatever a check fails by is its outcome.
    (problem,) = await asyncio.gather(row.check(here), return_exceptions=True)
    if problem is None:
        return Outcome(row)
    place = traceback.extract_tb(problem.__traceback__)
    mine = next((each for each in reversed(place) if "conformance" in each.filename), place[-1])
    words = str(problem).strip().split("\n")[0][:300]
    return Outcome(row, f"{Path(mine.filename).name}:{mine.lineno}: {type(problem).__name__} {words}")


@contextlib.asynccontextmanager
async def own_world() -> AsyncIterator[World]:
    """Run a gateway in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="forebay-conformance") as folder:
        async with world(Path(folder)) as here:
            yield here
