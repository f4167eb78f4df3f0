"""What ran, read from memory that the worker shares: whatever was written, and wherever it was cut off."""

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.limits import CONTEXT_TOKENS_MAX, NAME_CHARS_MAX, SLOTS_MAX
from shared.messages import ManifestRow
from worker import manifest
from worker.manifest import ManifestWriter

ONE = (ManifestRow("one", 1, 5, prefilling=False),)
TWO = (ManifestRow("two", 2, 0, prefilling=True), ManifestRow("three", 1, 9, prefilling=False))
# Where small manifests lie: at the beginning of each half.
HEADS = (*range(300), *range(manifest._HALF_BYTES, manifest._HALF_BYTES + 300))
# Writes without end, each time as many rows of step N as N says, until it is killed.
ENDLESS = """
import sys
from shared.messages import ManifestRow
from worker.manifest import ManifestWriter
writer = ManifestWriter(int(sys.argv[1]))
step = 0
while True:
    step = step % 200 + 1
    writer.write([ManifestRow(f"s{step}", step, row, False) for row in range(step)])
    if step == 200:
        print("!", flush=True)
"""


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor = manifest.create()
    yield descriptor
    os.close(descriptor)


def test_what_was_written_last_is_read(descriptor: int) -> None:
    writer = ManifestWriter(descriptor)
    for rows in (ONE, TWO, (), ONE):
        writer.write(rows)
        assert manifest.read(descriptor) == rows


def test_nothing_was_written_yet(descriptor: int) -> None:
    assert manifest.read(descriptor) == ()


def test_a_manifest_as_large_as_any_can_be_fits(descriptor: int) -> None:
    name = "\U0001f600" * NAME_CHARS_MAX
    rows = tuple(ManifestRow(name, 1024, CONTEXT_TOKENS_MAX, prefilling=True) for _ in range(2 * SLOTS_MAX))
    writer = ManifestWriter(descriptor)
    writer.write(ONE)
    writer.write(rows)
    assert manifest.read(descriptor) == rows
    writer.write(TWO)
    assert manifest.read(descriptor) == TWO


def test_more_rows_than_there_are_places_are_cut(descriptor: int) -> None:
    ManifestWriter(descriptor).write(ONE * 5000)
    assert manifest.read(descriptor) == ONE * (2 * SLOTS_MAX)


def test_a_descriptor_of_nothing_is_no_error() -> None:
    ManifestWriter(-1).write(ONE)
    assert manifest.read(-1) == ()


def test_memory_that_was_cut_short_is_no_error(descriptor: int) -> None:
    writer = ManifestWriter(descriptor)
    writer.write(ONE)
    writer.write(TWO)
    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
    assert manifest.read(descriptor) == TWO
    os.ftruncate(descriptor, 3)
    assert manifest.read(descriptor) == ()


@settings(deadline=None)
@given(cut=st.integers(0, 200), first=st.booleans())
def test_a_death_in_the_middle_of_writing_leaves_the_one_before(cut: int, first: bool) -> None:
    """The memory after any number of the new half's bytes were copied holds the old rows, or all new ones."""
    descriptor = manifest.create()
    try:
        with mmap.mmap(descriptor, 0) as memory:
            writer = ManifestWriter(descriptor)
            if not first:
                writer.write(TWO)
            writer.write(ONE)
            before = memory[:]
            writer.write(TWO)
            after = memory[:]
            changed = [place for place in HEADS if after[place] != before[place]]
            place = min(changed[0] + cut, len(after))
            memory[:] = after[:place] + before[place:]
        assert manifest.read(descriptor) == (TWO if place > changed[-1] else ONE)
    finally:
        os.close(descriptor)


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from([0, 4, 16, 1 << 19, (1 << 19) + 16]))
def test_garbage_is_no_error(garbage: bytes, place: int) -> None:
    descriptor = manifest.create()
    try:
        writer = ManifestWriter(descriptor)
        writer.write(ONE)
        writer.write(TWO)
        os.pwrite(descriptor, garbage, place)
        assert manifest.read(descriptor) in (ONE, TWO, ())
    finally:
        os.close(descriptor)


def test_a_writer_killed_at_any_moment_leaves_one_whole_step(descriptor: int) -> None:
    for _ in range(3):
        with subprocess.Popen(
            (sys.executable, "-c", ENDLESS, str(descriptor)), pass_fds=(descriptor,), stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            seen = {len(manifest.read(descriptor)) for _ in range(200)}
            process.send_signal(signal.SIGKILL)
        rows = manifest.read(descriptor)
        assert rows == tuple(ManifestRow(f"s{len(rows)}", len(rows), row, False) for row in range(len(rows)))
        assert rows
        assert min(seen) > 0
