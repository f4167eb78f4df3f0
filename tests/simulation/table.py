"""Runs one policy under the two loads and measures it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Final

from tests.simulation.loads import BATCH, FOREVER_S, INTERACTIVE, Asker, Flood, poisson
from tests.simulation.policies import Policy
from tests.simulation.request import Request
from tests.simulation.world import World

INTERACTIVE_A_SECOND: Final = 0.08
BATCH_PLACES: Final = 256


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy did. Times in seconds, over the interactive answers; rates over all that time."""

    policy: str
    seed: int
    answers: int
    refused: int
    ttft_p50_s: float
    ttft_p95_s: float
    itl_p99_s: float
    tokens_a_second: float
    batch_tokens_a_second: float
    parks: int
    recomputed_share: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class Meter:
    """Watches the tokens: how many of which kind, and how far apart."""

    def __init__(self, world: World) -> None:
        self._clock = world.clock
        self.tokens: dict[str, int] = {}
        self.gaps_s: dict[str, list[float]] = {}
        world.front.watchers.append(self)

    def offered(self, request: Request) -> None: ...
    def queued(self, request: Request) -> None: ...
    def put_back(self, request: Request) -> None: ...
    def ended(self, request: Request) -> None: ...
    def decided(self, instructions: Sequence[object]) -> None: ...

    def token(self, request: Request, index: int, token: int) -> None:
        self.tokens[request.kind] = self.tokens.get(request.kind, 0) + 1
        if index:
            self.gaps_s.setdefault(request.kind, []).append(self._clock.now - request.last_token_at)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value that `share` of the values don't exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def measure(policy: Policy, seed: int, seconds: float) -> Outcome:
    """Let a policy stand the two loads for some seconds, with every checker watching."""
    world = World(policy.lanes)
    meter = Meter(world)
    flood = None
    if policy.batch:
        lane = policy.lanes[-1].name
        asker = Asker("batch", lane, BATCH, FOREVER_S, Random(f"{seed} batch"))
        flood = Flood(world.front, asker, BATCH_PLACES)
    if policy.interactive:
        asker = Asker("interactive", "interactive", INTERACTIVE, FOREVER_S, Random(f"{seed} interactive"))
        poisson(world, asker, INTERACTIVE_A_SECOND, seconds)
    world.run(seconds)
    outcome = _outcome(policy, seed, seconds, world, meter)
    if flood is not None:
        flood.stop()
    for request in [each for each in world.front.live.values() if not each.running]:
        world.front.leave(request)
    world.close("interactive")
    return outcome


def _outcome(policy: Policy, seed: int, seconds: float, world: World, meter: Meter) -> Outcome:
    requests = world.checkers.requests
    asked = [request for request in requests if request.kind == "interactive"]
    # Who has no token yet has waited at least until now: leaving these out would flatter.
    waits = [now_or(request, world.clock.now) for request in asked if request.refusal is None]
    batch = meter.tokens.get("batch", 0)
    return Outcome(
        policy=policy.name,
        seed=seed,
        answers=len(asked),
        refused=sum(request.refusal is not None for request in asked),
        ttft_p50_s=quantile(waits, 0.5),
        ttft_p95_s=quantile(waits, 0.95),
        itl_p99_s=quantile(meter.gaps_s.get("interactive", ()), 0.99),
        tokens_a_second=sum(meter.tokens.values()) / seconds,
        batch_tokens_a_second=batch / seconds,
        parks=sum(request.parks for request in requests),
        recomputed_share=world.front.recomputed_tokens / max(1, world.front.prefilled_tokens),
    )


def now_or(request: Request, now: float) -> float:
    return now - request.came_at if request.ttft_s is None else request.ttft_s
