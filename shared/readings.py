"""What a worker holds at one moment, as it reads it itself."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """What the device and the process hold at one moment, in bytes."""

    active_bytes: int
    cache_bytes: int
    peak_bytes: int
    footprint_bytes: int


@dataclass(frozen=True, slots=True)
class PrefixReading:
    """What a worker keeps of prompts, in bytes, and what happened to it in this life, in blocks.

    `kept_bytes` are held for whoever may come and given up when memory is short; `shared_bytes` are what
    rows read together, each counted once. `disk_bad` counts files that were damaged or foreign.
    """

    kept_bytes: int = 0
    shared_bytes: int = 0
    blocks: int = 0
    evictions: int = 0
    disk_bytes: int = 0
    disk_reads: int = 0
    disk_writes: int = 0
    disk_bad: int = 0


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What the engine has now: rows that decode, in groups of like lengths that run one after another.

    `arrays` are alive, of `arrays_max` at most; both are 0 where the device bounds no such number.
    """

    rows: int = 0
    groups: int = 0
    arrays: int = 0
    arrays_max: int = 0


NO_PREFIXES: Final = PrefixReading()
NO_ROWS: Final = EngineReading()
