"""Troubles of a world: requests that kill the worker, planned restarts, memory that is short for a while."""

from random import Random
from typing import Final

from shared.errors import Quarantined, Unavailable
from shared.limits import RUNG_MAX
from tests.simulation.request import Request
from tests.simulation.world import World

_KILLERS_MAX: Final = 3
_TRIES_MAX: Final = 10
_EVERY_S: Final = (2.0, 15.0)
_RESTART_S: Final = (1.0, 5.0)


class Killer:
    """A client whose request kills the worker, and who sends it again whenever it is told no."""

    def __init__(self, world: World, random: Random, number: int) -> None:
        self._world = world
        self._random = random
        self._asks = f"killer{number}"
        self._lane = random.choice(list(world.front.lanes))
        self._kills_at = random.choice((0, 1, 3, 20))
        self._prompt_tokens = random.choice((5, 60))
        self._alike = random.choice((1, 1, 3))
        self.tries = 0

    def ask(self) -> None:
        """Send it, perhaps several times at once."""
        self.tries += 1
        for copy in range(self._alike):
            request = Request(
                name=f"{self._asks}/{self.tries}.{copy}",
                kind="killer",
                lane=self._lane,
                prompt_tokens=self._prompt_tokens,
                length=40,
                max_tokens=40,
                deadline_s=30.0,
                asks=self._asks,
                kills_at=self._kills_at,
                finished=self._again if copy == 0 else None,
            )
            self._world.front.offer([request])

    def _again(self, request: Request) -> None:
        assert not request.completed, "a killer can't be served"
        comes_back = isinstance(request.refusal, Unavailable | Quarantined) and self.tries < _TRIES_MAX
        if comes_back:
            self._world.clock.after(self._random.uniform(0.1, 3.0), self.ask)


def trouble(world: World, seed: int, seconds: float) -> list[Killer]:
    """Let there be troubles for some seconds; return the killers."""
    random = Random(f"{seed} troubles")
    until = world.clock.now + seconds
    killers = [Killer(world, random, number) for number in range(random.randint(1, _KILLERS_MAX))]
    for killer in killers:
        world.clock.at(random.uniform(0, seconds / 2), killer.ask)

    def happen() -> None:
        if world.clock.now >= until:
            return
        what = random.choice(("replace", "squeeze", "relax", "step", "climb"))
        if what == "replace":
            world.replace(random.uniform(*_RESTART_S))
        elif what == "squeeze":
            world.squeeze(random.choice((0.0, 0.3, 0.7)))
        elif what == "relax":
            world.squeeze(1.0)
        else:
            rung = random.randint(0, RUNG_MAX) if what == "step" else 0
            world.front.admission.cautioned(rung, one_at_a_time=random.random() < 0.2)
        world.clock.after(random.uniform(*_EVERY_S), happen)

    world.clock.after(random.uniform(*_EVERY_S), happen)
    return killers
