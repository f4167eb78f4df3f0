"""`forebay up`: proxy and worker in the foreground of one terminal, from the first line to Ctrl-C.

A signal ends the proxy, which gets proxy.drain_s and four seconds, then the worker, which gets six; what is
still there then is killed. So it is gone within proxy.drain_s + 10 s, and at once after a second signal.
"""

import contextlib
import http.client
import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EADDRINUSE
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console

from ops import foreground_lock, welcome
from ops.child import Child, ChildSpec, RestartDelay
from ops.models import resolve
from ops.screen import Screen, Step
from proxy.authenticate import refuse_open_door
from proxy.keys import KEY_FILE_NAME, KeyFile
from shared.clock import Clock, SystemClock
from shared.config import Settings
from shared.errors import SettingsError
from shared.model_folder import ModelFolder
from shared.run_folder import RunFolder

_ROLES: Final = ("proxy", "worker")
_POLL_S: Final = 0.1
_PROBE_S: Final = 2.0
# Beyond proxy.drain_s: its handlers get two seconds to close. A supervisor gives its worker five.
_PROXY_GRACE_S: Final = 4.0
_WORKER_GRACE_S: Final = 6.0
_LINES_SHOWN: Final = 15


def up(settings: Settings, config_file: Path | None, overrides: Mapping[str, str | int | None]) -> int:
    """Bring the model, run both processes until Ctrl-C, and return the exit status."""
    refuse_open_door(settings.host, KeyFile(settings.home_folder / KEY_FILE_NAME).read())
    options = [f"--{name}={value}" for name, value in overrides.items() if value is not None]
    if config_file is not None:
        options.append(f"--config={config_file.absolute()}")
    # -P: what lies in the current folder can't stand in for Forebay's own packages.
    commands = {role: (sys.executable, "-P", "-m", "ops.cli", role, *options) for role in _ROLES}
    with foreground_lock.held_by_us(RunFolder(settings.home_folder, settings.port)):
        refuse_taken_port(settings.host, settings.port)
        folder = resolve(settings.model, settings.home_folder)
        return keep_up(settings, folder, commands)


def keep_up(settings: Settings, folder: ModelFolder, commands: Mapping[str, tuple[str, ...]]) -> int:
    """Run the commands of `proxy` and `worker`; return 0 after a signal, 1 if one ends before it is ready."""
    logs = settings.home_folder / "logs"
    children = [Child(ChildSpec(role, commands[role], logs / f"{role}.log")) for role in _ROLES]
    return _Foreground(settings, folder, children).run()


def refuse_taken_port(host: str, port: int) -> None:
    """Raise SettingsError if nothing could listen there, before a model is fetched for it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as problem:
        other = port + 1 if port < 65535 else 8000
        hint = (
            f"; is Forebay running already? --port {other} is another" if problem.errno == EADDRINUSE else ""
        )
        raise SettingsError(f"can't listen on {host} port {port}: {problem.strerror}{hint}") from problem


class _NotReady(Exception):
    """A child ended before it was ready, or the operator did not want to wait for it."""

    def __init__(self, ended: list[Child]) -> None:
        super().__init__()
        self.ended = ended


class _CannotLoad(Exception):
    """The worker says that the model can't be loaded; trying it again is of no use at a first start."""


