"""Writes services and loads them, or takes them away: all or nothing, and never somebody else's."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.command import OrderFailed
from ops.screen import Screen
from ops.services.installed import read_file
from ops.services.jobs import in_words
from ops.services.keeper import Command, ServiceFile, ServiceKeeper
from ops.services.marks import Standing, is_intact, is_ours, standing
from shared.clock import Clock
from shared.errors import SettingsError

_COMMAND_S: Final = 700.0  # a stop of systemd's lasts as long as a drain, which proxy.drain_s bounds to 600
_ASK_AGAIN_S: Final = 0.5
_SAID_CHARS_MAX: Final = 500
_NOTHING_LEFT: Final = "Nothing of it is left"
_STANDINGS: Final[dict[Standing, str]] = {
    "absent": "new",
    "same": "there, and the same",
    "ours": "there, and different",
    "edited": "there, and changed by hand: refused without --force",
    "foreign": "there, and not written by `forebay install`: refused",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, and its words."""

    status: int
    said: str = ""


Runner = Callable[[tuple[str, ...]], Outcome]


class _CommandFailed(Exception):
    """A command came out badly; the text has its words."""


def run_command(words: tuple[str, ...]) -> Outcome:
    """Run a command to its end; one that can't be run at all has status 127."""
    try:
        done = subprocess.run(  # noqa: S603 (launchctl and systemctl, with words made here)
            words, capture_output=True, text=True, errors="replace", timeout=_COMMAND_S, check=False
        )
    except OSError as problem:
        return Outcome(127, str(problem))
    except subprocess.TimeoutExpired:
        return Outcome(124, f"it took longer than {_COMMAND_S:g} s")
    return Outcome(done.returncode, (done.stderr.strip() or done.stdout.strip())[:_SAID_CHARS_MAX])


class Installer:
    """Does it, through `run`. `patience_s` is how long a service may take to be gone."""

    def __init__(
        self,
        keeper: ServiceKeeper,
        run: Runner,
        *,
        screen: Screen,
        clock: Clock,
        sleep: Callable[[float], None],
        patience_s: float,
    ) -> None:
        self._keeper = keeper
        self._run = run
        self._screen = screen
        self._clock = clock
        self._sleep = sleep
        self._patience_s = patience_s

    # --- install ------------------------------------------------------------------------------------------

    def install(self, files: Sequence[ServiceFile], *, force: bool) -> str:
        """Write and load; return in a line what was done. OrderFailed says what state a failure leaves.

        SettingsError if a file is in the way that isn't ours as we wrote it; nothing is changed then.
        """
        before = {file.path: read_file(file.path) for file in files}
        found = [standing(before[file.path], file.text) for file in files]
        refuse_others(zip(before, found, strict=True), force=force)
        if set(found) == {"same"}:
            return self._load_again()
        try:
            with self._screen.step("Installing") as step:
                if set(found) != {"absent"}:
                    step.tick(note="ending what is installed")
                    self._obey(self._keeper.unload())
                for file in files:
                    write_file(file)
                self._obey(self._keeper.load())
        except (_CommandFailed, OSError, KeyboardInterrupt) as problem:
            left = self._undo(before)
            raise OrderFailed(f"{str(problem) or 'interrupted'}. {left}") from problem
        done = "installed" if set(found) == {"absent"} else "written anew and loaded again"
        return f"Forebay's services are {done}."

    def _load_again(self) -> str:
        if self._all_loaded():
            return "Forebay's services are installed already, with the same settings, and loaded."
        try:
            self._obey(self._keeper.unload())
            self._obey(self._keeper.load())
        except _CommandFailed as problem:
            raise OrderFailed(f"{problem}. The files are there, and as they should be") from problem
        return "Forebay's services were installed already, with the same settings; they are loaded again."

    def _undo(self, before: dict[Path, bytes | None]) -> str:
        """Bring back what was there; return in words what state that is."""
        troubles = []
        unheard = self._say_all(self._keeper.unload())
        try:
            for path, text in before.items():
                if text is None:
                    path.unlink(missing_ok=True)
                else:
                    write_file(ServiceFile(path, text))
        except OSError as problem:
            troubles.append(str(problem))
        unheard += self._say_all(self._keeper.forget())
        if None not in before.values():
            state = "What was installed before is back"
            try:
                self._obey(self._keeper.load())
            except _CommandFailed as problem:
                troubles.append(str(problem))
        else:
            state = "What was there before is back, and not loaded" if any(before.values()) else _NOTHING_LEFT
            if self._any_loaded():
                troubles += [*unheard, f"{self._keeper.name} still has one of the services loaded"]
        return f"Undoing it didn't go well either: {'; '.join(troubles)}" if troubles else state

    # --- uninstall ----------------------------------------------------------------------------------------

    def uninstall(self, *, force: bool) -> str:
        """Unload and remove what is ours; return in a line what was done."""
        found = {path: _remains(read_file(path)) for path in self._keeper.paths()}
        there = {path: kind for path, kind in found.items() if kind != "absent"}
        if not there:
            return "No service of Forebay's is installed there."
        refuse_others(there.items(), force=force)
        try:
            with self._screen.step("Ending the services; what runs may finish"):
                self._obey(self._keeper.unload())
        except _CommandFailed as problem:
            raise OrderFailed(f"{problem}. The files are left as they were") from problem
        try:
            for path in there:
                path.unlink(missing_ok=True)
            self._obey(self._keeper.forget())
        except (OSError, _CommandFailed) as problem:
            raise OrderFailed(f"the services are ended, but {problem}") from problem
        return "Forebay's services are ended, and their files removed. Home is left as it is."

    # --- commands -----------------------------------------------------------------------------------------

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if command.until_fails:
                self._wait(command)
            else:
                outcome = self._run(command.words)
                if command.fine is not None and outcome.status not in command.fine:
                    raise _CommandFailed(_failure(command, outcome))

    def _wait(self, command: Command) -> None:
        began_s = self._clock.now()
        while self._run(command.words).status == 0:
            if self._clock.now() - began_s > self._patience_s:
                raise _CommandFailed(f"{command.words[-1]} is still there after {self._patience_s:g} s")
            self._sleep(_ASK_AGAIN_S)

    def _say_all(self, commands: Sequence[Command]) -> list[str]:
        """Say them whatever they come to, and return what went wrong; what matters is asked afterwards."""
        problems = []
        for command in commands:
            try:
                self._obey([command])
            except _CommandFailed as problem:
                problems.append(str(problem))
        return problems

    def _all_loaded(self) -> bool:
        return all(self._run(command.words).status == 0 for command in self._keeper.is_loaded())

    def _any_loaded(self) -> bool:
        return any(self._run(command.words).status == 0 for command in self._keeper.is_loaded())


