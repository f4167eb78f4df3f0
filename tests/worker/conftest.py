"""A worker process on a tiny model, for tests of the real thing."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from shared.messages import Hello
from shared.model_folder import ModelFolder
from tests.worker.life_of_a_process import CONTEXT, Life
from tests.worker.short_round import SHORT_ROUND
from tests.worker.tiny_families import EVERY_FAMILY
from tests.worker.tiny_models import save


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-families", action="store_true", help="engine: every family, many schedules each, for minutes"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests that ask for `one_family` one of each kind, or every one where there is time."""
    if "one_family" in metafunc.fixturenames:
        every = metafunc.config.getoption("--all-families", default=False)
        metafunc.parametrize("one_family", EVERY_FAMILY if every else SHORT_ROUND)


@pytest.fixture
def all_families(request: pytest.FixtureRequest) -> bool:
    """Whether there is time for all of them."""
    return bool(request.config.getoption("--all-families", default=False))


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    return save(tmp_path / "model", "llama", max_position_embeddings=CONTEXT)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Life]]:
    def start(folder: Path, code: str = "", **settings: Any) -> Life:
        command = ("-c", code) if code else ("-m", "worker.process_start")
        return Life(tmp_path, folder, (sys.executable, *command), **settings)

    return start


@pytest.fixture(scope="module")
def lasting_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return save(tmp_path_factory.mktemp("lasting") / "model", "llama", max_position_embeddings=CONTEXT)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting(lasting_folder: ModelFolder) -> AsyncIterator[Life]:
    """As `life`, for all tests of a module that leave it alive; each gives its sequences other names.

    They run in the module's loop: `@pytest.mark.asyncio(loop_scope="module")`.
    """
    command = (sys.executable, "-m", "worker.process_start")
    async with Life(lasting_folder.path.parent, lasting_folder.path, command) as life:
        await life.hears(Hello)
        life.is_pinged()
        yield life


@pytest.fixture
async def life(start: Callable[..., Life], folder: ModelFolder) -> AsyncIterator[Life]:
    """A process that has loaded its model and is answered by its proxy."""
    async with start(folder.path) as life:
        await life.hears(Hello)
        life.is_pinged()
        yield life