class _Foreground:
    """Both children's life: wait until ready, look after them, end them in order."""

    def __init__(self, settings: Settings, folder: ModelFolder, children: list[Child]) -> None:
        self._settings = settings
        self._folder = folder
        self._clock: Clock = SystemClock()
        self._screen = Screen(clock=self._clock)
        self._lives = [_Life(child, self._clock, self._screen.say) for child in children]
        self._signals = 0

    def run(self) -> int:
        with self._counting_signals():
            try:
                for life in self._lives:
                    life.begin()
                if not self._became_ready():
                    return 0 if self._signals else 1
                logs = [life.child.spec.log for life in self._lives]
                welcome.show(Console(highlight=False), self._settings, self._folder, logs)
                self._look_after()
            finally:
                self._end()
        return 0

    @contextmanager
    def _counting_signals(self) -> Iterator[None]:
        def count(_number: int, _frame: FrameType | None) -> None:
            self._signals += 1

        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.signal(kind, count) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def _became_ready(self) -> bool:
        try:
            with self._screen.step("Starting, and loading the model") as step:
                self._wait_until_ready(step)
        except _NotReady as problem:
            for child in problem.ended:
                self._show_end(child)
            return False
        except _CannotLoad as problem:
            self._screen.say(f"Forebay can't start; its worker says: {problem}")
            self._screen.say("`forebay journal --stderr` shows all that its worker said.")
            return False
        return True

    def _wait_until_ready(self, step: Step) -> None:
        told = None
        while not (readiness := _readiness(self._settings)).ready:
            if readiness.cause == "cannot_load":
                raise _CannotLoad(readiness.trouble)
            if readiness.trouble != told:
                told = readiness.trouble
                self._screen.say(f"The worker died while it was starting, and is tried again: {told}")
            ended = [life.child for life in self._lives if not life.child.running]
            if ended or self._signals:
                raise _NotReady([] if self._signals else ended)
            step.tick()
            time.sleep(_POLL_S)

    def _show_end(self, child: Child) -> None:
        lines = child.last_lines(_LINES_SHOWN)
        said = "The last lines of its log" if lines else "It said nothing in its log"
        self._screen.say(
            f"The {child.spec.role} {child.ending} before it was ready. {said} ({child.spec.log})."
        )
        for line in lines:
            self._screen.say(f"  {line}")

    def _look_after(self) -> None:
        while not self._signals:
            for life in self._lives:
                life.look_after()
            time.sleep(_POLL_S)

    def _end(self) -> None:
        """End the proxy first, which drains while the worker still answers. One more signal: at once."""
        borne = min(self._signals, 1)
        patience_s = {
            "proxy": self._settings.proxy.drain_s + _PROXY_GRACE_S,
            "worker": _WORKER_GRACE_S,
        }
        try:
            with self._screen.step("Ending; what runs may finish (Ctrl-C: at once)") as step:
                for life in self._lives:
                    child = life.child
                    child.terminate()
                    self._wait_for_end(child, patience_s[child.spec.role], borne, step)
        finally:
            for life in self._lives:
                life.child.kill()

    def _wait_for_end(self, child: Child, patience_s: float, signals_borne: int, step: Step) -> None:
        deadline_s = self._clock.now() + patience_s
        while child.running and self._signals <= signals_borne and self._clock.now() < deadline_s:
            step.tick()
            time.sleep(_POLL_S)


class _Life:
    """A child after its first start: a death is said in one line, and a new life follows a delay.

    So does another try where the system has nothing to start a process with: the other child goes on.
    """

    def __init__(self, child: Child, clock: Clock, say: Callable[[str], None]) -> None:
        self.child = child
        self._clock = clock
        self._say = say
        self._delay = RestartDelay()
        self._began_s = 0.0
        self._next_s: float | None = None

    def begin(self) -> None:
        self._began_s = self._clock.now()
        self._next_s = None
        self.child.start()

    def look_after(self) -> None:
        if self.child.running:
            with contextlib.suppress(OSError):  # A full disk costs the log, and nothing else.
                self.child.bound_log()
            return
        now_s = self._clock.now()
        if self._next_s is None:
            self._wait(self.child.ending, now_s - self._began_s, now_s)
        elif now_s >= self._next_s:
            try:
                self.begin()
            except OSError as problem:
                self._wait(f"can't be started ({problem.strerror})", 0.0, now_s)

    def _wait(self, ending: str, lived_s: float, now_s: float) -> None:
        delay_s = self._delay.after_life_of(lived_s)
        self._next_s = now_s + delay_s
        self._say(f"The {self.child.spec.role} {ending}; it starts again in {delay_s:g} s.")


@dataclass(frozen=True, slots=True)
class _Readiness:
    """What the proxy says of the worker; `cause` and `trouble` are how its last life ended, if one has."""

    ready: bool
    cause: str | None = None
    trouble: str | None = None


def _readiness(settings: Settings) -> _Readiness:
    """Ask the proxy whether a worker has loaded the model. Straight, past any HTTP_PROXY."""
    address = welcome.base_address(settings).removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=_PROBE_S)
    try:
        connection.request("GET", "/health/ready")
        response = connection.getresponse()
        if response.status == http.client.OK:
            return _Readiness(ready=True)
        worker = json.loads(response.read())["worker"]
        return _Readiness(False, worker["last_death"], worker["last_death_detail"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return _Readiness(ready=False)
    finally:
        connection.close()
