"""Small worlds made of a seed: any lanes, any budget, impatient clients, deaths, short memory."""

from random import Random
from typing import Final

from shared.lane_settings import AdmissionSettings, LaneSettings
from tests.simulation.costs import KV_BYTES_PER_TOKEN, Costs, facts
from tests.simulation.loads import Asker, Lengths
from tests.simulation.request import Request
from tests.simulation.scenarios import disturb
from tests.simulation.troubles import trouble
from tests.simulation.world import World

_MEASURING_S: Final = (0.0, 0.0, 0.01, 0.3)
_ANSWERS: Final = (1, 1, 1, 2, 4)
_DEATHS_MEAN_S: Final = (20.0, 60.0, 1e6)
_TROUBLED_SHARE: Final = 0.5
# Rows that take a little more with each token; and such as take much at once, and something when they begin.
_MODELS: Final = (facts(), facts(pad_tokens=64, state_bytes=20 * KV_BYTES_PER_TOKEN))


def small_world(seed: int, seconds: float) -> World:
    """Make a world, let it live for some seconds under a load of its own, and return it ended."""
    random = Random(f"{seed} world")
    world = _world(random)
    lanes = list(world.front.lanes.values())
    for number in range(random.randint(1, 5)):
        lane = random.choice(lanes)
        lengths = Lengths(
            (random.uniform(2, 6.5), 0.8), (random.uniform(1, 5), 0.8), random.choice((40, 300))
        )
        asker = Asker(
            f"kind{number}",
            lane.name,
            lengths,
            lane.deadline_s if random.random() < 0.7 else random.uniform(0.5, 20),
            random,
            key=random.choice(("", "one", "two")),
            weight=random.choice((0.5, 1.0, 3.0)),
        )
        _ask(world, asker, random, seconds, a_second=random.choice((0.2, 1.0, 5.0)))
    disturb(world, seed, seconds, random.choice(_DEATHS_MEAN_S))
    if random.random() < _TROUBLED_SHARE:
        trouble(world, seed, seconds)
    world.run(seconds)
    world.close(lanes[0].name)
    return world


def _world(random: Random) -> World:
    lanes = [_lane(random, f"lane{rank}") for rank in range(random.randint(1, 3))]
    costs = Costs(slots=random.randint(1, 6), budget_tokens=random.choice((400, 2000, 6000)))
    settings = AdmissionSettings(
        key_queue_share=random.choice((0.25, 1.0)), overload_after_s=random.choice((1.0, 10.0))
    )
    return World(lanes, costs, settings, random.choice(_MODELS))


def _lane(random: Random, name: str) -> LaneSettings:
    return LaneSettings(
        name=name,
        reserved_slots=random.choice((0, 1, 2)),
        reserved_mb=random.choice((None, 0, 20)),
        queue_places=random.choice((4, 16, 64)),
        queue_s=random.choice((20.0, 3600.0)),
        deadline_s=random.choice((5.0, 30.0, 300.0)),
        target_wait_s=random.choice((None, 0.5, 2.0)),
        ages_after_s=random.choice((2.0, 10.0, 120.0)),
        step_share_min=random.choice((0.0, 0.05, 0.3)),
        prefill_quantum_ms=random.choice((50.0, 250.0, 2000.0)),
        parkable=random.random() < 0.6,
    )


def _ask(world: World, asker: Asker, random: Random, seconds: float, a_second: float) -> None:
    """Ask at random times, for several answers at times; measuring takes some time, too."""
    when = 0.0
    while (when := when + random.expovariate(a_second)) < seconds:
        requests: list[Request] = [asker.next() for _ in range(random.choice(_ANSWERS))]
        measuring_s = random.choice(_MEASURING_S)

        def offer(requests: list[Request] = requests, measuring_s: float = measuring_s) -> None:
            world.front.offer(requests, measuring_s)

        world.clock.at(when, offer)
