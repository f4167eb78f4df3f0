"""The quarantine's file, for when no gateway runs; and what a running one answers about its quarantine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ops.foreground_lock import is_held
from ops.gateway import GatewayAbsent
from proxy.quarantine import Entry, Quarantine, file_of
from shared.config import Settings
from shared.errors import SettingsError
from shared.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Told:
    """What is quarantined, the newest last."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """How many requests may run again, and which of the named ones weren't quarantined."""

    cleared: int
    unknown: tuple[str, ...]


class QuarantineFile:
    """Stands in for a gateway that isn't there; one that is, but is silent, would write over any change."""

    def __init__(self, settings: Settings) -> None:
        self._path = file_of(settings.home_folder, settings.port)
        self._lock = RunFolder(settings.home_folder, settings.port).proxy_lock

    def read(self, absent: GatewayAbsent) -> list[Entry]:
        """Return what the file holds and is still in force; `absent` is why no gateway was asked."""
        if is_held(self._lock):
            raise absent
        try:
            return [entry for entry in Quarantine.read(self._path) if time.time() < entry.until]
        except (OSError, ValueError) as problem:
            raise SettingsError(f"{self._path}: {problem}") from problem

    def clear(self, fingerprints: Sequence[str] | None, absent: GatewayAbsent) -> Cleared:
        """Forget these, or with None all of them."""
        entries = self.read(absent)
        here = {entry.fingerprint for entry in entries}
        gone = here if fingerprints is None else here & set(fingerprints)
        if gone:
            self._write([entry for entry in entries if entry.fingerprint not in gone])
        unknown = tuple(each for each in dict.fromkeys(fingerprints or ()) if each not in here)
        return Cleared(sum(entry.fingerprint in gone for entry in entries), unknown)

    def _write(self, entries: Sequence[Entry]) -> None:
        try:
            Quarantine.write(self._path, entries)
        except OSError as problem:
            raise SettingsError(f"{self._path}: {problem}") from problem
