"""`python -m worker`: the supervisor of one worker, until SIGTERM, SIGINT, or its own parent's end."""

import argparse
import asyncio
import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shared import lifeline, logs
from shared.config import Settings
from shared.errors import ModelError, SettingsError
from shared.model_folder import ModelFolder
from shared.run_folder import RunFolder, SupervisorLock
from worker.boot import boot_identity
from worker.epochs import Past, look_back
from worker.journal import folder_of
from worker.launch import find_openblas
from worker.leftovers import end_leftover
from worker.supervisor import COMMAND, Supervisor

EXIT_UNUSABLE: Final = 2
EXIT_BROKEN: Final = 1

_log = logs.get("supervisor")


def run(
    settings: Settings,
    folder: ModelFolder | Path,
    lifeline_fd: int | None = None,
    *,
    name: str | None = None,
    command: Sequence[str] = COMMAND,
) -> int:
    """Supervise a worker until told to stop; return the exit status.

    Raises ModelError if the folder doesn't exist, and SettingsError if another supervisor runs. Whatever else
    is wrong with the folder the worker itself finds, and may be mended while the supervisor tries again. Call
    logs.configure first.
    """
    path, name = _path(folder), name or _name(folder)
    run_folder = RunFolder(settings.home_folder, settings.port)
    with SupervisorLock(run_folder):
        boot = boot_identity()
        _end_leftover(run_folder.worker_pid, boot)
        supervisor = Supervisor(
            settings,
            path,
            name,
            past=_past(settings, boot),
            boot=boot,
            command=command,
            preload=_preload(),
        )
        try:
            asyncio.run(_supervise(supervisor, lifeline_fd))
        except Exception:  # noqa: BLE001 (a boundary: what a bug did is logged, and the status says it)
            _log.exception("the supervisor broke; its worker is ended")
            return EXIT_BROKEN
    return 0


def _end_leftover(file: Path, boot: str) -> None:
    pid = end_leftover(file, boot)
    if pid is not None:
        _log.warning("ended a worker that had outlived its supervisor", pid=pid)


def _past(settings: Settings, boot: str) -> Past:
    now_ms = time.time_ns() // 1_000_000
    past = look_back(folder_of(settings.home_folder), port=settings.port, now_ms=now_ms, boot=boot)
    if past.machine_went_down:
        _log.warning(
            "the machine went down under the last worker; this one begins more cautiously",
            last_epoch=past.lost_epoch,
            rung=past.rung,
        )
    return past


async def _supervise(supervisor: Supervisor, lifeline_fd: int | None) -> None:
    """Run with what can ask it to stop: two signals, and the end of the process that started it."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    if lifeline_fd is not None:
        lifeline.watch(lifeline_fd, functools.partial(_stop_from_thread, loop, supervisor))
    await supervisor.run()


def _stop_from_thread(loop: asyncio.AbstractEventLoop, supervisor: Supervisor) -> None:
    # The loop may have been closed since: then nothing is left to stop.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(functools.partial(supervisor.stop, at_once=True))


def _path(folder: ModelFolder | Path) -> Path:
    path = folder.path if isinstance(folder, ModelFolder) else folder
    if not path.is_dir():
        raise ModelError(f"{path}: no such folder")
    return path


def _name(folder: ModelFolder | Path) -> str:
    try:
        return (folder if isinstance(folder, ModelFolder) else ModelFolder.read(folder)).name
    except ModelError as problem:
        _log.warning("the model can't be served as it is", problem=str(problem))
        return _path(folder).name


def _preload() -> Path | None:
    openblas = find_openblas()
    if openblas is None and sys.platform == "linux":
        _log.warning("OpenBLAS isn't installed; MLX is many times slower on this CPU without it")
    return openblas


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the model's folder")
    parser.add_argument("--name", help="what clients call the model; default from the folder")
    parser.add_argument("--config", type=Path, help="a TOML file of settings")
    parser.add_argument("--lifeline-fd", type=_descriptor, help="end when this descriptor's pipe is closed")
    return parser.parse_args(words)


def _descriptor(word: str) -> int:
    try:
        os.fstat(int(word))
    except (ValueError, OSError, OverflowError) as problem:
        raise argparse.ArgumentTypeError(f"{word!r} is no open descriptor") from problem
    return int(word)


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    try:
        settings = Settings.load(arguments.config)
        logs.configure(settings.log, "supervisor")
        return run(settings, arguments.folder, arguments.lifeline_fd, name=arguments.name)
    except (SettingsError, ModelError) as problem:
        sys.stderr.write(f"python -m worker: {problem}\n")
        return EXIT_UNUSABLE


if __name__ == "__main__":
    sys.exit(main())
