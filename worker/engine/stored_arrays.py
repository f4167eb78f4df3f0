"""Slabs and snapshots as bytes for the disk, and back; and what tells one model's weights from another's."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from worker.engine.kinds import KeysValues, Planes
from worker.engine.slabs import Slab, Snapshot, States
from worker.prefix_disk.records import Record, StoredArray

# Changes whenever the arrays of a block are other ones than before.
FORMAT: Final = 1
_ABSENT: Final = StoredArray("none", (), b"")
# How much of the weights is summed at a time.
_WORDS: Final = 1 << 24


def stored(array: mx.array | None) -> StoredArray:
    """Return an array's bytes; of one that isn't there, what says so."""
    if array is None:
        return _ABSENT
    return StoredArray(str(array.dtype).rpartition(".")[2], tuple(array.shape), _bytes(array))


def loaded(array: StoredArray) -> mx.array | None:
    """Return the array that was stored; ValueError where its bytes don't fit its shape."""
    if array.dtype == _ABSENT.dtype:
        return None
    dtype = cast("mx.Dtype", getattr(mx, array.dtype))
    shape = (*array.shape[:-1], array.shape[-1] * dtype.size)
    raw: Any = memoryview(array.data).cast("B")
    return mx.array(raw).reshape(shape).view(dtype)


def _bytes(array: mx.array) -> bytes:
    # As bytes, because not every type of MLX's is one that a buffer can have.
    raw: Any = mx.contiguous(array).view(mx.uint8)
    return bytes(memoryview(raw))


def stored_planes(planes: Sequence[Planes]) -> tuple[StoredArray, ...]:
    """Return all kinds' planes one after the other; a kind without any adds none."""
    return tuple(stored(plane) for each in planes for plane in each)


def stored_snapshot(snapshot: Snapshot | None) -> tuple[StoredArray, ...]:
    """Return the states' arrays, then the rings'."""
    if snapshot is None:
        return ()
    states = [stored(array) for each in snapshot.states for array in each]
    return (*states, *stored_planes(snapshot.rings))


def slab_of(records: Sequence[Record], kinds: Sequence[KeysValues]) -> Slab:
    """Put blocks that follow each other together; ValueError unless their arrays fit these kinds.

    All of them can be cut, or none.
    """
    has = [kind.span is None or records[0].cuttable for kind in kinds]
    parts = [_planes(record, kinds, has) for record in records]
    planes = []
    for leaf in range(len(kinds)):
        each = zip(*(part[leaf] for part in parts), strict=True)
        planes.append([mx.contiguous(mx.concatenate(list(pieces), axis=2)) for pieces in each])
        mx.eval(planes[-1])
    return Slab(sum(len(record.ids) for record in records), planes)


def _planes(record: Record, kinds: Sequence[KeysValues], has: Sequence[bool]) -> list[Planes]:
    arrays = map(loaded, record.arrays)
    planes = []
    for kind, there in zip(kinds, has, strict=True):
        wanted = kind.empty(1, len(record.ids)) if there else []
        planes.append([_like(next(arrays, None), each) for each in wanted])
    if next(arrays, None) is not None:
        raise ValueError("more arrays than the model has")
    return planes


def snapshot_of(record: Record, tokens: int, like: Snapshot) -> Snapshot:
    """Return what was kept behind so many tokens; ValueError unless its arrays are such as `like` has."""
    arrays = map(loaded, record.snapshot)
    states: States = [[_like_or_none(next(arrays, None), each) for each in state] for state in like.states]
    rings = [[_ring_like(next(arrays, None), each) for each in ring] for ring in like.rings]
    return Snapshot(tokens, states, rings)


def _like(array: mx.array | None, like: mx.array) -> mx.array:
    if array is None or array.shape != like.shape or array.dtype != like.dtype:
        raise ValueError("an array isn't such as the model has")
    return array


def _like_or_none(array: mx.array | None, like: mx.array | None) -> mx.array | None:
    return None if like is None and array is None else _like(array, cast("mx.array", like))


def _ring_like(array: mx.array | None, like: mx.array) -> mx.array:
    """Check all but how many slots there are: a ring that isn't full yet has fewer."""
    if array is None or array.dtype != like.dtype or array.shape[:2] != like.shape[:2]:
        raise ValueError("a ring isn't such as the model has")
    return array


def weights_digest(model: Any) -> str:
    """Return what changes with any weight: of each array its name, shape, sum of bits, and some of the bits.

    Reads all weights once, on the device. Two sets that were made to agree in this could be confused; nobody
    gains by that but their owner's wrong answers.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, array in sorted(cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(b"".join(_bits(array)))
    return digest.hexdigest()


def _bits(array: mx.array) -> Iterator[bytes]:
    raw = array.flatten().view(mx.uint8)
    words = raw[: raw.size - raw.size % 4].view(mx.uint32)
    for start in range(0, words.size, _WORDS):
        piece = words[start : start + _WORDS]
        # Two sums, one of them weighed by place: a value that moves changes that.
        places = mx.arange(piece.size, dtype=mx.uint32) | 1
        for total in (piece.sum(), (piece * places).sum()):
            yield int(cast("int", total.item())).to_bytes(8, "little")
    yield _bytes(raw[-64:])
