"""One life of the worker process as its supervisor sees it: how it starts, its pipes, what it wrote."""

import asyncio
import contextlib
import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

from shared import logs
from worker.launch import LaunchSpec
from worker.progress_pipe import ProgressReader

_READ_BYTES: Final = 64 * 1024
_STDERR_TAIL_BYTES: Final = 8 * 1024
_STDERR_SUFFIX: Final = ".stderr"

_log = logs.get("supervisor")


class StderrFolder:
    """What each life wrote to stdout and stderr: a file per epoch, the newest `lives_kept` kept."""

    def __init__(self, folder: Path, lives_kept: int) -> None:
        self._folder = folder
        self._lives_kept = lives_kept

    def create(self, epoch: int) -> IO[bytes]:
        """Open the file of a new life, and remove those of the oldest."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._file(epoch).open("wb")
        for old in self._epochs()[: -self._lives_kept]:
            with contextlib.suppress(OSError):
                self._file(old).unlink()
        return file

    def tail(self, epoch: int) -> str:
        """Return the end of what a life wrote; nothing if it can't be read."""
        try:
            with self._file(epoch).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _STDERR_TAIL_BYTES))
                return file.read(_STDERR_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def _file(self, epoch: int) -> Path:
        return self._folder / f"{epoch}{_STDERR_SUFFIX}"

    def _epochs(self) -> list[int]:
        files = self._folder.glob(f"*{_STDERR_SUFFIX}")
        return sorted(int(file.stem) for file in files if file.stem.isdecimal())


@dataclass(slots=True)
class Child:
    """A worker process, and the supervisor's ends of its two pipes, which `release` closes."""

    epoch: int
    process: asyncio.subprocess.Process
    progress_fd: int
    descriptors: ExitStack
    reader: ProgressReader = field(default_factory=ProgressReader)

    def read(self) -> bytes | None:
        """Return what is in the progress pipe, empty if nothing is, None if the worker closed its end."""
        try:
            return os.read(self.progress_fd, _READ_BYTES) or None
        except BlockingIOError:
            return b""

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def release(self) -> None:
        self.descriptors.close()


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts worker processes: `command` with a LaunchSpec as its last argument.

    `spec` is filled in with each life's epoch and descriptors. A child gets a session of its own, so that a
    terminal's Ctrl-C reaches only the supervisor.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    spec: LaunchSpec
    stderr: StderrFolder

    async def start(self, epoch: int) -> Child:
        """Start a process by exec (a forked copy of this one could not use Metal). Raises OSError."""
        with ExitStack() as ours, ExitStack() as theirs:
            progress_fd, their_progress_fd = os.pipe()
            ours.callback(os.close, progress_fd)
            theirs.callback(os.close, their_progress_fd)
            their_lifeline_fd, lifeline_fd = os.pipe()
            ours.callback(os.close, lifeline_fd)
            theirs.callback(os.close, their_lifeline_fd)
            os.set_blocking(progress_fd, False)
            spec = replace(
                self.spec, epoch=epoch, progress_fd=their_progress_fd, lifeline_fd=their_lifeline_fd
            )
            output = self._output(epoch, theirs)
            process = await asyncio.create_subprocess_exec(
                *self.command,
                spec.to_json(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(their_progress_fd, their_lifeline_fd),
                start_new_session=True,
                env=self.environment,
            )
            return Child(epoch, process, progress_fd, ours.pop_all())

    def _output(self, epoch: int, theirs: ExitStack) -> IO[bytes] | int:
        """Return where the child writes to. A full disk costs the words, not the worker."""
        try:
            return theirs.enter_context(self.stderr.create(epoch))
        except OSError as problem:
            _log.warning("the worker's stderr is lost", epoch=epoch, problem=str(problem))
            return asyncio.subprocess.DEVNULL
