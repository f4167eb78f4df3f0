"""The journal: what happened to each life of the worker, one JSON record a line, to be read after anything.

This file knows the records and reads them back; worker/journal_file.py writes them. A record has `at` (UTC,
ISO 8601), `boot` (which run of the machine), `port` (whose supervisor), `kind`, and what its class says. A
line that can't be read, as a death in the middle of writing leaves one, is passed over.
"""

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from shared.limits import KIB
from shared.messages import Breaker, DeathCause, ManifestRow, Phase
from shared.readings import MemoryReading

FILE_NAME: Final = "journal.jsonl"
# The current file and those before it, the newest first.
FILE_NAMES: Final = (FILE_NAME, *(f"journal.{number}.jsonl" for number in (1, 2, 3)))

_BLOCK_BYTES: Final = 64 * KIB


def folder_of(home: Path) -> Path:
    """Return the folder of a home's journal."""
    return home / "logs"


# --- records ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SupervisorStarted:
    """A supervisor begins. `lost_epoch` is a life before it whose end nobody saw, if there is one."""

    kind: ClassVar = "started"
    pid: int
    lost_epoch: int | None
    machine_went_down: bool


@dataclass(frozen=True, slots=True)
class Spawned:
    """A worker process is started."""

    kind: ClassVar = "spawned"
    epoch: int
    rung: int
    breaker: Breaker


@dataclass(frozen=True, slots=True)
class BecameReady:
    """The worker has loaded its model."""

    kind: ClassVar = "ready"
    epoch: int
    load_s: float


