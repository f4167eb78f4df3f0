"""The false clients: who asks for what, and when. All randomness comes from the seed."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from shared.errors import Unavailable
from tests.simulation.front import Front
from tests.simulation.request import Request
from tests.simulation.world import World

FOREVER_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens, as (mean, deviation) of their logarithms, and what is asked for."""

    prompt: tuple[float, float]
    answer: tuple[float, float]
    max_tokens: int


# What the survey's simulation had.
INTERACTIVE: Final = Lengths((6.9, 0.7), (5.2, 0.6), 1024)
BATCH: Final = Lengths((8.0, 0.6), (5.8, 0.6), 2048)
_PROMPT_TOKENS_MAX: Final = 32_768


@dataclass(slots=True)
class Asker:
    """Makes one kind of request, one after the other."""

    kind: str
    lane: str
    lengths: Lengths
    deadline_s: float
    random: Random
    key: str = ""
    weight: float = 1.0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def next(self, finished: Callable[[Request], None] | None = None) -> Request:
        prompt = min(_PROMPT_TOKENS_MAX, max(1, round(self.random.lognormvariate(*self.lengths.prompt))))
        length = max(1, round(self.random.lognormvariate(*self.lengths.answer)))
        return Request(
            name=f"{self.kind}{self.key}/{next(self._numbers)}",
            kind=self.kind,
            lane=self.lane,
            prompt_tokens=prompt,
            length=min(length, self.lengths.max_tokens),
            max_tokens=self.lengths.max_tokens,
            deadline_s=self.deadline_s,
            key=self.key,
            weight=self.weight,
            finished=finished,
        )


def poisson(world: World, asker: Asker, a_second: float, seconds: float) -> None:
    """Ask at random times, whatever becomes of it: an open loop."""
    when = world.clock.now
    until = when + seconds
    while (when := when + asker.random.expovariate(a_second)) < until:
        world.clock.at(when, lambda: world.front.offer([asker.next()]))


class Flood:
    """Keeps so many waiting in a lane, whatever starts or ends, until it is stopped."""

    def __init__(self, front: Front, asker: Asker, places: int) -> None:
        self._front = front
        self._asker = asker
        self._places = places
        self._waiting: set[str] = set()
        self._filling = False
        self.on = True
        front.watchers.append(self)
        self._fill()

    def stop(self) -> None:
        """Ask no more, and let all go who wait."""
        self.on = False
        for request in [each for each in self._front.live.values() if each.kind == self._asker.kind]:
            if not request.running:
                self._front.leave(request)

    def _fill(self) -> None:
        if self._filling or not self.on:
            return
        self._filling = True
        while len(self._waiting) < self._places:
            request = self._asker.next()
            self._front.offer([request])
            assert request.refusal is None, f"a flood within the queue's bound is refused: {request.refusal}"
        self._filling = False

    def offered(self, request: Request) -> None: ...
    def token(self, request: Request, index: int, token: int) -> None: ...
    def put_back(self, request: Request) -> None: ...

    def queued(self, request: Request) -> None:
        if request.kind == self._asker.kind:
            self._waiting.add(request.name)

    def ended(self, request: Request) -> None:
        self._waiting.discard(request.name)

    def decided(self, instructions) -> None:
        for instruction in instructions:
            if instruction.name in self._waiting and self._front.live[instruction.name].running:
                self._waiting.discard(instruction.name)
        self._fill()


class Stream:
    """Asks again as soon as it is answered: a closed loop. A refused one comes back when it was told to."""

    def __init__(self, world: World, asker: Asker) -> None:
        self._world = world
        self._asker = asker
        self.on = True
        self._ask()

    def _ask(self) -> None:
        if self.on:
            self._world.front.offer([self._asker.next(self._ended)])

    def _ended(self, request: Request) -> None:
        if isinstance(request.refusal, Unavailable):
            jitter = self._asker.random.uniform(0.8, 1.2)
            self._world.clock.after(request.refusal.retry_after_s * jitter, self._ask)
        else:
            self._ask()


@dataclass(slots=True)
class Obeying:
    """A client with one wish: it comes back when it was told to, until it is served or has had enough."""

    world: World
    asker: Asker
    on: bool = True
    attempts: int = 0
    served: Request | None = None

    def ask(self) -> None:
        if self.on:
            self.attempts += 1
            self.world.front.offer([self.asker.next(self._ended)])

    def _ended(self, request: Request) -> None:
        if request.completed:
            self.served = request
        elif isinstance(request.refusal, Unavailable):
            jitter = self.asker.random.uniform(0.8, 1.2)
            self.world.clock.after(request.refusal.retry_after_s * jitter, self.ask)
