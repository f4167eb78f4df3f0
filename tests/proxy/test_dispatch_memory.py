"""A worker that holds more than its budget is said, once; room that is given back late is not."""

import pytest
from structlog.testing import capture_logs

from tests.proxy.dispatch_world import World

BUDGET = 1000


@pytest.fixture
def world():
    world = World()
    world.come(budget_bytes=BUDGET)
    return world


def warnings(world, kv_bytes):
    with capture_logs() as said:
        world.progress(ping=0, kv_bytes=kv_bytes)
    return [each for each in said if each["log_level"] == "warning"]


@pytest.mark.parametrize("kv_bytes", [0, 500, BUDGET])
def test_what_is_held_beyond_the_reservations_within_the_budget_is_no_news(world, kv_bytes):
    assert warnings(world, kv_bytes) == []


def test_what_is_held_beyond_the_budget_is_said_once_in_a_workers_life(world):
    (said,) = warnings(world, BUDGET + 1)
    assert (said["held_bytes"], said["budget_bytes"]) == (BUDGET + 1, BUDGET)
    assert warnings(world, BUDGET + 2) == []
    world.die()
    world.come(2, budget_bytes=BUDGET)
    assert len(warnings(world, BUDGET + 1)) == 1
