"""A real worker process on a tiny model, seen from its supervisor and from its proxy."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from shared.channel import RouterChannel
from shared.codec import decode, encode
from shared.config import LogSettings, WorkerSettings
from shared.limits import PING_INTERVAL_S
from shared.messages import Message, Ping, Step, Submit
from shared.run_folder import RunFolder
from shared.sampling import Sampling
from worker import foreign_signals, manifest
from worker.launch import (
    LaunchSpec,
    find_openblas,
    identity,
    worker_environment,
)

EPOCH: Final = 3
DEADLINE_S: Final = 60
PROMPT: Final = (5, 6, 7, 8)
ENDLESS: Final = 4000  # tokens: seconds of work, for what is ended as soon as it has begun
CONTEXT: Final = ENDLESS + 256


class Life:
    """One life of the process, seen from its supervisor and from its proxy."""

    def __init__(
        self,
        home: Path,
        folder: Path,
        command: tuple[str, ...],
        *,
        begins_blocked: bool = True,
        **settings: Any,
    ) -> None:
        run_folder = RunFolder(home, 8000)
        run_folder.create()
        self.router = RouterChannel(run_folder.endpoint)
        self.heard: list[Message] = []
        self.progress_fd, progress_end = os.pipe()
        lifeline_end, self.lifeline_fd = os.pipe()
        self.manifest_fd = manifest.create()
        spec = LaunchSpec(
            worker="0",
            epoch=EPOCH,
            endpoint=run_folder.endpoint,
            folder=str(folder),
            name="tiny",
            progress_fd=progress_end,
            lifeline_fd=lifeline_end,
            manifest_fd=self.manifest_fd,
            settings=WorkerSettings.model_validate({"slots": 3, **settings}),
            log=LogSettings(format="json"),
            prefix_folder=str(run_folder.path / "prefixes"),
            findings_file=str(run_folder.findings),
        )
        descriptors = (progress_end, lifeline_end, self.manifest_fd)
        with foreign_signals.blocked() if begins_blocked else contextlib.nullcontext():
            self.process = subprocess.Popen(
                (*command, spec.to_json()),
                pass_fds=descriptors,
                stderr=subprocess.PIPE,
                env=worker_environment(find_openblas()),
            )
        os.close(progress_end)
        os.close(lifeline_end)
        self.listener = asyncio.create_task(self.listen())
        self.pinging: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        while True:
            sender, frame = await self.router.receive()
            assert sender == identity("0", EPOCH)
            self.heard.append(decode(frame))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.communicate()
        for task in (self.listener, self.pinging):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self.router.close()
        os.close(self.progress_fd)
        os.close(self.manifest_fd)
        self.cut_lifeline()

    async def say(self, message: Message) -> None:
        assert await self.router.send(identity("0", EPOCH), encode(message))

    def is_pinged(self) -> None:
        """Ping it from now on, as a proxy does: without, it drops its rows, on a slow machine too soon."""

        async def ping() -> None:
            while True:
                await self.router.send(identity("0", EPOCH), encode(Ping(EPOCH, 1)))
                await asyncio.sleep(PING_INTERVAL_S)

        self.pinging = asyncio.create_task(ping())

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110  what is waited for happens in another process
                await asyncio.sleep(0.01)

    async def hears(self, kind: type[Any], **values: object) -> Any:
        """Wait for a message of a kind with these values, and return it."""

        def those() -> list[Any]:
            return [
                message
                for message in self.heard
                if isinstance(message, kind)
                and all(getattr(message, name) == value for name, value in values.items())
            ]

        await self.until(those)
        return those()[0]

    async def loads(self) -> None:
        """Wait until the process says that it loads."""
        await asyncio.to_thread(os.read, self.progress_fd, 1)

    async def exit_status(self) -> tuple[int, str]:
        """Wait for the end of the process; return its status and its last words."""
        _, words = await asyncio.to_thread(self.process.communicate, timeout=DEADLINE_S)
        return self.process.returncode, words.decode()

    def cut_lifeline(self) -> None:
        if self.lifeline_fd >= 0:
            os.close(self.lifeline_fd)
            self.lifeline_fd = -1

    def tokens(self, sequence: str) -> list[int]:
        steps = [message for message in self.heard if isinstance(message, Step)]
        return [row.token for step in steps for row in step.rows if row.sequence == sequence]


def submit(name: str, max_tokens: int, epoch: int = EPOCH) -> Submit:
    return Submit(epoch, name, 1, PROMPT, (), max_tokens, (), Sampling(temperature=0.0), 0, 250.0)
