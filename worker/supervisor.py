"""The supervisor: starts worker.process, listens to it, and does what the restart policy decides.

A thin doer. What happens becomes an event on one queue, one task handles them in order, and every decision
is RestartPolicy's. It imports neither MLX nor anything else that could take it down with its worker.
"""

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, assert_never

from shared import logs
from shared.channel import DealerChannel
from shared.clock import Clock, SystemClock
from shared.codec import encode
from shared.config import Settings
from shared.messages import BackingOff, Exited, Starting
from shared.run_folder import RunFolder
from worker.child import Child, Launcher, StderrFolder
from worker.launch import LaunchSpec, supervisor_identity, worker_environment
from worker.restart import (
    Event,
    Instruction,
    Kill,
    ProcessExited,
    Progressed,
    Quit,
    RestartPolicy,
    Spawn,
    SpawnFailed,
    Started,
    StopAsked,
    Tell,
    Terminate,
    Ticked,
)

# -P, where we ourselves run with it: what lies in the current folder can't stand in for these packages.
COMMAND: Final = (sys.executable, *(("-P",) if sys.flags.safe_path else ()), "-m", "worker.process")
TICK_S: Final = 0.25

# The channel closes without lingering; its thread gets this long to write out the last word.
_LAST_WORD_S: Final = 0.1

_log = logs.get("supervisor")


class Supervisor:
    """Keeps one worker process alive until it is told to stop.

    `first_epoch` must exceed every epoch of earlier supervisors of this worker. `command` gets a LaunchSpec
    as its last argument; `preload` is a shared library that the worker is started with.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        name: str,
        *,
        first_epoch: int,
        worker: str = "0",
        command: Sequence[str] = COMMAND,
        preload: Path | None = None,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock or SystemClock()
        self._identity = supervisor_identity(worker)
        self._endpoint = RunFolder(settings.home_folder, settings.port).endpoint
        self._stderr = StderrFolder(
            settings.home_folder / "logs" / f"worker-{worker}", settings.worker.stderr_lives_kept
        )
        spec = LaunchSpec(
            worker=worker,
            epoch=first_epoch,
            endpoint=self._endpoint,
            folder=str(folder.absolute()),
            name=name,
            progress_fd=-1,
            lifeline_fd=-1,
            settings=settings.worker,
            log=settings.log,
        )
        self._launcher = Launcher(tuple(command), worker_environment(preload), spec, self._stderr)
        self._policy = RestartPolicy(settings.worker, first_epoch=first_epoch, jitter=jitter)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks = asyncio.TaskGroup()
        self._child: Child | None = None
        self._quit = False

    async def run(self) -> None:
        """Supervise until asked to stop. Whatever happens here, no worker process is left behind."""
        channel = DealerChannel(self._endpoint, self._identity)
        try:
            async with self._tasks:
                ticker = self._tasks.create_task(self._tick())
                await self._obey(channel)
                ticker.cancel()
        finally:
            await self._bury()
            channel.close()

    def stop(self, *, at_once: bool = False) -> None:
        """End the worker and then `run`; a second time, or at once, without any grace."""
        self._events.put_nowait(StopAsked(self._clock.now(), at_once))

    # --- what happens ---

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._events.put_nowait(Ticked(self._clock.now()))

    def _read(self, child: Child) -> None:
        data = child.read()
        if data is None:
            asyncio.get_running_loop().remove_reader(child.progress_fd)
            return
        for progress in child.reader.feed(data):
            self._events.put_nowait(Progressed(progress, self._clock.now()))

    async def _watch(self, child: Child) -> None:
        """Wait for the process itself, by its pid: a death shows within milliseconds, whatever it broke."""
        status = await child.process.wait()
        self._read(child)
        await self._bury()
        self._events.put_nowait(ProcessExited(status, self._stderr.tail(child.epoch), self._clock.now()))

    # --- what is to be done ---

    async def _obey(self, channel: DealerChannel) -> None:
        self._events.put_nowait(Started(self._clock.now()))
        while not self._quit:
            for instruction in self._policy.handle(await self._events.get()):
                await self._do(instruction, channel)
        await asyncio.sleep(_LAST_WORD_S)

    async def _do(self, instruction: Instruction, channel: DealerChannel) -> None:
        match instruction:
            case Spawn(epoch):
                await self._spawn(epoch)
            case Terminate():
                if self._child is not None:
                    self._child.terminate()
            case Kill(reason):
                _log.warning("killing the worker", reason=reason)
                if self._child is not None:
                    self._child.kill()
            case Tell():
                _tell(instruction, channel)
            case Quit():
                self._quit = True
            case _:
                assert_never(instruction)

    async def _spawn(self, epoch: int) -> None:
        assert self._child is None, "two worker processes at a time"
        try:
            child = await self._launcher.start(epoch)
        except OSError as problem:
            self._events.put_nowait(SpawnFailed(str(problem), self._clock.now()))
            return
        self._child = child
        asyncio.get_running_loop().add_reader(child.progress_fd, self._read, child)
        self._tasks.create_task(self._watch(child))

    async def _bury(self) -> None:
        """Let go of the worker process, ending it if it still runs."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        await child.process.wait()
        asyncio.get_running_loop().remove_reader(child.progress_fd)
        child.release()


def _tell(instruction: Tell, channel: DealerChannel) -> None:
    """Send a word to the proxy, if one is connected; what it sends is not for us and is thrown away."""
    channel.drain()
    channel.send(encode(instruction.message))
    if not instruction.again:
        _report(instruction.message)


def _report(message: Starting | Exited | BackingOff) -> None:
    match message:
        case Starting(epoch):
            _log.info("the worker starts", epoch=epoch)
        case Exited(epoch, "planned", detail):
            _log.info("the worker left", epoch=epoch, detail=detail)
        case Exited(epoch, cause, detail):
            _log.warning("the worker died", epoch=epoch, cause=cause, detail=detail)
        case BackingOff(epoch, delay_s):
            _log.warning("the next worker waits", epoch=epoch, delay_s=round(delay_s, 2))
        case _:
            assert_never(message)
