"""A gateway for one scenario: `forebay proxy` and `forebay worker`, each killed and started by itself."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

import psutil

from ops.figures.processes import NotStarted, free_port, wait_until_ok
from ops.load.processes import started
from shared.config import Settings
from worker.journal import Life, folder_of, read_lives

Role = Literal["proxy", "worker"]

_NOTHING_LEFT_S: Final = 15.0
_LOOK_S: Final = 0.1
_SAID: Final = 12  # lines of each log


class House:
    """Both processes in an empty `home`, on a port of their own; leaving the block ends what still runs.

    `worker` is the worker's command, where it isn't Forebay's own; it gets the LaunchSpec as its last
    argument. `variables` are FOREBAY_… ones.
    """

    def __init__(self, folder: Path, home: Path, worker: Sequence[str] = (), **variables: str) -> None:
        home.mkdir(parents=True)
        self.home = home
        self.port = free_port()
        self._folder = folder
        self._worker = tuple(worker)
        self._variables = {"FOREBAY_HOME": str(home), "FOREBAY_LOG__FORMAT": "json", **variables}
        self._running: dict[Role, tuple[subprocess.Popen[bytes], contextlib.ExitStack]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for role in ("proxy", "worker"):
            self.end(role)

    @property
    def settings(self) -> Settings:
        """What an operator's command would read to find this gateway."""
        return Settings.load(home=self.home, port=self.port)

    def start(self, role: Role) -> "subprocess.Popen[bytes]":
        """Start one of the two, after the one before it has ended."""
        self.end(role)
        command = [sys.executable, "-P", "-m", "ops.cli", role]
        if role == "worker" and self._worker:
            command = [
                sys.executable,
                "-P",
                "-m",
                "ops.chaos.supervise",
                "--worker",
                json.dumps(self._worker),
            ]
        command += ["--model", str(self._folder), "--port", str(self.port)]
        with contextlib.ExitStack() as stack:
            process = stack.enter_context(started(command, self._log(role), **self._variables))
            self._running[role] = process, stack.pop_all()
        return process

    def open(self) -> None:
        """Start both, and wait until the model is loaded. NotStarted has what they said last."""
        try:
            wait_until_ok(self.port, "/health/live", self.start("proxy"))
            self.start("worker")
            wait_until_ok(self.port, "/health/ready", self._running["proxy"][0])
        except NotStarted as problem:
            said = [
                line for role in self._running for line in self._log(role).read_text().splitlines()[-_SAID:]
            ]
            raise NotStarted("\n".join([str(problem), *said])) from problem

    def kill(self, role: Role) -> None:
        """Send SIGKILL, and wait for the end of this one process."""
        process, _ = self._running[role]
        process.kill()
        process.wait()

    def end(self, role: Role) -> None:
        """End it in order, if it runs."""
        if role in self._running:
            self._running.pop(role)[1].close()

    def process(self, role: Role) -> psutil.Process:
        return psutil.Process(self._running[role][0].pid)

    def worker(self) -> psutil.Process | None:
        """Return the process that runs MLX: the supervisor's only child. None between two lives."""
        with contextlib.suppress(psutil.Error):
            return next(iter(self.process("worker").children()), None)
        return None

    # --- what it wrote ------------------------------------------------------------------------------------

    def lives(self) -> list[Life]:
        """Return the worker's lives, the oldest first."""
        return read_lives(folder_of(self.home), port=self.port)[::-1]

    def log_events(self, role: Role) -> list[dict[str, Any]]:
        """Return a log, an event a line."""
        lines = self._log(role).read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def _log(self, role: Role) -> Path:
        return self.home / f"{role}.log"

    # --- afterwards ---------------------------------------------------------------------------------------

    def left_behind(self) -> list[str]:
        """Return the command lines of what still runs of this house, after a little patience."""
        deadline = time.monotonic() + _NOTHING_LEFT_S
        while (left := list(self._processes())) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return left

    def _processes(self) -> Iterator[str]:
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            if f"--port {self.port} " in f"{line} " or f"{self.home}/" in line:
                yield line[:200]
