"""Small blocks for the disk tier, and a tier over a folder of a test's own."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shared import logs
from shared.clock import FalseClock
from shared.prefix_chain import next_key, root_key
from worker.prefix_disk.records import Record, StoredArray
from worker.prefix_disk.tier import DiskTier

FINGERPRINT: Final = "a model"
ROOT: Final = root_key(FINGERPRINT, 0)
DAY_S: Final = 86_400.0
NOON_S: Final = 20_000 * DAY_S + DAY_S / 2


def stored(text: str, nbytes: int = 96) -> StoredArray:
    """An array whose bytes follow from a text."""
    data = hashlib.blake2b(text.encode()).digest() * (nbytes // 64 + 1)
    return StoredArray("float16", (nbytes // 2,), data[:nbytes])


def record_of(
    parent: bytes, ids: Sequence[int], *, snapshot: bool = False, cuttable: bool = True, nbytes: int = 96
) -> Record:
    """A block that holds what nothing but its own beginning could."""
    key = next_key(parent, ids)
    arrays = stored(f"keys {key.hex()}", nbytes), stored(f"values {key.hex()}", nbytes)
    state = (stored(f"state {key.hex()}"),) if snapshot else ()
    return Record(key, parent, tuple(ids), cuttable, arrays, state)


def chain(ids: Sequence[int], root: bytes = ROOT, nbytes: int = 96) -> list[Record]:
    """Whole blocks of a prompt, then what is left over with a snapshot."""
    records, parent = [], root
    for start in range(0, len(ids), 64):
        block = tuple(ids[start : start + 64])
        records.append(record_of(parent, block, snapshot=len(block) < 64, nbytes=nbytes))
        parent = records[-1].key
    return records


def prompt(number: int, tokens: int) -> list[int]:
    """A prompt unlike any of another number."""
    return [number * 1_000_003 % (1 << 31) + at for at in range(tokens)]


def plain(record: Record) -> tuple[object, ...]:
    """A record with the bytes of its arrays, however they are held."""
    groups = [
        [(array.dtype, array.shape, bytes(array.data)) for array in group]
        for group in (record.arrays, record.snapshot)
    ]
    return record.key, record.parent, record.ids, record.cuttable, groups


class Desk:
    """A folder, two clocks moved by hand, and the tiers that were started over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FalseClock()
        self.wall_s = NOON_S
        self.tiers: list[DiskTier] = []

    def tier(
        self,
        fingerprint: str = FINGERPRINT,
        *,
        bytes_max: int = 1 << 30,
        a_day: int = 1 << 30,
        started: bool = True,
        **more: int,
    ) -> DiskTier:
        """Start a tier, and wait until it has scanned."""
        tier = DiskTier(
            self.folder,
            fingerprint,
            bytes_max=bytes_max,
            writes_bytes_a_day=a_day,
            clock=self.clock,
            now=self._now,
            log=logs.get("test"),
            **more,
        )
        self.tiers.append(tier)
        if started:
            tier.start()
            assert tier.drain()
        return tier

    def _now(self) -> float:
        """Each look is a little later than the one before, as on a real clock."""
        self.wall_s += 0.001
        return self.wall_s

    def write(self, tier: DiskTier, records: Sequence[Record]) -> None:
        assert all(tier.write(record) for record in records)
        assert tier.drain()

    def read(self, tier: DiskTier, ids: Sequence[int], root: bytes = ROOT) -> list[Record]:
        reading = tier.read(tier.find(root, ids))
        assert reading.wait(20)
        assert tier.drain()
        return reading.records

    def files(self) -> list[Path]:
        return sorted(self.folder.rglob("*.kv"))

    def file_of(self, record: Record) -> Path:
        name = record.key.hex()
        (path,) = self.folder.glob(f"*/{name[:2]}/{name}.kv")
        return path

    def close(self) -> None:
        for tier in self.tiers:
            tier.close()
