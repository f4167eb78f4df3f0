"""Whatever happens to the disk costs what it held: never an exception, never another block's bytes."""

import errno
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.worker.prefix_disk.small_blocks import FINGERPRINT, ROOT, Desk, chain, plain, prompt, record_of
from worker.prefix_disk import files
from worker.prefix_disk.block_file import Seal
from worker.prefix_disk.records import Record
from worker.prefix_disk.tier import DiskTier

IDS = prompt(1, 200)
ROOT_FOLDER = Path(files.__file__).parents[2]
# Writes without end; says so once there is something, and goes on.
ENDLESS = """
import itertools, sys
from pathlib import Path
from tests.worker.prefix_disk.small_blocks import Desk, chain, prompt
desk = Desk(Path(sys.argv[1]))
tier = desk.tier()
for number in itertools.count():
    desk.write(tier, chain(prompt(number, 64), nbytes=100_000))
    if number == 20:
        print("!", flush=True)
"""
RECORDS = chain(IDS)


@pytest.fixture(autouse=True)
def disk_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "sync", lambda _descriptor: None)


def written(desk: Desk, count: int) -> tuple[DiskTier, list[Record]]:
    """A tier with many blocks that know nothing of each other."""
    tier = desk.tier()
    records = [record_of(ROOT, prompt(100 + number, 64), snapshot=number % 2 == 0) for number in range(count)]
    desk.write(tier, records)
    return tier, records


def damage_each(desk: Desk, records: list[Record], damaged: list[bytes]) -> None:
    for record, data in zip(records, damaged, strict=True):
        path = desk.file_of(record)
        assert path.read_bytes() != data
        path.write_bytes(data)


def expect_none_served(desk: Desk, tier: DiskTier, records: list[Record]) -> None:
    served = [number for number, record in enumerate(records) if desk.read(tier, record.ids)]
    assert served == []
    assert tier.reading.bad == len(records)
    assert desk.files() == []
    assert (tier.reading.bytes, tier.keys()) == (0, [])
    desk.write(tier, records[:1])
    assert plain(desk.read(tier, records[0].ids)[0]) == plain(records[0])


@pytest.mark.parametrize("restarted", [False, True])
def test_files_that_were_cut_off_are_removed_and_counted(desk: Desk, restarted: bool) -> None:
    tier, records = written(desk, 40)
    whole = [desk.file_of(record).read_bytes() for record in records]
    # At both ends, and all over.
    cut = [
        data[: at if at < 5 else len(data) - 45 + at if at > 35 else at * 10] for at, data in enumerate(whole)
    ]
    damage_each(desk, records, cut)
    if restarted:
        tier.close()
        tier = desk.tier()
        assert tier.reading.bad == 40
    expect_none_served(desk, tier, records)


@pytest.mark.parametrize("restarted", [False, True])
def test_files_with_a_bit_flipped_are_removed_and_counted(desk: Desk, restarted: bool) -> None:
    tier, records = written(desk, 200)
    luck, flipped = random.Random(7), []
    for record in records:
        data = bytearray(desk.file_of(record).read_bytes())
        data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
        flipped.append(bytes(data))
    damage_each(desk, records, flipped)
    if restarted:
        tier.close()
        tier = desk.tier()
        assert 0 < tier.reading.bad < 200  # a flip in a body shows when it is read
    expect_none_served(desk, tier, records)


@pytest.mark.parametrize("restarted", [False, True])
def test_files_that_took_each_others_places_are_not_served(desk: Desk, restarted: bool) -> None:
    tier, records = written(desk, 2)
    one, two = (desk.file_of(record) for record in records)
    first = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(first)
    if restarted:
        tier.close()
        tier = desk.tier()
    expect_none_served(desk, tier, records)


def test_a_file_under_a_name_that_no_block_has_is_bad(desk: Desk) -> None:
    tier, (record,) = written(desk, 1)
    tier.close()
    path = desk.file_of(record)
    renamed = path.with_name(f"{path.stem[:-1]}{'0' if path.stem[-1] != '0' else '1'}.kv")
    path.rename(renamed)
    again = desk.tier()
    assert (again.reading.bad, again.reading.blocks, desk.files()) == (1, 0, [])


@pytest.mark.parametrize("restarted", [False, True])
def test_files_of_another_model_or_version_or_none_are_not_served(desk: Desk, restarted: bool) -> None:
    tier, records = written(desk, 4)
    other = b"".join(Seal("another model").close(records[0]))
    ours = desk.file_of(records[1]).read_bytes()
    newer = ours[:7] + bytes([ours[7] + 1]) + ours[8:]
    damage_each(desk, records, [other, newer, b"", bytes(5000)])
    if restarted:
        tier.close()
        tier = desk.tier()
        assert tier.reading.bad == 4
    expect_none_served(desk, tier, records)


