"""`python -m proxy`: the gateway's process."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from proxy.app import Proxy, StopRequest, stop_on_signals
from shared import lifeline, logs
from shared.channel import RouterChannel
from shared.config import Settings
from shared.errors import ModelError, SettingsError
from shared.model_folder import ModelFolder
from shared.run_folder import RunFolder, RunLock

_EXIT_STOPPED_TWICE = 130


def run(
    settings: Settings, folder: ModelFolder, lifeline_fd: int | None, reading: Callable[[], Settings]
) -> int:
    """Serve until SIGTERM, SIGINT or the loss of the lifeline; return the exit status.

    `reading` reads the settings again, when a reload is asked for.
    """
    logs.configure(settings.log, "proxy")
    with RunLock(RunFolder(settings.home_folder, settings.port)) as held, _runner() as runner:
        runner.run(_main(settings, folder, held.folder, lifeline_fd, reading))
    return 0


async def _main(
    settings: Settings,
    folder: ModelFolder,
    run_folder: RunFolder,
    lifeline_fd: int | None,
    reading: Callable[[], Settings],
) -> None:
    stop = StopRequest()
    stop_on_signals(stop, exit_now=lambda: os._exit(_EXIT_STOPPED_TWICE))
    if lifeline_fd is not None:
        _stop_without(lifeline_fd, stop)
    channel = RouterChannel(run_folder.endpoint)
    try:
        proxy = Proxy(
            settings,
            folder,
            channel,
            logs.get("proxy"),
            reading=reading,
            admin_socket=run_folder.admin_socket,
        )
        await proxy.serve(stop)
    finally:
        channel.close()


def _stop_without(lifeline_fd: int, stop: StopRequest) -> None:
    """Stop when the parent is gone; the worker goes with it, so there is nothing to wait for."""
    loop = asyncio.get_running_loop()

    def lost() -> None:
        loop.call_soon_threadsafe(lambda: stop.ask(at_once=True))

    lifeline.watch(lifeline_fd, lost)


def _runner() -> asyncio.Runner:
    """Return a runner on uvloop where it exists, else on asyncio's own loop."""
    try:
        import uvloop  # noqa: PLC0415 (optional)
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def main() -> int:
    """Read the arguments of `python -m proxy` and run. `forebay proxy` resolves model names, this doesn't."""
    parser = argparse.ArgumentParser(prog="python -m proxy", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the model's folder")
    parser.add_argument("--config", type=Path, help="a TOML file")
    parser.add_argument("--lifeline-fd", type=int, help="a pipe; its end is the end of this process")
    arguments = parser.parse_args()
    try:

        def read() -> Settings:
            return Settings.load(arguments.config)

        return run(read(), ModelFolder.read(arguments.folder), arguments.lifeline_fd, read)
    except (SettingsError, ModelError) as problem:
        sys.stderr.write(f"error: {problem}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
