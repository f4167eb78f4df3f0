"""Keepers of services that live in a temporary folder, and a runner that records what it is told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ops.services.install import Installer, Outcome
from ops.services.jobs import Whole, jobs
from ops.services.keeper import ServiceFile, ServiceKeeper
from ops.services.launchd import Launchd
from ops.services.systemd import Systemd


class FalseScreen:
    """Shows nothing."""

    def say(self, line: str) -> None: ...

    def step(self, _what: str) -> "FalseScreen":
        return self

    def tick(self, *, note: str = "") -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class HandClock:
    """Moves by what is slept."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s


@dataclass
class Machine:
    """What keeps services, from outside: `loaded` are names, `failing` words whose commands come out badly.

    `drains` is how often a service that was told to end is still there when it is asked for.
    """

    loaded: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    failing: Callable[[str], bool] = lambda _line: False
    drains: int = 0
    _asked: int = 0

    def run(self, words: tuple[str, ...]) -> Outcome:
        line = " ".join(words)
        self.told.append(line)
        if self.failing(line):
            return Outcome(5, "Bootstrap failed: 5:\nInput/output error")
        verb, *names = [word for word in words[1:] if not word.startswith("-")]
        handlers = {
            "bootstrap": self._bootstrap,
            "bootout": self._bootout,
            "print": self._asks,
            "is-active": self._asks,
            "restart": self._starts,
            "stop": self._stops,
        }
        return handlers.get(verb, lambda *_: Outcome(0))(*names)

    def _bootstrap(self, domain: str, path: str) -> Outcome:
        return self._starts(f"{domain}/{Path(path).stem}")

    def _starts(self, *names: str) -> Outcome:
        self.loaded |= set(names)
        return Outcome(0)

    def _stops(self, *names: str) -> Outcome:
        self.loaded -= set(names)
        return Outcome(0)

    def _bootout(self, name: str) -> Outcome:
        if name not in self.loaded:
            return Outcome(113, "Could not find service")
        self._asked = 0
        if not self.drains:
            self.loaded.discard(name)
        return Outcome(36 if self.drains else 0)

    def _asks(self, name: str) -> Outcome:
        self._asked += 1
        if self.drains and self._asked > self.drains:
            self.loaded.discard(name)
        return Outcome(0 if name in self.loaded else 113)


def launchd(tmp_path: Path, *, system: bool = False, port: int = 8000) -> Launchd:
    return Launchd(port, None if system else 501, tmp_path, daemons=tmp_path / "daemons")


def systemd(tmp_path: Path, *, system: bool = False, port: int = 8000) -> Systemd:
    return Systemd(port, None if system else "ada", tmp_path, system_units=tmp_path / "units")


KEEPERS: dict[str, Callable[[Path], ServiceKeeper]] = {"launchd": launchd, "systemd": systemd}


def whole(tmp_path: Path, **given: object) -> Whole:
    # A short home: the socket's path has to fit.
    return Whole(
        **{"python": "/opt/f/bin/python", "home": Path("/f"), "port": 8000, "drain_s": 25.0, **given}
    )  # type: ignore[arg-type]  # a test's own


def files(keeper: ServiceKeeper, made: Whole) -> list[ServiceFile]:
    return [keeper.file(job) for job in jobs(made)]


def installer(keeper: ServiceKeeper, machine: Machine, clock: HandClock | None = None) -> Installer:
    clock = clock or HandClock()
    return Installer(
        keeper,
        machine.run,
        screen=FalseScreen(),  # type: ignore[arg-type]  # it has what is used
        clock=clock,
        sleep=clock.sleep,
        patience_s=55.0,
    )
