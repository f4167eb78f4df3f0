"""Requests that killed the worker when they ran alone: remembered for a while, and not run again.

Kept in memory and in a file, so that a proxy that starts anew knows them. A file that can't be written costs
the memory across a restart, and nothing else.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, Self

from pydantic import TypeAdapter, ValidationError

from shared.clock import Clock, SystemClock
from shared.config import Settings
from shared.errors import Quarantined
from shared.logs import Logger

_DETAIL_CHARS_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that isn't run. `at` and `until` are seconds of the wall clock; `key` is the API key's id.

    The wall clock may be set while the proxy runs: what has been told is what is left, by the clock as it is.
    """

    fingerprint: str
    at: float
    until: float
    cause: str
    detail: str
    key: str
    lane: str
    prompt_tokens: int


_ENTRIES: Final = TypeAdapter(list[Entry])


def file_of(home: Path, port: int) -> Path:
    """Return the file of the gateway at a port: several may have one home."""
    return home / f"quarantine-{port}.json"


class Quarantine:
    """At most `places` entries, the oldest of them forgotten first.

    `now` is the wall clock's time, which the file is in. How long an entry lasts goes by `clock`, which
    nobody sets; `_ends` has its time for each.
    """

    def __init__(
        self,
        path: Path,
        places: int,
        lasts_s: float,
        log: Logger,
        now: Callable[[], float],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._path = path
        self._places = places
        self._lasts_s = lasts_s
        self._log = log
        self._now = now
        self._clock = clock or SystemClock()
        self._entries: dict[str, Entry] = {}
        self._ends: dict[str, float] = {}
        self._next_end = 0.0  # not after the first of those: until then there is nothing to forget
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="quarantine")
        self._saving: Future[None] | None = None
        self._adopt(self._read_or_begin_anew())

    @classmethod
    def of(cls, settings: Settings, log: Logger) -> Self:
        """Return the quarantine of a gateway."""
        path, bounds = file_of(settings.home_folder, settings.port), settings.proxy
        return cls(path, bounds.quarantine_places, bounds.quarantine_s, log, time.time)

    @staticmethod
    def read(path: Path) -> list[Entry]:
        """Return what a file holds, none if there is no file. ValueError if it can't be understood."""
        try:
            return _ENTRIES.validate_json(path.read_bytes())
        except FileNotFoundError:
            return []
        except ValidationError as problem:
            raise ValueError(f"{path} is no list of quarantined requests") from problem

    @staticmethod
    def write(path: Path, entries: Iterable[Entry]) -> None:
        """Put a file in the old one's place as a whole. Raises OSError, and leaves the old one then."""
        text = json.dumps([asdict(entry) for entry in entries], indent=1)
        new = path.with_name(f"{path.name}.new")
        try:
            new.unlink(missing_ok=True)  # One that was left half-written may have another mode.
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise

    def _read_or_begin_anew(self) -> list[Entry]:
        try:
            return self.read(self._path)
        except (OSError, ValueError) as problem:
            self._log.warning("the quarantine begins anew", problem=str(problem))
            with contextlib.suppress(OSError):
                self._path.replace(self._path.with_name(f"{self._path.name}.unreadable"))
            return []

    def _adopt(self, entries: Iterable[Entry]) -> None:
        """Take what was remembered. A clock that was set back doesn't make it last longer than it may."""
        for entry in sorted(entries, key=lambda each: each.at)[-self._places :]:
            left_s = min(entry.until - self._now(), self._lasts_s)
            if left_s > 0:
                self._entries[entry.fingerprint] = entry
                self._ends[entry.fingerprint] = self._clock.now() + left_s

    # --- asking -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        self._forget_old()
        return len(self._entries)

    def entries(self) -> list[Entry]:
        """Return what is quarantined now, the oldest first."""
        self._forget_old()
        return [self._told(entry) for entry in self._entries.values()]

    def newest(self, count: int) -> list[Entry]:
        """Return the last of what is quarantined now, the oldest first, however much there is."""
        self._forget_old()
        return [self._told(entry) for entry in islice(reversed(self._entries.values()), count)][::-1]

    def _told(self, entry: Entry) -> Entry:
        left_s = self._ends[entry.fingerprint] - self._clock.now()
        return replace(entry, until=self._now() + left_s)

    def refuse(self, fingerprints: Iterable[str]) -> None:
        """Raise Quarantined if one of them is."""
        for fingerprint in fingerprints:
            if fingerprint in self._entries:
                self._forget_old()
            if fingerprint in self._entries:
                raise refusal(self._entries[fingerprint].cause)

    # --- changing -----------------------------------------------------------------------------------------

    def add(
        self, fingerprint: str, *, cause: str, detail: str, key: str, lane: str, prompt_tokens: int
    ) -> None:
        """Quarantine a request from now on."""
        now = self._now()
        self._entries.pop(fingerprint, None)
        self._entries[fingerprint] = Entry(
            fingerprint, now, now + self._lasts_s, cause, detail[:_DETAIL_CHARS_MAX], key, lane, prompt_tokens
        )
        self._ends[fingerprint] = self._clock.now() + self._lasts_s  # After all that are there.
        while len(self._entries) > self._places:
            self._forget(next(iter(self._entries)))
        self._save()

    def clear(self, fingerprints: Iterable[str] | None) -> set[str]:
        """Let these requests run again, or all of them; return which were here."""
        found = set(self._entries if fingerprints is None else fingerprints).intersection(self._entries)
        for each in found:
            self._forget(each)
        if found:
            self._save()
        return found

    def close(self) -> None:
        """Wait for what is being written."""
        self._writer.shutdown()

    def _forget_old(self) -> None:
        now = self._clock.now()
        if now < self._next_end:
            return
        for name in [name for name, ends_at in self._ends.items() if now >= ends_at]:
            self._forget(name)
        self._next_end = min(self._ends.values(), default=now)

    def _forget(self, fingerprint: str) -> None:
        del self._entries[fingerprint], self._ends[fingerprint]

    def _save(self) -> None:
        """Write the file in a thread: a disk may take its time, and so may many entries."""
        self._forget_old()
        left_s = {name: ends_at - self._clock.now() for name, ends_at in self._ends.items()}
        self._saving = self._writer.submit(self._write_or_warn, list(self._entries.values()), left_s)

    def _write_or_warn(self, entries: list[Entry], left_s: Mapping[str, float]) -> None:
        now = self._now()
        try:
            self.write(self._path, (replace(each, until=now + left_s[each.fingerprint]) for each in entries))
        except OSError as problem:
            self._log.error("the quarantine isn't kept across a restart", problem=str(problem))


def refusal(cause: str) -> Quarantined:
    """Return what the client of a quarantined request is told."""
    return Quarantined(
        f"The worker died of this request while it ran alone (cause: {cause}). It isn't run again for a "
        "while; the operator can see it with `forebay quarantine list`."
    )
