"""Hundreds of small worlds, each of its own lanes, budgets, clients and deaths: every checker in each."""

import functools
from typing import Final

import pytest

from tests.simulation.small_worlds import small_world
from tests.simulation.world import World

SECONDS: Final = 40.0
WORLDS_A_TEST: Final = 8
SEEDS: Final = 40


@functools.cache
def lived(seed: int) -> World:
    """Return a world that has ended; once for all tests."""
    return small_world(seed, SECONDS)


@pytest.mark.parametrize("first_seed", range(0, SEEDS, WORLDS_A_TEST))
def test_whatever_the_world_the_checkers_are_content(first_seed):
    for seed in range(first_seed, first_seed + WORLDS_A_TEST):
        try:
            world = lived(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        assert len(world.checkers.requests) > 3


def test_one_seed_makes_one_world():
    first, second = (small_world(3, SECONDS).checkers.requests for _ in range(2))
    assert [(each.name, each.ended_at, each.parks) for each in first] == [
        (each.name, each.ended_at, each.parks) for each in second
    ]


def test_no_killer_kills_more_than_twice_and_most_are_found_out():
    """Those that never got as far as their place, or whose client was told to come back too late, are not."""
    killed = [deaths for seed in range(SEEDS) for deaths in lived(seed).deaths_of.values()]
    assert max(killed) == 2
    assert killed.count(2) > 10
