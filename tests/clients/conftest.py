"""One gateway for all real clients of a file, as it is at the beginning of each test."""

import pytest_asyncio

from tests.conformance.world import world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory):
    async with world(tmp_path_factory.mktemp("clients")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def here(served):
    await served.begin()
    return served
