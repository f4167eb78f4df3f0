"""Every row of the table holds, but for those that are known to fail: these have to."""

import pytest
import pytest_asyncio

from tests.conformance.row import Row
from tests.conformance.table import TABLE, tried
from tests.conformance.world import world

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROWS_MIN = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory):
    """One gateway for all rows: each finds it as it expects it."""
    async with world(tmp_path_factory.mktemp("conformance")) as running:
        yield running


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.endpoint}: {row.name}")
async def test_a_row_of_the_table_holds(here, row: Row):
    problem = (await tried(row, here)).problem
    if row.known:
        assert problem, f"this row passes now: it isn't known to fail any more ({row.known})"
    else:
        assert not problem


async def test_the_table_has_a_hundred_rows_each_with_a_name_and_a_source_of_its_own():
    assert len(TABLE) >= ROWS_MIN
    assert len({(row.endpoint, row.name) for row in TABLE}) == len(TABLE)
    assert all(len(row.source) > len("Forebay: ") for row in TABLE)
