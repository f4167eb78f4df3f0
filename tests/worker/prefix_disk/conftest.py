"""A folder for the disk tier, whose tiers are closed at a test's end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.prefix_disk.small_blocks import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "prefixes")
    yield desk
    desk.close()
