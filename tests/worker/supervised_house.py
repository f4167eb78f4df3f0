"""A home folder, a false proxy that listens on its endpoint, and the supervisors that a test starts there."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import IO, Final

import pytest

from shared.channel import RouterChannel
from shared.codec import decode
from shared.config import Settings, WorkerSettings
from shared.messages import Exited, Message
from shared.run_folder import RunFolder
from worker import restart, supervisor
from worker.epochs import Past
from worker.journal import Life, read_lives
from worker.supervisor import Supervisor

FALSE_PROCESS: Final = Path(__file__).with_name("false_process.py")
DEADLINE_S: Final = 60
HURRIED_SHARE: Final = 0.25  # of a back-off
FRESH: Final = Past(first_epoch=1)
# A supervisor in a process of its own, that gives little grace: home, lives file, plan, lifeline.
SUPERVISOR: Final = """
import sys
from pathlib import Path
from shared import logs
from shared.config import LogSettings, Settings
from worker import restart, supervisor
from worker.__main__ import run
logs.configure(LogSettings())
restart.STOP_GRACE_S, supervisor.TICK_S = 0.5, 0.05
home, lives, plan, script, lifeline = sys.argv[1:]
command = (sys.executable, script, plan, lives)
sys.exit(run(Settings(home=Path(home)), Path(home), int(lifeline) or None, command=command))
"""


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let supervisors of this process look, repeat and try again sooner than they do in service."""
    backoff_s = restart.backoff_s
    monkeypatch.setattr(supervisor, "TICK_S", 0.05)
    monkeypatch.setattr(restart, "REPEAT_S", 0.25)
    monkeypatch.setattr(
        restart, "backoff_s", lambda failures, jitter: backoff_s(failures, jitter) * HURRIED_SHARE
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what is waited for happens in another process
            await asyncio.sleep(0.02)


async def until_true(attempt: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await attempt():  # noqa: ASYNC110 (what is waited for happens in another process)
            await asyncio.sleep(0.02)


def is_gone(pid: int) -> bool:
    """A process that nobody has reaped is gone too: in a container the orphans' parent may never do it."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def open_descriptors() -> int:
    folder = "/proc/self/fd" if Path("/proc/self/fd").exists() else "/dev/fd"
    return len(list(Path(folder).iterdir()))


class House:
    """A home folder, a false proxy on its endpoint, and the supervisors that a test starts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lives_file = home / "lives"
        self.heard: list[Message] = []
        folder = RunFolder(home, 8000)
        folder.create()
        self.router = RouterChannel(folder.endpoint)
        self.listener = asyncio.create_task(self.listen())

    async def listen(self) -> None:
        while True:
            identity, frame = await self.router.receive()
            assert identity == b"s-0"
            self.heard.append(decode(frame))

    async def leave(self) -> None:
        self.listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.listener
        self.router.close()

    def new_supervisor(self, plan: str, past: Past = FRESH, **worker: float) -> Supervisor:
        return Supervisor(
            Settings(home=self.home, worker=WorkerSettings.model_validate(worker)),
            self.home,
            "demo",
            past=past,
            boot="this boot",
            command=(sys.executable, str(FALSE_PROCESS), plan, str(self.lives_file)),
        )

    @contextlib.asynccontextmanager
    async def supervisor(self, plan: str, past: Past = FRESH, **worker: float) -> AsyncIterator[Supervisor]:
        """Run a supervisor in this process, and check that it leaves no worker behind."""
        supervisor = self.new_supervisor(plan, past, **worker)
        running = asyncio.create_task(supervisor.run())
        try:
            yield supervisor
        finally:
            supervisor.stop()
            async with asyncio.timeout(DEADLINE_S):
                await running
        assert all(is_gone(pid) for pid in self.pids())

    def start_process(
        self, plan: str, lifeline_fd: int = 0, stderr: IO[bytes] | None = None
    ) -> subprocess.Popen[bytes]:
        words = (self.home, self.lives_file, plan, FALSE_PROCESS, lifeline_fd)
        return subprocess.Popen(
            (sys.executable, "-c", SUPERVISOR, *map(str, words)),
            pass_fds=(lifeline_fd,) if lifeline_fd else (),
            stderr=stderr,
        )

    def pids(self) -> list[int]:
        text = self.lives_file.read_text() if self.lives_file.exists() else ""
        return [int(line.split()[1]) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    async def order(self, frame: bytes) -> None:
        """Send a frame to the supervisor."""
        await until_true(lambda: self.router.send(b"s-0", frame))

    def exited(self, epoch: int) -> Exited:
        return next(it for it in self.heard if isinstance(it, Exited) and it.epoch == epoch)

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    def lives(self) -> list[Life]:
        return read_lives(self.logs)

    def has_heard(self, kind: type[Message], **values: object) -> bool:
        return any(
            isinstance(message, kind)
            and all(getattr(message, name) == value for name, value in values.items())
            for message in self.heard
        )

    async def hears(self, kind: type[Message], **values: object) -> None:
        await until(lambda: self.has_heard(kind, **values))

    async def until_ready(self, life: int) -> int:
        await until(self.home.joinpath(f"ready-{life}").exists)
        return self.pids()[life - 1]

    async def until_lives(self, count: int) -> int:
        await until(lambda: len(self.pids()) >= count)
        return self.pids()[count - 1]


async def ended(process: subprocess.Popen[bytes]) -> int:
    await until(lambda: process.poll() is not None)
    return process.returncode
