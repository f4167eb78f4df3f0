"""Proxy and a false worker over a bad wire: words are lost, said twice and late, and the worker dies."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.simulated_wire import Simulation


def simulate(seed):
    simulation = Simulation(seed)
    simulation.live_through(60)
    return simulation


@given(st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_whatever_the_wire_and_the_worker_do_every_answer_is_whole_or_ends_with_an_error(seed):
    simulate(seed)


def test_the_simulation_meets_what_it_is_for():
    """Else the test above could pass because nothing ever happens."""
    worlds = [simulate(seed) for seed in range(40)]
    outcomes = [client.outcome for world in worlds for client in world.clients]
    assert min(outcomes.count(outcome) for outcome in ("complete", "crashed", "left")) > 10
    assert sum(world.dispatcher.resumed for world in worlds) > 100
    assert sum(world.dispatcher.stale_words for world in worlds) > 50
    assert sum(len(world.dead) for world in worlds) > 50
    assert sum(client.parks for world in worlds for client in world.clients) > 30
    assert sum(world.parks_lost for world in worlds) > 2
