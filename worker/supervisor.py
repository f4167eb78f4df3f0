"""The supervisor: starts worker.process, listens to it, and does what the restart policy decides.

A thin doer. What happens becomes an event on one queue, one task handles them in order, and every decision
is RestartPolicy's. What goes to disk is a scribe's work. It imports neither MLX nor anything else that could
take it down with its worker.
"""

import asyncio
import contextlib
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, assert_never

from shared import logs
from shared.channel import DealerChannel
from shared.clock import Clock, SystemClock
from shared.codec import decode, encode
from shared.config import Settings
from shared.errors import FrameError
from shared.limits import MIB
from shared.messages import BackingOff, Exited, Restart, Starting, Stop
from shared.run_folder import RunFolder
from worker import leftovers
from worker.child import Child, Launcher, StderrFolder
from worker.epochs import Past, store_epoch
from worker.journal import CareChanged, Ended, Ran, SupervisorStarted, SupervisorStopped, folder_of
from worker.journal_file import Journal, JournalFile
from worker.launch import LaunchSpec, supervisor_identity, worker_environment
from worker.restart import RestartPolicy
from worker.scribe import Scribe
from worker.shortage import ShortageWatch
from worker.supervision import (
    Event,
    FoundStopped,
    Instruction,
    Kill,
    ProcessExited,
    Progressed,
    Quit,
    RestartAsked,
    Spawn,
    SpawnFailed,
    Started,
    StopAsked,
    Tell,
    Terminate,
    Ticked,
    Write,
)

# -P, where we ourselves run with it: what lies in the current folder can't stand in for these packages.
COMMAND: Final = (sys.executable, *(("-P",) if sys.flags.safe_path else ()), "-m", "worker.process_start")
TICK_S: Final = 0.25

# The channel closes without lingering; its thread gets this long to write out the last word.
_LAST_WORD_S: Final = 0.1
# What the journal gets to be written out at the end, if the disk is slow.
_FLUSH_S: Final = 2.0
_STDERR_TAIL_CHARS: Final = 2048

_log = logs.get("supervisor")


