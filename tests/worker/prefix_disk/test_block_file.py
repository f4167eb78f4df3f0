"""A block's file gives back what was put in, or nothing: whatever happened to its bits."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.prefix_chain import next_key
from tests.worker.prefix_disk.small_blocks import FINGERPRINT, ROOT, plain, record_of
from worker.prefix_disk import block_file
from worker.prefix_disk.block_file import BEGINNING_BYTES, BadFileError, Seal
from worker.prefix_disk.records import Record, StoredArray

SEAL = Seal(FINGERPRINT)
RECORD = record_of(ROOT, range(64), snapshot=True)
OTHER = record_of(ROOT, range(1, 65), snapshot=True)


def raw(record: Record, seal: Seal = SEAL) -> bytes:
    return b"".join(seal.close(record))


def opens(data: bytes, key: bytes = RECORD.key, seal: Seal = SEAL) -> bool:
    """Whether a file is served; then it is the one that was asked for. Neither way of reading may raise."""
    try:
        record = seal.open(data, key)
    except BadFileError:
        return False
    assert plain(record) == plain(RECORD)
    return True


arrays_drawn = st.lists(
    st.builds(
        lambda dtype, data: StoredArray(dtype, (len(data),), data),
        st.text(max_size=9),
        st.binary(max_size=99),
    ),
    max_size=3,
).map(tuple)


@given(
    st.binary(min_size=16, max_size=16),
    st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=64).map(tuple),
    st.booleans(),
    arrays_drawn,
    arrays_drawn,
    st.text(max_size=9),
)
@settings(max_examples=100)
def test_what_was_put_in_comes_out(parent, ids, cuttable, arrays, snapshot, fingerprint) -> None:
    record = Record(next_key(parent, ids), parent, ids, cuttable, arrays, snapshot)
    seal = Seal(fingerprint)
    data = raw(record, seal)
    assert plain(seal.open(data, record.key)) == plain(record)
    entry = seal.entry(data[:BEGINNING_BYTES], len(data), record.key)
    assert (entry.key, entry.parent, entry.ids) == (record.key, record.parent, record.ids)
    assert (entry.cuttable, entry.has_snapshot, entry.nbytes) == (cuttable, bool(snapshot), len(data))


def test_arrays_that_are_views_of_other_memory_are_stored_as_bytes() -> None:
    view = memoryview(bytes(range(48))).cast("B").cast("H", (4, 6))
    record = Record(RECORD.key, ROOT, RECORD.ids, True, (StoredArray("uint16", (4, 6), view),), ())
    assert bytes(SEAL.open(raw(record), record.key).arrays[0].data) == bytes(range(48))


def test_a_file_that_was_cut_off_is_not_opened() -> None:
    data = raw(RECORD)
    lengths = {*range(45), *random.Random(1).sample(range(len(data)), 40), len(data) - 1}
    assert [length for length in lengths if opens(data[:length])] == []
    assert opens(data)


def test_a_file_with_more_at_its_end_is_not_opened() -> None:
    data = raw(RECORD)
    assert not opens(data + b"\0")
    with pytest.raises(BadFileError):
        SEAL.entry(data[:BEGINNING_BYTES], len(data) + 1, RECORD.key)


def test_a_file_with_any_bit_flipped_is_not_opened() -> None:
    data = raw(RECORD)
    served = []
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        if opens(bytes(changed)):
            served.append(at)
    assert served == []


@given(st.data())
def test_a_file_with_bytes_changed_moved_or_left_out_is_not_opened(data) -> None:
    sound = raw(RECORD)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(sound))] * 2)))
    changed = sound[:start] + data.draw(st.binary(max_size=80)) + sound[end:]
    assert opens(changed) == (changed == sound)


def test_the_beginning_of_a_damaged_head_tells_nothing() -> None:
    data = raw(RECORD)
    front_and_head = len(data) - len(b"".join(SEAL.close(RECORD)[1:]))
    for at in range(front_and_head):
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(BadFileError):
            SEAL.entry(bytes(changed[:BEGINNING_BYTES]), len(data), RECORD.key)


def test_another_blocks_file_is_not_opened() -> None:
    assert not opens(raw(OTHER))
    with pytest.raises(BadFileError):
        SEAL.entry(raw(OTHER)[:BEGINNING_BYTES], len(raw(OTHER)), RECORD.key)


def test_a_head_beside_anothers_body_is_not_opened() -> None:
    ours, others = SEAL.close(RECORD), SEAL.close(OTHER)
    assert not opens(b"".join([ours[0], *others[1:]]))


def test_another_models_file_is_not_opened() -> None:
    assert not opens(raw(RECORD, Seal("another model")))
    assert not opens(raw(RECORD), seal=Seal("another model"))


def test_another_versions_file_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(block_file, "MAGIC", block_file.MAGIC[:-1] + b"\x02")
        newer = raw(RECORD)
        assert opens(newer)
    assert not opens(newer)


def test_a_head_whose_key_does_not_follow_from_its_tokens_is_not_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("worker.prefix_disk.records.next_key", lambda _parent, _ids: RECORD.key)
        false = raw(Record(RECORD.key, ROOT, OTHER.ids, True, RECORD.arrays, ()))
    with pytest.raises(BadFileError, match="another block"):
        SEAL.open(false, RECORD.key)


def test_the_largest_head_there_can_be_fits_into_the_beginning() -> None:
    record = record_of(b"\xff" * 16, [(1 << 32) - 1 - at for at in range(64)], snapshot=True, nbytes=1 << 17)
    data = raw(record)
    assert SEAL.entry(data[:BEGINNING_BYTES], len(data), record.key).ids == record.ids
