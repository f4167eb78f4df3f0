"""`forebay stop`: end everything of one home and port, after what runs has finished, or at once."""

import os
import signal
import time
from collections.abc import Callable
from typing import Final

from ops import foreground_lock
from ops.command import OrderFailed
from ops.gateway import Gateway, GatewayAbsent, answers
from ops.screen import Screen
from ops.services.installed import kept_by
from shared.clock import Clock
from shared.config import Settings
from shared.errors import SettingsError
from shared.run_folder import RunFolder

_POLL_S: Final = 0.1
# What proxy, supervisor and worker take to end, beyond the time that answers get.
_GRACE_S: Final = 20.0


class Stop:
    """Finds out who runs, tells them to end, and waits until they have."""

    def __init__(self, settings: Settings, screen: Screen, clock: Clock) -> None:
        self._settings = settings
        self._screen = screen
        self._clock = clock
        self._folder = RunFolder(settings.home_folder, settings.port)
        self._gateway = Gateway(settings)

    def end(self, *, at_once: bool) -> str:
        """Return what was ended, in a line; OrderFailed if something is still there.

        What a service manager would start again is for that to end: a SettingsError says how.
        """
        pid = foreground_lock.holder(self._folder)
        if pid is not None:
            self._end_foreground(pid, at_once=at_once)
            return f"`forebay up` (process {pid}) is gone, and all it ran."
        if self._anything_held() and (kept := kept_by(self._settings.port)):
            raise SettingsError(f"services keep this gateway up and would start it again; `{kept}` ends them")
        try:
            self._gateway.order("/admin/stop", {"at_once": at_once})
        except GatewayAbsent as problem:
            if self._anything_held():
                raise OrderFailed(
                    f"something holds {self._folder.path}, but {problem}; end it by its process id"
                ) from problem
            return f"Nothing runs for {self._gateway.where}."
        self._wait(self._anything_held, at_once=at_once)
        return "Gateway and worker are gone."

    def _end_foreground(self, pid: int, *, at_once: bool) -> None:
        """Do what its operator would do by Ctrl-C: once to end, twice to end at once."""
        for number in (signal.SIGTERM, signal.SIGINT) if at_once else (signal.SIGTERM,):
            # A number that the lock's holder no longer has may be somebody else's.
            if foreground_lock.holder(self._folder) == pid:
                os.kill(pid, number)
        self._wait(lambda: foreground_lock.holder(self._folder) == pid, at_once=at_once)

    def _anything_held(self) -> bool:
        return any(
            foreground_lock.is_held(lock) for lock in (self._folder.proxy_lock, self._folder.supervisor_lock)
        )

    def _wait(self, is_there: Callable[[], bool], *, at_once: bool) -> None:
        patience_s = _GRACE_S + (0.0 if at_once else self._settings.proxy.drain_s)
        began_s = self._clock.now()
        what = "Ending at once" if at_once else "Ending; what runs may finish"
        with self._screen.step(what) as step:
            while is_there():
                if self._clock.now() - began_s > patience_s:
                    raise OrderFailed(
                        f"it was told to end {patience_s:g} s ago and is still there;"
                        f" `forebay stop --at-once` insists"
                    )
                step.tick(note=self._how_far())
                time.sleep(_POLL_S)

    def _how_far(self) -> str:
        try:
            return f"{answers(self._gateway.status().live)} live"
        except GatewayAbsent:
            return "the gateway is gone"
