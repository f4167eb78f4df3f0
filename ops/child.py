"""One of the processes that `forebay up` keeps: started, watched, restarted, ended."""

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.config import child_environment

_LOG_BYTES_MAX: Final = 10_000_000
_LAST_BYTES: Final = 16_384
_DELAY_FIRST_S: Final = 1.0
_DELAY_MAX_S: Final = 30.0
_HEALTHY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run, and where its words go. `--lifeline-fd N` is added to the command."""

    role: str
    command: tuple[str, ...]
    log: Path


class Child:
    """A process that ends with its parent: it holds the reading end of a pipe that only the parent writes.

    It has a session of its own, so that Ctrl-C reaches `forebay up` alone, which ends its children in order.
    """

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._log_begins = 0

    def start(self) -> None:
        """Start one life, its log appended to the last one's."""
        assert not self.running, "a child has one life at a time"
        self._drop_lifeline()
        _rotate(self.spec.log)
        reading, self._lifeline = os.pipe()
        try:
            with open(self.spec.log, "ab", opener=_privately) as log:
                self._log_begins = log.tell()
                self._process = subprocess.Popen(  # noqa: S603 (Forebay's own commands)
                    (*self.spec.command, "--lifeline-fd", str(reading)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(reading,),
                    start_new_session=True,
                    # The hub was asked before the children began; they take what was fetched then.
                    env=child_environment(PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1"),
                )
        finally:
            os.close(reading)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ending(self) -> str:
        """How the last life ended, in words."""
        assert self._process is not None, "it was never started"
        code = self._process.poll()
        if code is None or code >= 0:
            return f"ended with exit status {code}"
        return f"was killed by {signal.Signals(-code).name}"

    def terminate(self) -> None:
        """Ask it to finish what it has and end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once, with whatever it started in its session."""
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._drop_lifeline()

    def bound_log(self) -> None:
        """Put a log that has grown large aside, while the process goes on appending to it.

        What it writes between the copy and the cut is lost: some lines in ten megabytes.
        """
        if self.spec.log.exists() and self.spec.log.stat().st_size > _LOG_BYTES_MAX:
            os.close(_privately(_aside(self.spec.log), os.O_WRONLY | os.O_CREAT))
            shutil.copyfile(self.spec.log, _aside(self.spec.log))
            os.truncate(self.spec.log, 0)
            self._log_begins = 0

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of this life's log."""
        with self.spec.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_begins, size - _LAST_BYTES))
            return log.read().decode("utf-8", "replace").splitlines()[-count:]

    def _drop_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


class RestartDelay:
    """The wait before a child's next life: 1 s, doubled up to 30 s, and 1 s again after a good life."""

    def __init__(self) -> None:
        self._next_s = _DELAY_FIRST_S

    def after_life_of(self, lived_s: float) -> float:
        delay_s = _DELAY_FIRST_S if lived_s >= _HEALTHY_S else self._next_s
        self._next_s = min(2 * delay_s, _DELAY_MAX_S)
        return delay_s


def _privately(path: str | Path, flags: int) -> int:
    """Open a log that is new for its owner alone."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _rotate(log: Path) -> None:
    """Put a log that has grown large aside, over the one put aside before."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
        log.replace(_aside(log))


def _aside(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")