def _failure(command: Command, outcome: Outcome) -> str:
    said = " ".join(outcome.said.split()) or "it said nothing"
    return f"`{in_words(command.words)}` failed with status {outcome.status}: {said}"


def _remains(text: bytes | None) -> Standing:
    if text is None:
        return "absent"
    if is_intact(text):
        return "ours"
    return "edited" if is_ours(text) else "foreign"


def refuse_others(found: Iterable[tuple[Path, Standing]], *, force: bool) -> None:
    """Raise SettingsError if a file was changed by hand, which `force` allows, or is somebody else's."""
    for path, kind in found:
        if kind == "edited" and not force:
            raise SettingsError(
                f"{path} was changed by hand since it was installed; --force takes it all the same"
            )
        if kind == "foreign":
            raise SettingsError(f"{path} wasn't written by `forebay install`; move it away")


def write_file(file: ServiceFile) -> None:
    """Put a file in its place at once, readable by all and writable by its owner: launchd wants that."""
    file.path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.path.parent, prefix=".forebay-")
    try:
        with os.fdopen(descriptor, "wb") as new:
            new.write(file.text)
            new.flush()
            os.fsync(new.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(file.path)
    finally:
        Path(name).unlink(missing_ok=True)


def plan_lines(keeper: ServiceKeeper, files: Sequence[ServiceFile], folders: Sequence[Path]) -> Iterator[str]:
    """Yield what an install would do, and nothing is done: folders, files in full, commands."""
    found = {file.path: standing(read_file(file.path), file.text) for file in files}
    for folder in folders:
        if not folder.is_dir():
            yield f"# would make the folder {folder}"
    for file in files:
        yield f"# would write {file.path} ({_STANDINGS[found[file.path]]}):"
        yield file.text.decode().rstrip("\n")
        yield ""
    if set(found.values()) == {"same"}:
        yield "# would ask, and do nothing if both are loaded:"
        yield from (in_words(command.words) for command in keeper.is_loaded())
        return
    if set(found.values()) != {"absent"}:
        yield "# would end what is installed:"
        yield from map(_command_line, keeper.unload())
    yield "# would load them:"
    yield from map(_command_line, keeper.load())


def _command_line(command: Command) -> str:
    return in_words(command.words) + ("   # until it fails" if command.until_fails else "")
