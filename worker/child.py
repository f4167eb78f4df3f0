"""One life of the worker process as its supervisor sees it: how it starts, its pipes, what it wrote."""

import asyncio
import contextlib
import os
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final

import psutil

from shared import logs
from shared.limits import KIB
from shared.messages import ManifestRow
from worker import foreign_signals, manifest
from worker.launch import LaunchSpec, without_prefixes
from worker.progress_pipe import ProgressReader

_READ_BYTES: Final = 64 * KIB
_STDERR_TAIL_BYTES: Final = 8 * KIB
# What is left of a stderr that has grown too large.
_STDERR_KEPT_BYTES: Final = 256 * KIB
_STDERR_SUFFIX: Final = ".stderr"
_STOPPED: Final = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)

_log = logs.get("supervisor")


class StderrFolder:
    """What each life wrote to stdout and stderr: a file per epoch, the newest `lives_kept` kept.

    When a file grows too large, its end goes into a file beside it (`….before`) and it begins anew; together
    they stay within `file_bytes_max`, but for what a life writes between two looks.
    """

    def __init__(self, folder: Path, lives_kept: int, file_bytes_max: int) -> None:
        assert file_bytes_max > _STDERR_KEPT_BYTES, "what is kept must fit"
        self._folder = folder
        self._lives_kept = lives_kept
        self._file_bytes_max = file_bytes_max - _STDERR_KEPT_BYTES

    def create(self, epoch: int) -> IO[bytes]:
        """Open the file of a new life, and remove those of the oldest."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Appending, so that the worker goes on at the end of a file that was cut meanwhile.
        file = self._file(epoch).open("ab")
        for old in self._epochs()[: -self._lives_kept]:
            for remains in (self._file(old), self._before(old)):
                with contextlib.suppress(OSError):
                    remains.unlink()
        return file

    def tail(self, epoch: int) -> str:
        """Return the end of what a life wrote; nothing if it can't be read."""
        end = _tail(self._file(epoch), _STDERR_TAIL_BYTES)
        if len(end) < _STDERR_TAIL_BYTES:
            end = _tail(self._before(epoch), _STDERR_TAIL_BYTES - len(end)) + end
        return end.decode(errors="replace")

    def cut(self, epoch: int) -> None:
        """Let the file of a life begin anew if it has become too large."""
        file = self._file(epoch)
        with contextlib.suppress(OSError):
            if file.stat().st_size > self._file_bytes_max:
                # However full the disk is, this much becomes free.
                with contextlib.suppress(OSError):
                    _keep_end(file, self._before(epoch))
                os.truncate(file, 0)

    def _file(self, epoch: int) -> Path:
        return self._folder / f"{epoch}{_STDERR_SUFFIX}"

    def _before(self, epoch: int) -> Path:
        return self._folder / f"{epoch}{_STDERR_SUFFIX}.before"

    def _epochs(self) -> list[int]:
        files = self._folder.glob(f"*{_STDERR_SUFFIX}")
        return sorted(int(file.stem) for file in files if file.stem.isdecimal())


def _tail(file: Path, size_max: int) -> bytes:
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - size_max))
            return stream.read(size_max)
    except OSError:
        return b""


def _keep_end(file: Path, before: Path) -> None:
    """Copy the end of a file that somebody else appends to, and what is appended during the copy."""
    with file.open("rb") as source, before.open("wb") as kept:
        left_out = source.seek(-_STDERR_KEPT_BYTES, os.SEEK_END)
        kept.write(b"[%d bytes before this are left out]\n" % left_out)
        for _ in range(2):
            shutil.copyfileobj(source, kept)
            kept.flush()


@dataclass(slots=True)
class Child:
    """A worker process, the supervisor's ends of its two pipes, and the memory with what it runs.

    `release` closes the three. `manifest_fd` is -1 if there was no memory to be had.
    """

    epoch: int
    process: asyncio.subprocess.Process
    progress_fd: int
    manifest_fd: int
    descriptors: ExitStack
    reader: ProgressReader = field(default_factory=ProgressReader)

    def read(self) -> bytes | None:
        """Return what is in the progress pipe, empty if nothing is, None if the worker closed its end."""
        try:
            return os.read(self.progress_fd, _READ_BYTES) or None
        except BlockingIOError:
            return b""

    def rows(self) -> tuple[ManifestRow, ...]:
        """Return the rows of the step that runs, or ran last."""
        return manifest.read(self.manifest_fd)

    def is_stopped(self) -> bool:
        """Whether somebody has stopped the process (SIGSTOP), so that it can't move."""
        try:
            return psutil.Process(self.process.pid).status() in _STOPPED
        except (psutil.Error, OSError):
            return False

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

    async def start(self, epoch: int, *, keeps_prefixes: bool = True) -> Child:
        """Start a process by exec (a forked copy of this one could not use Metal). Raises OSError."""
        with ExitStack() as ours, ExitStack() as theirs:
            progress_fd, their_progress_fd = os.pipe()
            ours.callback(os.close, progress_fd)
            theirs.callback(os.close, their_progress_fd)
            their_lifeline_fd, lifeline_fd = os.pipe()
            ours.callback(os.close, lifeline_fd)
            theirs.callback(os.close, their_lifeline_fd)
            os.set_blocking(progress_fd, False)
            manifest_fd = _manifest(ours)
            spec = replace(
                self.spec,
                epoch=epoch,
                progress_fd=their_progress_fd,
                lifeline_fd=their_lifeline_fd,
                manifest_fd=manifest_fd,
                settings=self.spec.settings if keeps_prefixes else without_prefixes(self.spec.settings),
            )
            output = self._output(epoch, theirs)
            process = await self._exec(spec, output)
            return Child(epoch, process, progress_fd, manifest_fd, ours.pop_all())

    async def _exec(self, spec: LaunchSpec, output: IO[bytes] | int) -> asyncio.subprocess.Process:
        inherited = (spec.progress_fd, spec.lifeline_fd, spec.manifest_fd)
        # The worker tells signals that somebody sends from its own faults, if it begins with them blocked.
        with foreign_signals.blocked():
            return await asyncio.create_subprocess_exec(
                *self.command,
                spec.to_json(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=tuple(descriptor for descriptor in inherited if descriptor >= 0),
                start_new_session=True,
                env=self.environment,
            )

    def _output(self, epoch: int, theirs: ExitStack) -> IO[bytes] | int:
        """Return where the child writes to. A full disk costs the words, not the worker."""
        try:
            return theirs.enter_context(self.stderr.create(epoch))
        except OSError as problem:
            _log.warning("the worker's stderr is lost", epoch=epoch, problem=str(problem))
            return asyncio.subprocess.DEVNULL


def _manifest(ours: ExitStack) -> int:
    """Return memory for the manifest, or -1: then nobody learns what ran, but the worker runs."""
    try:
        descriptor = manifest.create()
    except OSError as problem:
        _log.warning("what the worker runs can't be known after its death", problem=str(problem))
        return -1
    ours.callback(os.close, descriptor)
    return descriptor