@dataclass(frozen=True, slots=True)
class Ran:
    """The worker is busy, with these rows: after a panic of the machine this is what is left of it."""

    kind: ClassVar = "running"
    epoch: int
    phase: Phase
    step: int
    tokens: int
    answers: int
    memory: MemoryReading
    rows: tuple[ManifestRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """The worker process is gone; `rung` and `breaker` are what they became by it."""

    kind: ClassVar = "exited"
    epoch: int
    cause: DeathCause
    detail: str
    lived_s: float
    rows: tuple[ManifestRow, ...]
    phase: Phase | None
    step: int
    tokens: int
    answers: int
    memory: MemoryReading | None
    rung: int
    breaker: Breaker
    stderr_tail: str


@dataclass(frozen=True, slots=True)
class CareChanged:
    """The supervisor became more cautious, or less."""

    kind: ClassVar = "care"
    epoch: int
    rung: int
    breaker: Breaker


@dataclass(frozen=True, slots=True)
class SupervisorStopped:
    """A supervisor ends in order."""

    kind: ClassVar = "stopped"


Entry = SupervisorStarted | Spawned | BecameReady | Ran | Ended | CareChanged | SupervisorStopped


# --- reading ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal. `fields` are those of its kind; `lost_before` counts those never written."""

    at: datetime
    boot: str
    port: int
    kind: str
    epoch: int | None
    lost_before: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the worker process, as far as the journal tells.

    `ended_at` and `cause` are None for one that lives, or whose end nobody saw; `detail` says of the latter
    what is known. `rows`, `memory` and the counts are those of its end, or of its last moment that was noted.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    port: int
    epoch: int
    spawned_at: datetime | None = None
    ready_after_s: float | None = None
    ended_at: datetime | None = None
    lived_s: float | None = None
    cause: DeathCause | None = None
    detail: str = ""
    rows: tuple[ManifestRow, ...] = ()
    phase: Phase | None = None
    step: int = 0
    tokens: int = 0
    answers: int = 0
    memory: MemoryReading | None = None
    rung: int = 0
    breaker: Breaker = "closed"
    stderr_tail: str = ""


def read_records(folder: Path, count: int | None = None, *, port: int | None = None) -> list[Record]:
    """Return the newest records of the journal in `folder`, the newest first; all of them without a count.

    `port` chooses one supervisor's. No journal is an empty one; OSError if it can't be read.
    """
    records: list[Record] = []
    for record in _records(folder, port):
        if count is not None and len(records) >= count:
            break
        records.append(record)
    return records


def read_lives(folder: Path, count: int | None = None, *, port: int | None = None) -> list[Life]:
    """Return the newest lives of the journal in `folder`, the newest first; all of them without a count.

    `port` chooses one supervisor's. No journal is an empty one; OSError if it can't be read.
    """
    lives: list[Life] = []
    gathered: dict[tuple[int, int], dict[str, Any]] = {}
    started_after: dict[int, Record] = {}
    for record in _records(folder, port):
        if record.kind == SupervisorStarted.kind:
            started_after[record.port] = record
        elif record.kind == SupervisorStopped.kind:
            started_after.pop(record.port, None)
        if record.epoch is None or record.kind == CareChanged.kind:
            continue
        known = gathered.setdefault((record.port, record.epoch), {})
        # Backwards in time: what is known already is newer.
        gathered[record.port, record.epoch] = {**_facts(record), **known}
        if record.kind == Spawned.kind:
            facts = gathered.pop((record.port, record.epoch))
            # Of lives before this one the supervisor saw the end, even if the record of it was lost.
            lives += _life(facts, record, started_after.pop(record.port, None))
        if count is not None and len(lives) >= count:
            return lives
    for (its_port, epoch), facts in gathered.items():
        lives += _of_facts(facts, its_port, epoch)
    return lives[:count]


def _facts(record: Record) -> dict[str, Any]:
    """Return what a record says of its life, by the names of Life's fields."""
    fields = {key: value for key, value in record.fields.items() if key != "epoch"}
    if record.kind == Spawned.kind:
        return {**fields, "spawned_at": record.at}
    if record.kind == BecameReady.kind:
        return {"ready_after_s": fields.get("load_s")}
    if record.kind == Ended.kind:
        return {**fields, "ended_at": record.at}
    return fields


def _life(facts: dict[str, Any], spawned: Record, started_after: Record | None) -> list[Life]:
    lives = _of_facts(facts, spawned.port, spawned.epoch or 0)
    if not lives or lives[0].ended_at is not None or started_after is None:
        return lives
    lost = "its supervisor ended without a word"
    if started_after.fields.get("machine_went_down"):
        lost = "the whole machine went down while it lived"
    return [replace(lives[0], detail=lost)]


def _of_facts(facts: dict[str, Any], port: int, epoch: int) -> list[Life]:
    """Return the life, of whose beginning nothing may be left; none if what is said of it makes no sense."""
    try:
        life: Life = _adapter().validate_python({**facts, "port": port, "epoch": epoch})
    except ValidationError:
        return []
    return [life]


@functools.cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Life)


def _records(folder: Path, port: int | None) -> Iterator[Record]:
    for name in FILE_NAMES:
        with contextlib.suppress(FileNotFoundError):
            for line in _lines_backwards(folder / name):
                record = _record(line)
                if record is not None and port in (None, record.port):
                    yield record


def _record(line: bytes) -> Record | None:
    try:
        said = json.loads(line)
        at = datetime.fromisoformat(said.pop("at"))
        boot, port, kind = said.pop("boot"), said.pop("port"), said.pop("kind")
        lost, epoch = said.pop("lost_before", 0), said.get("epoch")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    if not (isinstance(boot, str) and isinstance(port, int) and isinstance(kind, str)):
        return None
    if not (isinstance(lost, int) and isinstance(epoch, int | None)):
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return Record(at, boot, port, kind, epoch, lost, said)


def _lines_backwards(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file, the last first, without holding all of it."""
    with file.open("rb") as stream:
        end, rest = stream.seek(0, os.SEEK_END), b""
        while end > 0:
            start = max(0, end - _BLOCK_BYTES)
            stream.seek(start)
            first, *lines = (stream.read(end - start) + rest).split(b"\n")
            yield from (line for line in reversed(lines) if line)
            end, rest = start, first
        if rest:
            yield rest