def test_what_is_no_file_is_left_alone_and_counted(desk: Desk) -> None:
    tier, (folder, pipe, link) = written(desk, 3)
    sound = desk.file_of(link).read_bytes()
    elsewhere = desk.folder.parent / "elsewhere"
    elsewhere.write_bytes(sound)
    for record in (folder, pipe, link):
        desk.file_of(record).unlink()
    place = {
        record.key: next(desk.folder.glob(f"*/{record.key.hex()[:2]}")) for record in (folder, pipe, link)
    }
    inside = place[folder.key] / f"{folder.key.hex()}.kv"
    inside.mkdir()
    (inside / "somebody's").touch()
    os.mkfifo(place[pipe.key] / f"{pipe.key.hex()}.kv")
    (place[link.key] / f"{link.key.hex()}.kv").symlink_to(elsewhere)
    for record in (folder, pipe, link):
        assert desk.read(tier, record.ids) == []
    assert tier.reading.bad == 3
    assert (inside / "somebody's").exists()
    assert elsewhere.read_bytes() == sound
    # A write that finds the folder in its place costs that block only.
    desk.write(tier, [folder, pipe])
    assert not tier.reading.paused
    assert [len(desk.read(tier, record.ids)) for record in (folder, pipe)] == [0, 1]
    tier.close()
    assert desk.tier().reading.blocks == 1


def test_a_file_that_may_not_be_read_is_bad_and_one_too_many_is_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier, (record,) = written(desk, 1)
    opened = os.open

    def refused_with(number: int) -> None:
        def refuse(path, flags, mode=0o777, **more):
            if str(path).endswith(".kv") and not flags & os.O_CREAT:
                raise OSError(number, os.strerror(number), str(path))
            return opened(path, flags, mode, **more)

        monkeypatch.setattr(os, "open", refuse)

    refused_with(errno.EMFILE)
    assert desk.read(tier, record.ids) == []
    assert tier.reading.bad == 0
    assert len(desk.files()) == 1
    refused_with(errno.EACCES)
    assert desk.read(tier, record.ids) == []
    assert tier.reading.bad == 1
    assert desk.files() == []


def test_what_is_built_on_a_bad_block_goes_with_it(desk: Desk) -> None:
    tier = desk.tier()
    desk.write(tier, RECORDS)
    desk.file_of(RECORDS[1]).write_bytes(b"bad")
    assert len(desk.read(tier, IDS)) == 1
    assert [path.stem for path in desk.files()] == [RECORDS[0].key.hex()]
    assert (tier.reading.bad, tier.reading.blocks) == (1, 1)


def test_what_is_built_on_a_block_that_a_scan_finds_bad_goes_with_it(desk: Desk) -> None:
    first = desk.tier()
    desk.write(first, RECORDS)
    first.close()
    desk.file_of(RECORDS[1]).write_bytes(b"bad")
    tier = desk.tier()
    assert [path.stem for path in desk.files()] == [RECORDS[0].key.hex()]
    assert tier.keys() == [RECORDS[0].key]


def test_a_file_that_goes_between_find_and_read_ends_the_reading(desk: Desk) -> None:
    tier = desk.tier()
    desk.write(tier, RECORDS)
    entries = tier.find(ROOT, IDS)
    desk.file_of(RECORDS[2]).unlink()
    reading = tier.read(entries)
    assert reading.wait(20)
    assert [plain(record) for record in reading.records] == [plain(record) for record in RECORDS[:2]]
    assert tier.drain()
    assert tier.reading.bad == 0
    assert not tier.knows(RECORDS[2].key)
    assert sorted(path.stem for path in desk.files()) == sorted(record.key.hex() for record in RECORDS[:2])


