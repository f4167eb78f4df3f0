"""What is put under load: a lone proxy with a worker that has no model, and this process's own limits."""

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from tokenizers import Tokenizer

from ops.figures.processes import ended, free_port, wait_until_ok
from shared.config import child_environment
from shared.run_folder import RunFolder

# Where the hard limit is no limit at all, what macOS lets a process have.
_FILES_MAX: Final = 10_240
# A word whose token is text by itself, so that each token becomes one event.
_WORD: Final = " water"


@dataclass(frozen=True, slots=True)
class FalseWorkerOptions:
    """How the worker without a model behaves; see its own file."""

    slots: int
    step_ms: float = 0.0
    token: int = 0
    hold_over: int | None = None
    groups: int = 1


@dataclass(frozen=True, slots=True)
class LoneProxy:
    """A running `forebay proxy` with a false worker, which wrote when it sent each token.

    Or what stands in their place: the bare server, which does both.
    """

    port: int
    process: psutil.Process
    sent_log: Path


@contextlib.contextmanager
def started(command: Sequence[str], log: Path, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command that takes --lifeline-fd, in a session of its own: Ctrl-C reaches us, and we end it."""
    reading, writing = os.pipe()
    try:
        with log.open("ab") as words:
            process = subprocess.Popen(  # noqa: S603 (our own)
                [*command, "--lifeline-fd", str(reading)],
                env=child_environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                pass_fds=(reading,),
                start_new_session=True,
            )
        os.close(reading)
        with ended(process):
            yield process
    finally:
        os.close(writing)


@contextlib.contextmanager
def lone_proxy(
    folder: Path, home: Path, options: FalseWorkerOptions, config: Path | None = None
) -> Iterator[LoneProxy]:
    """Start both in an empty `home`; yield once the proxy takes requests.

    Both know `options.slots` rows. `config` is a settings file for the proxy.
    """
    home.mkdir(parents=True)
    port = free_port()
    variables = {
        "FOREBAY_HOME": str(home),
        "FOREBAY_LOG__FORMAT": "json",
        "FOREBAY_LOG__LEVEL": "warning",
        "FOREBAY_WORKER__SLOTS": str(options.slots),
    }
    proxy = [sys.executable, "-P", "-m", "ops.cli", "proxy", "--model", str(folder), "--port", str(port)]
    if config is not None:
        proxy += ["--config", str(config)]
    sent_log = home / "sent.jsonl"
    with started(proxy, home / "proxy.log", **variables) as process:
        wait_until_ok(port, "/health/live", process)
        endpoint = RunFolder(home, port).endpoint
        with started(_false_worker(endpoint, folder, options, sent_log), home / "worker.log"):
            wait_until_ok(port, "/health/ready", process)
            yield LoneProxy(port, psutil.Process(process.pid), sent_log)


@contextlib.contextmanager
def bare_server(folder: Path, home: Path, step_ms: float, groups: int) -> Iterator[LoneProxy]:
    """Start the server that does the least, in an empty `home`; yield once it takes requests."""
    home.mkdir(parents=True)
    port, sent_log = free_port(), home / "sent.jsonl"
    command = [sys.executable, "-P", "-m", "ops.load.bare_server", str(port), str(folder), str(sent_log)]
    command += ["--step-ms", str(step_ms), "--groups", str(groups), "--text", _WORD]
    with started(command, home / "bare.log") as process:
        wait_until_ok(port, "/", process)
        yield LoneProxy(port, psutil.Process(process.pid), sent_log)


def _false_worker(endpoint: str, folder: Path, options: FalseWorkerOptions, sent_log: Path) -> list[str]:
    command = [sys.executable, "-P", "-m", "ops.load.false_worker", endpoint, str(folder), str(sent_log)]
    command += ["--slots", str(options.slots), "--step-ms", str(options.step_ms)]
    command += ["--token", str(options.token), "--groups", str(options.groups)]
    return command if options.hold_over is None else [*command, "--hold-over", str(options.hold_over)]


def text_token(folder: Path) -> int:
    """Return the id of a token that is a word of its own."""
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(_WORD).ids
    return ids[-1]


def cpu_s(process: psutil.Process) -> float:
    """Return the processor seconds that a process has used, in its own code and in the kernel for it."""
    times = process.cpu_times()
    return float(times.user + times.system)


def raise_file_limit() -> int:
    """Let this process and its children open as many files as the system allows; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
