"""Does what the schedule says, step by step, and keeps what was measured when it is stopped."""

import asyncio
import contextlib
import itertools
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ops.bench.bar import Bar
from ops.bench.figures import Arm, Pass
from ops.bench.plan import Plan
from ops.bench.pressing import Beside, Press
from ops.bench.prompts import Prompts
from ops.bench.schedule import BESIDE, OVER, PEAK, TIMES_TOO_MANY, Step
from ops.bench.target import Target
from ops.load.client import Client
from ops.load.loops import closed_loop, settled
from ops.load.records import Ask
from shared.errors import ForebayError

_RATE_HZ_MIN: Final = 0.1

Stopped = Literal["", "interrupted", "out of time"]


@dataclass(slots=True)
class Measured:
    """All passes so far by arm, when workers were killed (monotonic seconds), and why it ended early."""

    passes: dict[Arm, list[Pass]] = field(default_factory=dict)
    killed_at: list[float] = field(default_factory=list)
    stopped: Stopped = ""

    @property
    def completed(self) -> int:
        return sum(len(each.completed) for passes in self.passes.values() for each in passes)


class Doer:
    """Makes passes against targets by their name. `kill` ends the worker, for the scenario of its death."""

    def __init__(
        self,
        plan: Plan,
        targets: Mapping[str, Target],
        prompts: Prompts,
        bar: Bar,
        kill: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._plan = plan
        self._targets = targets
        self._prompts = prompts
        self._press = Press(plan, prompts, bar)
        self._bar = bar
        self._kill = kill

    async def do(self, steps: Sequence[Step], measured: Measured) -> None:
        for step in steps:
            taken = measured.passes.setdefault(step.arm, [])
            await self._do(step, taken, measured)

    async def _do(self, step: Step, taken: list[Pass], measured: Measured) -> None:
        target, point = self._targets[step.arm.target], step.arm.point
        asks = self._press.asks(target, step.points, step.title)
        beside: Beside | None = None
        if step.arm.part == BESIDE:
            beside = self._flood(target, step)
        elif step.arm.part == OVER:
            point = replace(point, rate_hz=self._too_fast_hz(step.arm, measured))
        elif step.arm.work == "death":
            beside = self._death(len(asks) // 4, measured)
        await self._press.run(target, replace(step, arm=replace(step.arm, point=point)), asks, taken, beside)

    def _too_fast_hz(self, arm: Arm, measured: Measured) -> float:
        """Return ten times the requests that the pass before completed in a second."""
        peak = measured.passes[replace(arm, part=PEAK)][-1]
        return max(_RATE_HZ_MIN, TIMES_TOO_MANY * len(peak.completed) / max(peak.seconds, 1e-3))

    def _flood(self, target: Target, step: Step) -> Beside:
        """Keep batch streams without end under way, as many as the sweep goes up to."""
        at = self._plan.axes.middle
        numbers = itertools.count()

        def draw() -> Ask:
            text = self._prompts.text(at.prompt_tokens, step.title, "flood", next(numbers))
            return Ask(text, at.output_tokens, lane="batch", key=target.key)

        @contextlib.asynccontextmanager
        async def beside(_client: Client) -> AsyncIterator[None]:
            streams = max(self._plan.axes.concurrency)
            async with self._press.client(target) as flood, closed_loop(flood, draw, streams):
                await settled(0.0, (flood, 1))
                yield

        return beside

    def _death(self, after: int, measured: Measured) -> Beside:
        """Kill the worker once so many requests have ended, which is when others are in the middle."""
        kill = self._kill
        assert kill is not None, "nobody asked for a death"

        async def killing(client: Client) -> None:
            await client.until_ended(after)
            moment = time.monotonic()
            try:
                await kill()
            except (ForebayError, OSError) as problem:
                self._bar.say(f"The worker wasn't ended: {problem}")
            else:
                measured.killed_at.append(moment)

        @contextlib.asynccontextmanager
        async def beside(client: Client) -> AsyncIterator[None]:
            task = asyncio.create_task(killing(client))
            try:
                yield
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

        return beside


async def until_stopped(doing: Awaitable[None], seconds_max: float) -> Stopped:
    """Await it until its end, Ctrl-C, SIGTERM or the time limit; a second Ctrl-C ends the program."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(doing)
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    waiting = asyncio.create_task(told.wait())
    try:
        await asyncio.wait({task, waiting}, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        stopped = _why(task.done(), told.is_set())
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return stopped


def _why(done: bool, told: bool) -> Stopped:
    if done:
        return ""
    return "interrupted" if told else "out of time"
