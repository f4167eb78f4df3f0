"""What is measured, each a process on the same model: the gateway, mlx-lm in process, mlx-lm's server."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from shared.config import child_environment
from worker.launch import find_openblas, worker_environment

_START_S = 120.0


class NotStarted(Exception):
    """A process that is to be measured didn't answer in time."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ok(port: int, path: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait for a 200; raise NotStarted if it doesn't come or the process ends."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", path)
            if connection.getresponse().status == http.client.OK:
                return
        time.sleep(0.1)
    raise NotStarted(f"{process.args!r} does not answer on port {port}")


@contextlib.contextmanager
def ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """End the process with the block: asked first, killed if it takes too long."""
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()


class Gateway:
    """A running `forebay up`, its processes and its logs."""

    def __init__(self, port: int, home: Path, process: "subprocess.Popen[bytes]") -> None:
        self.port = port
        self._home = home
        self._up = psutil.Process(process.pid)

    def child(self, word: str) -> psutil.Process:
        """Return the one process below `up` whose command line has this word."""
        (found,) = [child for child in self._up.children(recursive=True) if word in " ".join(child.cmdline())]
        return found

    def log_events(self) -> list[dict[str, Any]]:
        """Return the proxy's log, an event a line."""
        lines = (self._home / "logs" / "proxy.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextlib.contextmanager
def gateway(folder: Path, home: Path, config: Path | None = None, **variables: str) -> Iterator[Gateway]:
    """Run `forebay up` in a home of its own; `config` is a settings file, `variables` are FOREBAY_… ones."""
    port = free_port()
    command = [sys.executable, "-m", "ops.cli", "up", "--model", str(folder), "--port", str(port)]
    if config is not None:
        command += ["--config", str(config)]
    environment = child_environment(FOREBAY_HOME=str(home), FOREBAY_LOG__FORMAT="json", **variables)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603 (our own)
    with ended(process):
        wait_until_ok(port, "/health/ready", process)
        yield Gateway(port, home, process)


@contextlib.contextmanager
def mlx_lm_server(folder: Path, log: Path) -> Iterator[int]:
    """Run mlx_lm.server with its own defaults; yield its port."""
    port = free_port()
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(folder), "--port", str(port)]
    with log.open("wb") as words:
        process = subprocess.Popen(  # noqa: S603 (our own)
            command, env=worker_environment(find_openblas()), stdout=words, stderr=words
        )
        with ended(process):
            wait_until_ok(port, "/health", process)
            yield port


class InProcess:
    """mlx-lm's own loop in a process beside us, asked over a pipe: one JSON line in, one out."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def ask(self, **question: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer


@contextlib.contextmanager
def in_process(folder: Path) -> Iterator[InProcess]:
    process = subprocess.Popen(  # noqa: S603 (our own)
        [sys.executable, "-m", "ops.figures.mlx_lm_loop", str(folder)],
        env=worker_environment(find_openblas()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with ended(process):
        yield InProcess(process)


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    system = os.uname()
    return {
        "system": f"{system.sysname} {system.machine}",
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "openblas": find_openblas() is not None,
    }
