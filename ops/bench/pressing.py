"""One pass: warm-up requests, then the counted ones at the point's load, and what the server held then."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

import aiohttp

from ops.bench.bar import Bar
from ops.bench.figures import Pass
from ops.bench.plan import Plan, Point
from ops.bench.prompts import Prompts
from ops.bench.schedule import Step
from ops.bench.target import Target
from ops.load.arrivals import dice
from ops.load.client import Client
from ops.load.loops import open_loop
from ops.load.records import Ask

_AFTER_FAILURE_S: Final = 0.2
_TICK_S: Final = 0.2
_MEMORY_EVERY_S: Final = 1.0

# What goes beside a pass while it lasts; it is given the pass's client.
Beside = Callable[[Client], contextlib.AbstractAsyncContextManager[None]]


class Press:
    """Sends what a plan says to whichever target."""

    def __init__(self, plan: Plan, prompts: Prompts, bar: Bar) -> None:
        self._plan = plan
        self._prompts = prompts
        self._bar = bar
        self._numbers = itertools.count(1)

    def asks(
        self, target: Target, points: Iterable[Point], purpose: str, lane: str = "interactive"
    ) -> list[Ask]:
        """Return a request for each point, no two with the same prompt."""
        return [
            Ask(
                self._prompts.text(point.prompt_tokens, purpose, number),
                point.output_tokens,
                lane=lane,
                key=target.key,
            )
            for number, point in enumerate(points)
        ]

    def client(self, target: Target) -> Client:
        """Return a client of its own connections."""
        return Client(
            target.address.api,
            target.model,
            more=target.more,
            label=f"bench-{self._prompts.salt}-{next(self._numbers)}",
            timeout_s=self._plan.timeout_s,
        )

    async def run(
        self,
        target: Target,
        step: Step,
        asks: Sequence[Ask],
        taken: list[Pass],
        beside: Beside | None = None,
    ) -> None:
        """Send all; add the pass to `taken`, also if it is cancelled in the middle."""
        point, title = step.arm.point, step.title
        self._bar.begin(title)
        async with self.client(target) as client, _memory(target) as peak:
            warm_up = self.asks(target, [point] * self._plan.warm_up, f"{title}, warm-up")
            await closed(client, warm_up, point.concurrency)
            client.take()
            began = time.monotonic()
            whole = False
            try:
                async with self._ticking(client), beside(client) if beside else contextlib.nullcontext():
                    began = time.monotonic()
                    await self._send(client, point, asks, title)
                    whole = True
            finally:
                records = client.take()
                ended = max((record.ended_at for record in records), default=time.monotonic())
                taken.append(Pass(records, began, ended, not whole, peak()))
                self._bar.end(len(asks) + self._plan.warm_up)

    async def _send(self, client: Client, point: Point, asks: Sequence[Ask], title: str) -> None:
        if point.rate_hz is None:
            await closed(client, asks, point.concurrency)
            return
        moments = arrivals(point.rate_hz, len(asks), self._plan.seed, title)
        records = await open_loop(
            client,
            list(zip(moments, asks, strict=True)),
            began=time.monotonic(),
            patience_s=self._plan.timeout_s,
        )
        client.records.extend(records)

    @contextlib.asynccontextmanager
    async def _ticking(self, client: Client) -> AsyncIterator[None]:
        async def tick() -> None:
            while True:
                self._bar.tick(len(client.records))
                await asyncio.sleep(_TICK_S)

        async with _while(tick()):
            yield


def arrivals(rate_hz: float, count: int, seed: int, purpose: str) -> tuple[float, ...]:
    """Return the seconds at which so many requests arrive that know nothing of each other."""
    numbers = dice(seed, "arrivals", purpose)
    return tuple(itertools.accumulate(numbers.expovariate(rate_hz) for _ in range(count)))


async def closed(client: Client, asks: Iterable[Ask], streams: int) -> None:
    """Send all, so many at a time; a refusal is followed by a short pause, as of a client that is polite."""
    waiting = iter(asks)

    async def one_after_another() -> None:
        for ask in waiting:
            record = await client.ask(ask)
            if not record.completed:
                await asyncio.sleep(_AFTER_FAILURE_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(streams):
            tasks.create_task(one_after_another())


@contextlib.asynccontextmanager
async def _memory(target: Target) -> AsyncIterator[Callable[[], int | None]]:
    """Look again and again what the target holds; yield what returns the most of it."""
    most: list[int] = []

    async def watch() -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                held = await target.peak_bytes(session)
                if held is None and not most:
                    return
                most[:] = [max([*most, held or 0])]
                await asyncio.sleep(_MEMORY_EVERY_S)

    async with _while(watch()):
        yield lambda: most[0] if most else None


@contextlib.asynccontextmanager
async def _while(doing: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let something go on until the block ends."""
    task = asyncio.create_task(doing)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