class Supervisor:
    """Keeps one worker process alive until it is told to stop.

    `past` is what earlier supervisors of this worker left behind, `boot` names this run of the machine.
    `command` gets a LaunchSpec as its last argument; `preload` is a shared library that the worker is started
    with.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        name: str,
        *,
        past: Past,
        boot: str,
        worker: str = "0",
        command: Sequence[str] = COMMAND,
        preload: Path | None = None,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock or SystemClock()
        self._identity = supervisor_identity(worker)
        self._run_folder = RunFolder(settings.home_folder, settings.port)
        self._logs_folder = folder_of(settings.home_folder)
        self._past = past
        self._boot = boot
        self._stderr = StderrFolder(
            # One for each port: another one's crashes would push out what this one's worker says.
            self._logs_folder / f"worker-{worker}-{settings.port}",
            settings.worker.stderr_lives_kept,
            settings.worker.stderr_mb * MIB,
        )
        spec = LaunchSpec(
            worker=worker,
            epoch=past.first_epoch,
            endpoint=self._run_folder.endpoint,
            folder=str(folder.absolute()),
            name=name,
            progress_fd=-1,
            lifeline_fd=-1,
            manifest_fd=-1,
            settings=settings.worker,
            log=settings.log,
            prefix_folder=str(settings.home_folder / "prefixes"),
            findings_file=str(self._run_folder.findings),
        )
        self._launcher = Launcher(tuple(command), worker_environment(preload), spec, self._stderr)
        self._policy = RestartPolicy(
            settings.worker, first_epoch=past.first_epoch, jitter=jitter, rung=past.rung
        )
        self._scribe = Scribe()
        file = JournalFile(self._logs_folder, settings.worker.journal_mb * MIB)
        self._journal = Journal(file, self._scribe, boot=boot, port=settings.port)
        self._memory = ShortageWatch()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks = asyncio.TaskGroup()
        self._child: Child | None = None
        self._cutting = False
        self._quit = False
        self.frames_dropped = 0

    async def run(self) -> None:
        """Supervise until asked to stop. Whatever happens here, no worker process is left behind."""
        # Since then MLX, mlx-lm or this program may be others; of one supervisor's lives they are the same.
        self._run_folder.findings.unlink(missing_ok=True)
        channel = DealerChannel(self._run_folder.endpoint, self._identity)
        self._journal.write(
            SupervisorStarted(os.getpid(), self._past.lost_epoch, self._past.machine_went_down)
        )
        try:
            async with self._tasks:
                ticker = self._tasks.create_task(self._tick(channel))
                await self._obey(channel)
                ticker.cancel()
        finally:
            await self._bury()
            channel.close()
            self._scribe.close(_FLUSH_S)

    def stop(self, *, at_once: bool = False) -> None:
        """End the worker and then `run`; a second time, or at once, without any grace."""
        self._events.put_nowait(StopAsked(self._clock.now(), at_once))

    # --- what happens ---

    async def _tick(self, channel: DealerChannel) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._memory.look()
            self._hear(channel)
            self._cut_stderr()
            self._events.put_nowait(Ticked(self._clock.now()))

    def _hear(self, channel: DealerChannel) -> None:
        """Take the proxy's orders."""
        for frame in channel.drain():
            try:
                message = decode(frame)
            except FrameError as problem:
                self._drop(str(problem))
                continue
            match message:
                case Restart(epoch):
                    _log.info("the proxy asks for a new worker", instead_of=epoch)
                    self._events.put_nowait(RestartAsked(epoch, self._clock.now()))
                case Stop():
                    _log.info("the proxy asks to stop")
                    self.stop()
                case _:
                    self._drop(f"a {type(message).__name__} is none of the supervisor's business")

    def _drop(self, problem: str) -> None:
        self.frames_dropped += 1
        if self.frames_dropped == 1:
            _log.warning("the proxy's words are dropped where they make no sense", first=problem)

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
        evidence = self._memory.evidence()
        self._read(child)
        rows = child.rows()
        await self._bury()
        tail = self._stderr.tail(child.epoch)
        self._events.put_nowait(ProcessExited(status, tail, self._clock.now(), rows, evidence))

    # --- what is to be done ---

    async def _obey(self, channel: DealerChannel) -> None:
        self._events.put_nowait(Started(self._clock.now()))
        while not self._quit:
            for instruction in self._policy.handle(await self._events.get()):
                await self._do(instruction, channel)
        await asyncio.sleep(_LAST_WORD_S)

    async def _do(self, instruction: Instruction, channel: DealerChannel) -> None:
        match instruction:
            case Spawn(epoch, keeps_prefixes):
                await self._spawn(epoch, keeps_prefixes=keeps_prefixes)
            case Terminate():
                if self._child is not None:
                    self._child.terminate()
            case Kill(reason):
                self._kill(reason)
            case Tell():
                _tell(instruction, channel)
            case Write():
                self._write(instruction)
            case Quit():
                self._journal.write(SupervisorStopped())
                self._quit = True
            case _:
                assert_never(instruction)

    async def _spawn(self, epoch: int, *, keeps_prefixes: bool) -> None:
        assert self._child is None, "two worker processes at a time"
        logs.about_epoch(epoch)
        self._scribe.submit(partial(_store, self._logs_folder, epoch))
        try:
            child = await self._launcher.start(epoch, keeps_prefixes=keeps_prefixes)
        except (OSError, RuntimeError) as problem:
            # Who waits for a process is a thread, where it can't be started that is a RuntimeError.
            self._events.put_nowait(SpawnFailed(str(problem), self._clock.now()))
            return
        self._child = child
        # Now, for when the scribe comes to it the number may be another's.
        birth = leftovers.birth(child.process.pid, self._boot)
        self._scribe.submit(partial(_note, self._run_folder.worker_pid, child.process.pid, birth))
        asyncio.get_running_loop().add_reader(child.progress_fd, self._read, child)
        self._tasks.create_task(self._watch(child))

    def _kill(self, reason: str) -> None:
        _log.warning("killing the worker", reason=reason)
        if self._child is None:
            return
        if self._child.is_stopped():
            self._events.put_nowait(FoundStopped(self._clock.now()))
        self._child.kill()

    def _write(self, instruction: Write) -> None:
        entry = instruction.entry
        match entry:
            case Ran() if self._child is not None:
                entry = replace(entry, rows=self._child.rows())
            case Ended():
                entry = replace(entry, stderr_tail=entry.stderr_tail[-_STDERR_TAIL_CHARS:])
            case CareChanged(_, rung, breaker):
                _log.warning("the supervisor's care changes", rung=rung, breaker=breaker)
        self._journal.write(entry)

    def _cut_stderr(self) -> None:
        """Have the worker's stderr looked at, unless the disk still owes the last look."""
        if self._child is not None and not self._cutting:
            # First, for the scribe may be done with it at once.
            self._cutting = True
            if not self._scribe.submit(partial(self._cut, self._child.epoch)):
                self._cutting = False

    def _cut(self, epoch: int) -> None:
        self._stderr.cut(epoch)
        self._cutting = False

    async def _bury(self) -> None:
        """Let go of the worker process, ending it if it still runs."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        await child.process.wait()
        asyncio.get_running_loop().remove_reader(child.progress_fd)
        child.release()


def _store(folder: Path, epoch: int) -> None:
    # The journal warns of the same disk.
    with contextlib.suppress(OSError):
        store_epoch(folder, epoch)


def _note(file: Path, pid: int, birth: str | None) -> None:
    with contextlib.suppress(OSError):
        leftovers.note(file, pid, birth)


def _tell(instruction: Tell, channel: DealerChannel) -> None:
    """Send a word to the proxy, if one is connected."""
    channel.send(encode(instruction.message))
    if not instruction.again:
        _report(instruction.message)


def _report(message: Starting | Exited | BackingOff) -> None:
    match message:
        case Starting(epoch, care):
            _log.info("the worker starts", epoch=epoch, rung=care.rung, breaker=care.breaker)
        case Exited(epoch, "planned", detail):
            _log.info("the worker left", epoch=epoch, detail=detail)
        case Exited(epoch, cause, detail, rows):
            _log.warning("the worker died", epoch=epoch, cause=cause, detail=detail, rows=len(rows))
        case BackingOff(epoch, delay_s, care):
            _log.warning(
                "the next worker waits", epoch=epoch, delay_s=round(delay_s, 2), breaker=care.breaker
            )
        case _:
            assert_never(message)
