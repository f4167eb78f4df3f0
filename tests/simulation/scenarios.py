"""Loads that show one promise each, and what they brought; workers may die and clients may go meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from shared.lane_settings import BATCH as BATCH_LANE
from shared.lane_settings import INTERACTIVE as INTERACTIVE_LANE
from shared.lane_settings import LaneSettings
from tests.simulation.costs import Costs
from tests.simulation.loads import (
    BATCH,
    FOREVER_S,
    INTERACTIVE,
    Asker,
    Flood,
    Lengths,
    Obeying,
    Stream,
    poisson,
)
from tests.simulation.table import Meter
from tests.simulation.world import World

LANES: Final[Sequence[LaneSettings]] = (INTERACTIVE_LANE, BATCH_LANE)
# As many places as a key needs to have 32 waiting; nobody is refused for the wait.
PATIENT: Final[Sequence[LaneSettings]] = (
    INTERACTIVE_LANE.model_copy(update={"queue_places": 256, "target_wait_s": None}),
    BATCH_LANE,
)
SHORT: Final = Lengths((5.0, 0.5), (4.0, 0.5), 256)
# Many answers reach their max_tokens: what is reserved for them has to grow.
_GROWING: Final = Lengths((8.0, 0.6), (5.8, 0.6), 400)
_RESTART_S: Final = (3.0, 20.0)


def disturb(world: World, seed: int, seconds: float, mean_s: float) -> None:
    """Let workers die now and then, and as often a client leave, whatever its request is at."""
    random = Random(f"{seed} disturbances")
    until = world.clock.now + seconds
    world.die_at_random(random, mean_s, _RESTART_S, until)

    def leave() -> None:
        if world.clock.now >= until:
            return
        if world.front.live:
            world.front.leave(random.choice(list(world.front.live.values())))
        world.clock.after(random.expovariate(1 / mean_s), leave)

    world.clock.after(random.expovariate(1 / mean_s), leave)


def asker(seed: int, kind: str, lengths: Lengths, deadline_s: float, key: str = "", lane: str = "") -> Asker:
    return Asker(kind, lane or "interactive", lengths, deadline_s, Random(f"{seed} {kind} {key}"), key)


# --- more clients than can be served, who come back when they were told to ----------------------------------


@dataclass(frozen=True, slots=True)
class Overload:
    """What became of the clients. Tokens a second are those of the answers, while the overload lasted."""

    clients: int
    served: int
    attempts_per_success: float
    waited_in_vain: int
    started: int
    tokens_a_second: float
    deaths: int


def peak_tokens_a_second(seed: int, seconds: float) -> float:
    """Return what the device gives to just enough clients that all rows are always busy."""
    world = World(PATIENT)
    meter = Meter(world)
    asks = asker(seed, "stream", SHORT, FOREVER_S)
    streams = [Stream(world, asks) for _ in range(world.costs.slots + 4)]
    world.run(seconds)
    tokens = sum(meter.tokens.values())
    for stream in streams:
        stream.on = False
    world.close("interactive")
    return tokens / seconds


def overload(seed: int, seconds: float, a_second: float, *, deaths_mean_s: float | None = None) -> Overload:
    """Let so many clients a second come, for some seconds; each comes back as told until it is served."""
    world = World(LANES)
    meter = Meter(world)
    asks = asker(seed, "client", SHORT, INTERACTIVE_LANE.deadline_s)
    random, when = Random(f"{seed} arrivals"), 0.0
    clients: list[Obeying] = []
    while (when := when + random.expovariate(a_second)) < seconds:
        clients.append(Obeying(world, asks))
        world.clock.at(when, clients[-1].ask)
    if deaths_mean_s is not None:
        disturb(world, seed, seconds, deaths_mean_s)
    world.run(seconds)
    tokens = sum(meter.tokens.values())
    for client in clients:
        client.on = False
    world.close("interactive")
    served = [client for client in clients if client.served]
    queued = [request for request in world.checkers.requests if request.queued]
    return Overload(
        clients=len(clients),
        served=len(served),
        attempts_per_success=sum(client.attempts for client in served) / max(1, len(served)),
        waited_in_vain=sum(request.refusal is not None and not request.attempt for request in queued),
        started=sum(request.attempt > 0 for request in queued),
        tokens_a_second=tokens / seconds,
        deaths=world.deaths,
    )


# --- keys ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keys:
    """What each key got: milliseconds of the device, and its waits for the first token."""

    served_ms: dict[str, float]
    ttfts_s: dict[str, list[float]]

    def jain(self) -> float:
        """Return Jain's index of what the keys got: 1 if all got the same, 1/n if one got all."""
        got = list(self.served_ms.values())
        return sum(got) ** 2 / (len(got) * sum(each * each for each in got))


