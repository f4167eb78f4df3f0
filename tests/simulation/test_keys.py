"""API keys side by side in one lane: equals get the same, and a heavy one can't push a light one out."""

from typing import Final

import pytest

from tests.simulation.scenarios import keys
from tests.simulation.table import quantile

SEED: Final = 1
SECONDS: Final = 240.0


def test_equal_keys_get_equal_parts_of_the_device():
    found = keys(SEED, SECONDS, {f"key{number}": 8 for number in range(4)})
    assert found.jain() >= 0.98


@pytest.mark.parametrize("seed", [2])
def test_equal_keys_get_equal_parts_over_deaths_of_the_worker(seed):
    found = keys(seed, SECONDS, {f"key{number}": 8 for number in range(4)}, deaths_mean_s=30.0)
    assert found.jain() >= 0.98


def test_a_heavy_key_leaves_a_light_one_its_turn():
    """The light one waits for a row to end, and never behind the heavy one's queue."""
    found = keys(SEED, SECONDS, {"heavy": 32, "light": 1})
    light_s, heavy_s = (quantile(found.ttfts_s[key], 0.95) for key in ("light", "heavy"))
    assert len(found.ttfts_s["light"]) > 30
    assert light_s < 2.0
    assert light_s < heavy_s / 4
