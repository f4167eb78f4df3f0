"""What a life writes is bounded, and its end is kept."""

import os
from pathlib import Path

import pytest

from worker.child import StderrFolder

KIB = 1024


@pytest.fixture
def folder(tmp_path: Path) -> StderrFolder:
    return StderrFolder(tmp_path, lives_kept=3, file_bytes_max=1024 * KIB)


def test_a_file_within_bounds_is_left_alone(folder: StderrFolder, tmp_path: Path) -> None:
    with folder.create(1) as file:
        file.write(b"x" * 768 * KIB)
    folder.cut(1)
    assert {file.name: file.stat().st_size for file in tmp_path.iterdir()} == {"1.stderr": 768 * KIB}


def test_a_file_too_large_begins_anew_and_its_end_is_kept_beside_it(
    folder: StderrFolder, tmp_path: Path
) -> None:
    with folder.create(1) as file:
        os.write(file.fileno(), b"a" * 1024 * KIB + b"b" * 256 * KIB)
        folder.cut(1)
        os.write(file.fileno(), b"the end\n")
    before = (tmp_path / "1.stderr.before").read_bytes()
    assert before == b"[1048576 bytes before this are left out]\n" + b"b" * 256 * KIB
    assert (tmp_path / "1.stderr").read_bytes() == b"the end\n"


def test_the_end_of_what_was_written_is_read_over_both_files(folder: StderrFolder) -> None:
    with folder.create(1) as file:
        os.write(file.fileno(), b"a" * 1024 * KIB)
        folder.cut(1)
        os.write(file.fileno(), b"the end\n")
        assert folder.tail(1) == "a" * (8 * KIB - 8) + "the end\n"
        os.write(file.fileno(), b"c" * 8 * KIB)
    assert folder.tail(1) == "c" * 8 * KIB


def test_a_file_too_large_is_cut_even_if_nothing_of_it_can_be_kept(
    folder: StderrFolder, tmp_path: Path
) -> None:
    (tmp_path / "1.stderr.before").symlink_to("/dev/full")
    with folder.create(1) as file:
        os.write(file.fileno(), b"a" * 1024 * KIB)
    folder.cut(1)
    assert (tmp_path / "1.stderr").stat().st_size == 0


def test_a_life_that_goes_takes_both_files_with_it(folder: StderrFolder, tmp_path: Path) -> None:
    with folder.create(1) as file:
        os.write(file.fileno(), b"a" * 1024 * KIB)
    folder.cut(1)
    for epoch in (2, 3, 4):
        folder.create(epoch).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["2.stderr", "3.stderr", "4.stderr"]


def test_a_file_that_is_gone_is_no_error(folder: StderrFolder) -> None:
    folder.cut(1)
    assert folder.tail(1) == ""


def test_the_newest_lives_are_kept(folder: StderrFolder, tmp_path: Path) -> None:
    (tmp_path / "notes.stderr").touch()
    for epoch in (9, 10, 11, 12):
        folder.create(epoch).close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "10.stderr",
        "11.stderr",
        "12.stderr",
        "notes.stderr",
    ]
