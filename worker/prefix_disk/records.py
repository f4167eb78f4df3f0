"""What the disk tier takes and gives: blocks of tokens with their arrays as bytes, and how it stands."""

from dataclasses import dataclass

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.prefix_chain import KEY_BYTES, next_key


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array as bytes, in C order. `dtype` is a name that only the engine understands."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    @property
    def nbytes(self) -> int:
        return memoryview(self.data).nbytes


@dataclass(frozen=True, slots=True)
class Record:
    """A block: `key` names everything up to its end, `parent` everything before its 1 to 64 `ids`.

    `snapshot` is a state that can't be cut, as it is after the last of `ids`; () stands for none.
    """

    key: bytes
    parent: bytes
    ids: tuple[int, ...]
    cuttable: bool
    arrays: tuple[StoredArray, ...]
    snapshot: tuple[StoredArray, ...]

    def __post_init__(self) -> None:
        assert 1 <= len(self.ids) <= PREFIX_BLOCK_TOKENS
        assert len(self.key) == len(self.parent) == KEY_BYTES
        assert self.key == next_key(self.parent, self.ids), "the key is another block's"

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.arrays, *self.snapshot))


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a block on disk without reading its arrays. `nbytes` is its file's size."""

    key: bytes
    parent: bytes
    ids: tuple[int, ...]
    cuttable: bool
    has_snapshot: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class DiskReading:
    """How the tier stands. `bytes` are those of all its files, other models' as well; counts are this life's.

    `reads`, `writes` and `evictions` are in blocks. `bad` counts files that were damaged or foreign,
    `failures` what the disk refused. `paused`: nothing is written at present, or the folder is another
    process's.
    """

    bytes: int
    blocks: int
    reads: int
    writes: int
    evictions: int
    bad: int
    failures: int
    queued_bytes: int
    paused: bool