def test_what_else_went_with_a_file_is_forgotten_too(desk: Desk) -> None:
    tier, records = written(desk, 5)
    for record in records[:3]:
        desk.file_of(record).unlink()
    assert desk.read(tier, records[0].ids) == []
    assert [tier.knows(record.key) for record in records] == [False, False, False, True, True]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_is_left_alone_for_a_while(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tier, (record,) = written(desk, 1)
    sound, failing = files.write_all, [True]

    def write_all(descriptor, piece) -> None:
        if failing[0]:
            os.write(descriptor, bytes(piece)[:10])
            raise OSError(number, os.strerror(number))
        sound(descriptor, piece)

    monkeypatch.setattr(files, "write_all", write_all)
    with capture_logs() as lines:
        for _ in range(3):
            assert all(tier.write(each) for each in RECORDS)
            assert tier.drain()
            assert tier.reading.paused
            assert not tier.write(RECORDS[0])
            assert not tier.knows(RECORDS[0].key)
            desk.clock.advance(61)
        assert (tier.reading.failures, tier.reading.writes, tier.reading.queued_bytes) == (3, 1, 0)
        assert [path.name for path in desk.folder.rglob("*.new")] == []
        assert plain(desk.read(tier, record.ids)[0]) == plain(record)
        failing[0] = False
        desk.write(tier, RECORDS)
    assert [line["log_level"] for line in lines] == ["warning", "info"]
    assert len(desk.read(tier, IDS)) == 4
    assert tier.reading.bad == 0


def test_bad_files_are_told_of_once_in_a_while(desk: Desk) -> None:
    tier, records = written(desk, 6)
    damage_each(desk, records, [b"bad"] * 6)
    with capture_logs() as lines:
        for record in records:
            desk.clock.advance(31)
            desk.read(tier, record.ids)
    assert [line["bad_files"] for line in lines] == [1, 3, 5]


@pytest.mark.parametrize("everything", [True, False])
def test_a_folder_that_is_removed_is_made_again(desk: Desk, everything: bool) -> None:
    tier, records = written(desk, 3)
    shutil.rmtree(desk.folder if everything else desk.file_of(records[0]).parent.parent)
    desk.write(tier, RECORDS)
    assert (tier.reading.blocks, tier.reading.failures) == (4, 0)
    assert not tier.knows(records[0].key)
    assert len(desk.read(tier, IDS)) == 4
    added, gone = tier.take_news()
    assert (len(added), gone) == (3, [])
    # And it is locked again, and the day's count is there again.
    assert desk.tier().reading.paused
    assert (desk.folder / "written").exists()


def test_a_folder_that_is_removed_is_missed_by_a_read(desk: Desk) -> None:
    tier, records = written(desk, 3)
    shutil.rmtree(desk.folder)
    assert desk.read(tier, records[0].ids) == []
    assert (tier.reading.blocks, tier.reading.bytes, tier.keys()) == (0, 0, [])
    assert desk.folder.exists()


def test_what_a_crash_left_is_removed(desk: Desk) -> None:
    tier, (record,) = written(desk, 1)
    tier.close()
    path = desk.file_of(record)
    leftovers = [path.with_suffix(".new"), desk.folder / ("0" * 32) / "00" / f"{'0' * 32}.new"]
    leftovers[1].parent.mkdir(parents=True)
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    (path.parent / "somebody's").touch()
    again = desk.tier()
    assert [leftover.exists() for leftover in leftovers] == [False, False]
    assert (path.parent / "somebody's").exists()
    assert len(desk.read(again, record.ids)) == 1


def test_a_process_that_is_killed_while_it_writes_leaves_whole_blocks_only(desk: Desk) -> None:
    command = [sys.executable, "-c", ENDLESS, str(desk.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT_FOLDER) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGKILL)
    tier = desk.tier()
    assert tier.reading.blocks >= 20
    assert tier.reading.blocks == len([path for path in desk.folder.rglob("*") if path.suffix])
    assert all(desk.read(tier, prompt(number, 64)) for number in range(20))
    assert tier.reading.bad == 0


def test_a_second_tier_on_a_folder_does_nothing_until_the_first_has_gone(desk: Desk) -> None:
    first, (record,) = written(desk, 1)
    with capture_logs() as lines:
        second = desk.tier()
        assert second.find(ROOT, record.ids) == []
        assert not second.write(RECORDS[0])
        assert second.reading.paused
        desk.clock.advance(61)
        assert second.drain()
        assert second.reading.paused
    assert [line["event"] for line in lines] == [
        "another process has the folder of prefixes; nothing is kept on disk meanwhile"
    ]
    first.close()
    desk.clock.advance(61)
    assert second.drain()
    assert not second.reading.paused
    assert len(desk.read(second, record.ids)) == 1


def test_a_folder_that_cannot_be_made_costs_nothing_but_the_tier(desk: Desk) -> None:
    desk.folder.write_text("a file is in its place")
    tier = desk.tier()
    assert not tier.write(RECORDS[0])
    assert (tier.find(ROOT, IDS), tier.reading.paused) == ([], True)
    desk.folder.unlink()
    desk.clock.advance(61)
    assert tier.drain()
    desk.write(tier, RECORDS)


def test_another_users_folder_is_not_touched(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.folder.mkdir(mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert desk.tier().reading.paused
    assert list(desk.folder.iterdir()) == []


def test_bytes_are_on_disk_before_their_name_is(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    happened = []
    rename = type(desk.folder).replace

    def renamed(path, target):
        happened.append(f"rename {target.suffix}")
        return rename(path, target)

    def synced(descriptor: int) -> None:
        whole = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        happened.append("file" if whole == os.O_WRONLY else "folder")

    tier = desk.tier()
    desk.write(tier, RECORDS[:1])
    monkeypatch.setattr(type(desk.folder), "replace", renamed)
    monkeypatch.setattr(files, "sync", synced)
    desk.write(tier, RECORDS[1:2])
    assert happened == ["file", "rename .kv", "folder"]


def test_the_fingerprint_is_not_in_the_names(desk: Desk) -> None:
    desk.write(desk.tier(), RECORDS)
    assert all(FINGERPRINT not in str(path) for path in desk.folder.rglob("*"))