def keys(seed: int, seconds: float, streams: dict[str, int], *, deaths_mean_s: float | None = None) -> Keys:
    """Let each key keep so many streams going, in one lane."""
    world = World(PATIENT)
    going = [
        Stream(world, each)
        for key, count in streams.items()
        for each in [asker(seed, "stream", SHORT, FOREVER_S, key)]
        for _ in range(count)
    ]
    if deaths_mean_s is not None:
        disturb(world, seed, seconds, deaths_mean_s)
    world.run(seconds)
    served_ms = {key: world.front.served_ms.get(key, 0.0) for key in streams}
    ttfts_s: dict[str, list[float]] = {key: [] for key in streams}
    for request in world.checkers.requests:
        if request.ttft_s is not None:
            ttfts_s[request.key].append(request.ttft_s)
    for stream in going:
        stream.on = False
    world.close("interactive")
    return Keys(served_ms, ttfts_s)


# --- interactive load without end ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endless:
    """What a batch lane got beside interactive streams that fill every row."""

    batch_starts: int
    start_gap_s_max: float
    batch_tokens: int
    batch_completed: int
    deaths: int


def endless(seed: int, seconds: float, streams: int, *, deaths_mean_s: float | None = None) -> Endless:
    """Let interactive streams fill all rows, and a batch queue be full beside them."""
    world = World(PATIENT)
    meter = Meter(world)
    asks = asker(seed, "stream", SHORT, FOREVER_S)
    going = [Stream(world, asks) for _ in range(streams)]
    flood = Flood(world.front, asker(seed, "batch", BATCH, FOREVER_S, lane="batch"), places=32)
    if deaths_mean_s is not None:
        disturb(world, seed, seconds, deaths_mean_s)
    world.run(seconds)
    for stream in going:
        stream.on = False
    batch = [request for request in world.checkers.requests if request.kind == "batch"]
    found = Endless(
        batch_starts=sum(request.attempt > 0 for request in batch),
        start_gap_s_max=world.checkers.start_gap_s_max[1],
        batch_tokens=meter.tokens.get("batch", 0),
        batch_completed=sum(request.completed for request in batch),
        deaths=world.deaths,
    )
    flood.stop()
    world.close("interactive")
    return found


# --- a flood ------------------------------------------------------------------------------------------------


def flooded(
    seed: int,
    seconds: float,
    *,
    a_second: float = 0.24,
    deaths_mean_s: float | None = None,
    costs: Costs | None = None,
    lanes: Sequence[LaneSettings] = LANES,
) -> World:
    """Let a batch queue be full while people ask, three times as often as in the table; return it ended."""
    world = World(lanes, costs)
    flood = Flood(world.front, asker(seed, "batch", _GROWING, FOREVER_S, lane="batch"), places=32)
    poisson(world, asker(seed, "interactive", INTERACTIVE, INTERACTIVE_LANE.deadline_s), a_second, seconds)
    if deaths_mean_s is not None:
        disturb(world, seed, seconds, deaths_mean_s)
    world.run(seconds)
    flood.stop()
    world.close("interactive")
    return world
