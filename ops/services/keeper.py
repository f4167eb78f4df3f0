"""What keeps services, seen from here: files to write, and commands to say. Plain data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ops.services.jobs import Job


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """One file to be written: whole, sealed."""

    path: Path
    text: bytes


@dataclass(frozen=True, slots=True)
class Command:
    """One command. Statuses in `fine` are good; None: any is.

    With `until_fails` it is said again and again until it fails: it asks whether something is still there.
    """

    words: tuple[str, ...]
    fine: frozenset[int] | None = frozenset({0})
    until_fails: bool = False


class ServiceKeeper(Protocol):
    """launchd or systemd, for one user or for the system, and for one port."""

    @property
    def name(self) -> str:
        """Return what people call it."""

    def file(self, job: Job) -> ServiceFile:
        """Return the file of a job."""

    def paths(self) -> tuple[Path, ...]:
        """Return where this port's files are, the worker's first."""

    def load(self) -> Sequence[Command]:
        """Return what starts both, whose files have just been written."""

    def unload(self) -> Sequence[Command]:
        """Return what ends both, the proxy first, and waits until they are gone."""

    def forget(self) -> Sequence[Command]:
        """Return what is to be said once files have been removed."""

    def is_loaded(self) -> Sequence[Command]:
        """Return questions that all come out well if both are loaded."""

    def ended_by(self) -> str:
        """Return, as a shell reads it, what ends both until they are started again."""

    def advice(self) -> Sequence[str]:
        """Return what the operator should know after an install, a line each."""
