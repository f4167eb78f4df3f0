"""The flood: a batch queue that is always full, and people who ask meanwhile. All time is simulated."""

from functools import cache
from typing import Final

import pytest

from tests.simulation.policies import POLICIES
from tests.simulation.scenarios import flooded
from tests.simulation.table import Outcome, measure

SEED: Final = 1
SECONDS: Final = 600.0


@cache
def outcome(name: str) -> Outcome:
    policy = next(each for each in POLICIES if each.name == name)
    return measure(policy, SEED, SECONDS)


def test_people_hardly_notice_a_flood_of_batch_work():
    with_flood, alone = outcome("parking"), outcome("unloaded")
    assert with_flood.answers == alone.answers > 30
    assert with_flood.refused == 0
    assert with_flood.ttft_p95_s <= 1.2 * alone.ttft_p95_s
    assert with_flood.itl_p99_s <= alone.itl_p99_s + 0.15


def test_serving_people_first_costs_little_throughput():
    assert outcome("parking").tokens_a_second >= 0.97 * outcome("batch alone").tokens_a_second
    assert outcome("parking").recomputed_share <= 0.15


def test_each_mechanism_is_needed():
    """Without lanes people wait for minutes; without parking for rows that others hold."""
    unloaded_s = outcome("unloaded").ttft_p95_s
    assert outcome("fcfs").ttft_p95_s > 50 * unloaded_s
    assert outcome("priority").ttft_p95_s > 2 * unloaded_s
    assert outcome("quantum").itl_p99_s < outcome("reserve").itl_p99_s / 4
    assert outcome("parking").ttft_p95_s < 0.75 * outcome("quantum").ttft_p95_s


@pytest.mark.parametrize("seed", [2])
def test_a_flood_over_deaths_of_the_worker_loses_nothing(seed):
    """The checkers assert it: tokens, bytes, bounds and ends, over deaths and clients that leave."""
    world = flooded(seed, 400.0, deaths_mean_s=30.0)
    assert world.deaths > 3
    interrupted = [request for request in world.checkers.requests if request.interruptions]
    assert sum(request.completed for request in interrupted) > 20
    assert any(request.parks for request in world.checkers.requests)
