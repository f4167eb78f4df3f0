"""Few parts are many here, so that a test needn't make many to see the least used go."""

import pytest

from tests.worker.prefixes.naive_store import PARTS_MAX
from worker.prefixes import store


@pytest.fixture(autouse=True)
def few_parts(monkeypatch):
    monkeypatch.setattr(store, "PARTS_MAX", PARTS_MAX)
