"""A block's file as bytes: sealed with checksums, and opened only if every bit is as it was written.

    magic with version (8) · length of the head (2) · digest of magic, length and head (16)
    head: msgpack of [key, parent, ids, cuttable, has a snapshot, length of the body, digest of the body]
    body: length of the layout (4) · layout: msgpack of dtypes, shapes, sizes · the arrays' bytes

Digests are keyed with the fingerprint: what another model wrote is as wrong as what a disk flipped. A head is
small, so that a scan needs one short read a file; and it holds the body's digest, so that it covers all.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.prefix_chain import KEY_BYTES, next_key
from worker.prefix_disk.records import Entry, Record, StoredArray

Buffer = bytes | memoryview

# Another layout, another number at the end.
MAGIC: Final = b"4bayKV\x00\x01"
_FRONT: Final = struct.Struct("<8sH16s")
_LENGTH: Final = struct.Struct("<L")
_BODY_DIGEST_BYTES: Final = 32
_HEAD_BYTES_MAX: Final = 2 * KEY_BYTES + 5 * PREFIX_BLOCK_TOKENS + _BODY_DIGEST_BYTES + 32

# So many bytes of a file's beginning hold its head.
BEGINNING_BYTES: Final = _FRONT.size + _HEAD_BYTES_MAX


class BadFileError(Exception):
    """A file isn't what its name says: cut off, changed, another model's, or another version's."""


@dataclass(frozen=True, slots=True)
class _Head:
    key: bytes
    parent: bytes
    ids: tuple[int, ...]
    cuttable: bool
    has_snapshot: bool
    body_bytes: int
    body_digest: bytes


class Seal:
    """Makes files of records and records of files, for one fingerprint."""

    def __init__(self, fingerprint: str) -> None:
        self._secret = hashlib.blake2b(fingerprint.encode(), person=b"forebay disk").digest()

    def close(self, record: Record) -> list[Buffer]:
        """Return a file's bytes, in pieces: arrays are not copied."""
        arrays = (*record.arrays, *record.snapshot)
        layout = msgpack.packb([_outline(record.arrays), _outline(record.snapshot)])
        body: list[Buffer] = [_LENGTH.pack(len(layout)) + layout]
        body += [memoryview(array.data).cast("B") for array in arrays if array.nbytes]
        body_bytes = sum(len(piece) for piece in body)
        about_body = body_bytes, self._body_digest(body)
        head = msgpack.packb(
            (record.key, record.parent, record.ids, record.cuttable, bool(record.snapshot), *about_body)
        )
        assert len(head) <= _HEAD_BYTES_MAX
        return [_FRONT.pack(MAGIC, len(head), self._head_digest(head)) + head, *body]

    def entry(self, beginning: bytes, file_bytes: int, key: bytes) -> Entry:
        """Return what the first BEGINNING_BYTES of `key`'s file say. Raises BadFileError."""
        head, start = self._head(beginning, key)
        if file_bytes != start + head.body_bytes:
            raise BadFileError("another length than was written")
        return Entry(head.key, head.parent, head.ids, head.cuttable, head.has_snapshot, file_bytes)

    def open(self, raw: Buffer, key: bytes) -> Record:
        """Return the record in `key`'s file; its arrays are views of `raw`. Raises BadFileError."""
        raw = memoryview(raw)
        head, start = self._head(bytes(raw[:BEGINNING_BYTES]), key)
        body = raw[start:]
        if len(body) != head.body_bytes or self._body_digest([body]) != head.body_digest:
            raise BadFileError("a body that isn't the one that was written")
        arrays, snapshot = _parts(body)
        if bool(snapshot) != head.has_snapshot:
            raise BadFileError("head and body disagree")
        return Record(head.key, head.parent, head.ids, head.cuttable, arrays, snapshot)

    def _head(self, beginning: bytes, key: bytes) -> tuple[_Head, int]:
        """Return the head and where the body starts, if the file is `key`'s."""
        if len(beginning) < _FRONT.size:
            raise BadFileError("cut off before its head")
        magic, length, digest = _FRONT.unpack_from(beginning)
        if magic != MAGIC:
            raise BadFileError("another kind of file, or another version")
        packed = beginning[_FRONT.size : _FRONT.size + length]
        if len(packed) != length or self._head_digest(packed) != digest:
            raise BadFileError("a head that isn't the one that was written, or another model's")
        try:
            head = _Head(*_unpacked(packed))
            head_names_itself = head.key == next_key(head.parent, head.ids)
        except (TypeError, ValueError, OverflowError) as problem:
            raise BadFileError("a head that can't be understood") from problem
        if head.key != key or not head_names_itself:
            raise BadFileError("another block's file")
        return head, _FRONT.size + length

    def _head_digest(self, head: bytes) -> bytes:
        digest = hashlib.blake2b(MAGIC, digest_size=16, key=self._secret, person=b"forebay head")
        digest.update(len(head).to_bytes(2, "little") + head)
        return digest.digest()

    def _body_digest(self, pieces: Sequence[Buffer]) -> bytes:
        digest = hashlib.blake2b(digest_size=_BODY_DIGEST_BYTES, key=self._secret, person=b"forebay body")
        for piece in pieces:
            digest.update(piece)
        return digest.digest()


def _outline(arrays: Sequence[StoredArray]) -> list[tuple[str, tuple[int, ...], int]]:
    return [(array.dtype, array.shape, array.nbytes) for array in arrays]


def _parts(body: memoryview) -> tuple[tuple[StoredArray, ...], tuple[StoredArray, ...]]:
    """Return the arrays and the snapshot of a body whose digest is right."""
    try:
        (length,) = _LENGTH.unpack_from(body)
        at = _LENGTH.size + length
        outlines = _unpacked(bytes(body[_LENGTH.size : at]))
        groups: list[tuple[StoredArray, ...]] = []
        for outline in outlines:
            group = []
            for dtype, shape, nbytes in outline:
                group.append(StoredArray(dtype, shape, body[at : at + nbytes]))
                at += nbytes
            groups.append(tuple(group))
        arrays, snapshot = groups
    except (TypeError, ValueError, struct.error) as problem:
        raise BadFileError("a layout that can't be understood") from problem
    if at != len(body):
        raise BadFileError("arrays of another length than was written")
    return arrays, snapshot


def _unpacked(packed: bytes) -> Any:
    """Return what msgpack holds, with tuples for lists. Raises ValueError."""
    try:
        return msgpack.unpackb(packed, use_list=False)
    except msgpack.UnpackException as problem:
        raise ValueError("no msgpack") from problem
