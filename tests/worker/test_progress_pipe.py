"""The progress pipe, cut anywhere and fed with anything."""

import itertools
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.codec import encode
from shared.messages import Ping, Progress
from shared.readings import MemoryReading
from worker.progress_pipe import FRAME_BYTES_MAX, ProgressReader, ProgressWriter

HUGE = (1 << 63) - 1

naturals = st.integers(0, HUGE)
reports = st.builds(
    Progress,
    epoch=naturals,
    step=naturals,
    phase=st.sampled_from(("loading", "idle", "prefill", "decode")),
    expected_ms=st.floats(0, 1e9),
    ping=naturals,
    running=st.just(()),
    kv_bytes=naturals,
    budget_bytes=naturals,
    tokens=naturals,
    answers=naturals,
    memory=st.builds(MemoryReading, naturals, naturals, naturals, naturals),
)
# Bytes at random, and frames that are well made around a payload that isn't.
garbage = st.one_of(
    st.binary(max_size=700),
    st.binary(max_size=500).map(lambda payload: b"\xfb\xf7" + len(payload).to_bytes(2, "big") + payload),
)


def progress(step: int, running: tuple[str, ...] = ()) -> Progress:
    return Progress(
        HUGE,
        step,
        "decode",
        12.5,
        HUGE,
        running,
        HUGE,
        HUGE,
        HUGE,
        HUGE,
        True,
        MemoryReading(HUGE, HUGE, HUGE, HUGE),
    )


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for descriptor in ends:
        try:
            os.close(descriptor)
        except OSError:  # the test closed it
            continue


def frames(*messages: Progress) -> bytes:
    read, write = os.pipe()
    writer = ProgressWriter(write)
    for message in messages:
        writer.write(message)
    assert writer.dropped == 0
    data = os.read(read, 1 << 16)
    os.close(read)
    os.close(write)
    return data


def fed(reader: ProgressReader, data: bytes, cuts: list[int]) -> list[Progress]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    return [message for piece in pieces for message in reader.feed(piece)]


@given(st.lists(reports, max_size=8), st.lists(st.integers(0, 1 << 20), max_size=8))
def test_what_is_written_is_read_however_it_is_cut(messages: list[Progress], cuts: list[int]) -> None:
    data = b"".join(frames(message) for message in messages)
    reader = ProgressReader()
    assert fed(reader, data, cuts) == messages
    assert reader.garbled == 0


@given(st.lists(garbage, max_size=6), st.lists(st.integers(0, 1 << 20), max_size=6))
def test_garbage_never_raises_and_never_piles_up(pieces: list[bytes], cuts: list[int]) -> None:
    reader = ProgressReader()
    fed(reader, b"".join(pieces), cuts)
    assert len(reader._buffer) <= FRAME_BYTES_MAX


@given(garbage, st.lists(st.integers(0, 1 << 20), max_size=6))
def test_after_garbage_the_pipe_is_understood_again(noise: bytes, cuts: list[int]) -> None:
    """A false header may swallow a frame's length of what follows; after that much nothing more is lost."""
    followers = [progress(step) for step in range(40)]
    reader = ProgressReader()
    read = fed(reader, noise + frames(*followers), cuts)
    assert read[-20:] == followers[-20:]


@given(reports, st.binary(max_size=FRAME_BYTES_MAX), st.integers(0, FRAME_BYTES_MAX))
def test_a_damaged_frame_costs_itself_only(message: Progress, damage: bytes, at: int) -> None:
    frame = frames(message)
    damaged = bytearray(frame)
    damaged[at % len(frame) :] = damage[: len(frame) - at % len(frame)]
    reader = ProgressReader()
    read = reader.feed(bytes(damaged) + b"".join([frame] * 40))
    assert read[-20:] == [message] * 20


def test_a_false_header_and_a_foreign_message_are_counted(pipe: tuple[int, int]) -> None:
    ping = encode(Ping(epoch=1, number=2))
    header = b"\xfb\xf7" + len(ping).to_bytes(2, "big")
    reader = ProgressReader()
    assert reader.feed(header + ping) == []
    assert reader.garbled == 1
    assert reader.feed(b"\xfb\xf7\xff\xff" + frames(progress(1))) == [progress(1)]
    assert reader.garbled == 1, "still the same place, as nothing was understood in between"
    reader.feed(b"Segmentation fault")
    assert reader.garbled == 2


def test_names_stay_behind_and_the_frame_is_atomic() -> None:
    names = tuple(f"a-rather-long-sequence-name-{number}" for number in range(256))
    data = frames(progress(3, running=names))
    assert len(data) <= FRAME_BYTES_MAX
    assert ProgressReader().feed(data) == [progress(3)]


def test_a_full_pipe_drops_reports_and_never_half_of_one(pipe: tuple[int, int]) -> None:
    read, write = pipe
    writer = ProgressWriter(write)
    written = 0
    while writer.dropped < 3:
        writer.write(progress(written))
        written += 1
    data = os.read(read, 1 << 20)
    reader = ProgressReader()
    assert reader.feed(data) == [progress(step) for step in range(written - 3)]
    assert reader.garbled == 0


def test_a_broken_pipe_is_counted_and_nothing_else(pipe: tuple[int, int]) -> None:
    read, write = pipe
    writer = ProgressWriter(write)
    os.close(read)
    writer.write(progress(1))
    assert writer.dropped == 1


def test_a_number_that_no_frame_holds_is_counted(pipe: tuple[int, int]) -> None:
    writer = ProgressWriter(pipe[1])
    writer.write(progress(1 << 70))
    assert writer.dropped == 1


def test_the_writers_end_is_not_handed_on_to_children(pipe: tuple[int, int]) -> None:
    os.set_inheritable(pipe[1], True)
    ProgressWriter(pipe[1])
    assert not os.get_inheritable(pipe[1])
