"""A worker process on a tiny model, for tests of the real thing."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.messages import Hello, Ping
from shared.model_folder import ModelFolder
from tests.worker.life_of_a_process import ENDLESS, EPOCH, Life
from tests.worker.tiny_models import save


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    return save(tmp_path / "model", "llama", max_position_embeddings=2 * ENDLESS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Life]]:
    def start(folder: Path, code: str = "", **settings: Any) -> Life:
        command = ("-c", code) if code else ("-m", "worker.process")
        return Life(tmp_path, folder, (sys.executable, *command), **settings)

    return start


@pytest.fixture
async def life(start: Callable[..., Life], folder: ModelFolder) -> AsyncIterator[Life]:
    """A process that has loaded its model and been answered by its proxy."""
    async with start(folder.path) as life:
        await life.hears(Hello)
        await life.say(Ping(EPOCH, 1))
        yield life
