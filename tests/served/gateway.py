"""A real gateway for tests: `forebay up` in a home of its own, with the demo model, on a free port."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.free_port import free_port

PATIENCE_S = 60.0
ANSWER_S = 20.0
# `make test` sets it: with work for both cores, more threads would only wait for each other. A user's worker
# runs without, and has to say the same with however many threads.
_ONLY_OF_TESTS = "OPENBLAS_NUM_THREADS"


class Gateway:
    """One running `forebay up`, and what a test may do to it."""

    def __init__(self, home: Path, folder: Path, settings: dict[str, str], *, as_a_users: bool) -> None:
        self.home = home
        self.port = free_port()
        self._log = (home / "up.log").open("wb")
        given = {
            name: value for name, value in os.environ.items() if not as_a_users or name != _ONLY_OF_TESTS
        }
        self.environment = {**given, "FOREBAY_HOME": str(home), **settings}
        command = [sys.executable, "-m", "ops.cli", "up", "--model", str(folder), "--port", str(self.port)]
        self.process = subprocess.Popen(command, env=self.environment, stdout=self._log, stderr=self._log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def status(self, path: str) -> int:
        """Return the status of a GET, or 0 if nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read()

    def ready_body(self) -> dict:
        return json.loads(self.get("/health/ready"))

    def metric(self, name: str) -> dict[str, float]:
        """Return a metric's values, by its labels as they are written."""
        lines = [line for line in self.get("/metrics").decode().splitlines() if line.startswith(name)]
        return {line.split(" ")[0].removeprefix(name): float(line.split(" ")[1]) for line in lines}

    def wait_until_ready(self) -> None:
        """Wait until it answers so, and `up` has seen it, too."""
        wait_until(lambda: self.status("/health/ready") == 200, f"ready; see {self.home}")
        said = self.home / "up.log"
        wait_until(lambda: "Forebay is ready" in said.read_text(), f"up says so; see {self.home}")

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Return the processes of this gateway whose command line has a word, `up` itself included."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            mine = str(self.home) in line or f"--port {self.port}" in line or f"--port={self.port}" in line
            if mine and word in line:
                found.append(process)
        return found

    def kill_worker(self, number: signal.Signals) -> int:
        """Send a signal to the process that runs MLX; return its pid."""
        (worker,) = self.processes("worker.process")
        worker.send_signal(number)
        return worker.pid

    def stop(self) -> None:
        """End it as Ctrl-C does, and whatever a failed test may have left."""
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._log.close()


def wait_until(holds, what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition; fail in words if it doesn't come true in a generous time."""
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {patience_s} s in vain: {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def running(home: Path, folder: Path, *, as_a_users: bool = False, **settings: str) -> Iterator[Gateway]:
    """Run a gateway that is ready; `as_a_users` with as many threads as there are cores."""
    gateway = Gateway(home, folder, settings, as_a_users=as_a_users)
    try:
        gateway.wait_until_ready()
        yield gateway
    finally:
        gateway.stop()
