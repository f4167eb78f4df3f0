"""How a local server's worker is ended in the middle of a load: by its pid, or by the gateway's order."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import psutil

from ops.bench.target import Address
from ops.gateway import Gateway
from shared.config import Settings
from shared.errors import SettingsError

_RESTART_S = 600.0


def killing(address: Address, pid: int | None, settings: Settings) -> Callable[[], Awaitable[None]]:
    """Return what ends the worker. SettingsError if the server isn't on this machine, or no such process is.

    Without a pid the gateway is told to replace its worker: streams pause and go on, as after a death.
    """
    if not address.is_local:
        raise SettingsError(f"the death scenario is for a server on this machine; {address.host} is not")
    if pid is None:
        gateway = Gateway(settings)
        gateway.status()
        return lambda: asyncio.to_thread(_replace, gateway)
    _require_other(pid)

    async def kill() -> None:
        os.kill(pid, signal.SIGKILL)

    return kill


def _replace(gateway: Gateway) -> None:
    gateway.order("/admin/restart", {"drain": False, "timeout_s": _RESTART_S})


def _require_other(pid: int) -> None:
    """Refuse this process and those above it: nobody means them."""
    if not psutil.pid_exists(pid):
        raise SettingsError(f"--kill-worker-pid {pid}: there is no such process")
    mine = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    if pid in mine:
        raise SettingsError(f"--kill-worker-pid {pid}: that is this program, or one that it runs in")
