"""The disk tier: what was written is found and read, within its bounds, across restarts."""

import random
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.prefix_chain import next_key, root_key
from tests.worker.prefix_disk.small_blocks import DAY_S, ROOT, Desk, chain, plain, prompt, record_of
from worker.prefix_disk import files
from worker.prefix_disk.records import Record

IDS = prompt(1, 200)
RECORDS = chain(IDS)


@pytest.fixture(autouse=True)
def disk_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether bytes reach the platters can't be tested here; that they are asked to is, in another file."""
    monkeypatch.setattr(files, "sync", lambda _descriptor: None)


def test_what_was_written_is_read(desk: Desk) -> None:
    tier = desk.tier()
    desk.write(tier, RECORDS)
    assert [plain(record) for record in desk.read(tier, IDS)] == [plain(record) for record in RECORDS]
    assert all(tier.knows(record.key) for record in RECORDS)
    told = tier.reading
    assert (told.writes, told.reads, told.bad, told.blocks) == (4, 4, 0, 4)
    assert told.bytes == sum(path.stat().st_size for path in desk.files())


def test_what_was_written_is_read_in_the_next_life(desk: Desk) -> None:
    first = desk.tier()
    desk.write(first, RECORDS)
    first.close()
    tier = desk.tier()
    assert [plain(record) for record in desk.read(tier, IDS)] == [plain(record) for record in RECORDS]
    assert tier.reading.bytes == sum(path.stat().st_size for path in desk.files())
    assert (sorted(tier.keys()), tier.take_news()[1]) == (sorted(record.key for record in RECORDS[:3]), [])


def test_what_waits_is_written_before_the_end(desk: Desk) -> None:
    tier = desk.tier()
    assert all(tier.write(record) for record in RECORDS)
    tier.close()
    assert len(desk.files()) == 4


def test_after_the_end_nothing_is_known_and_nothing_fails(desk: Desk) -> None:
    tier = desk.tier()
    desk.write(tier, RECORDS)
    entries = tier.find(ROOT, IDS)
    tier.close()
    tier.close()
    assert not tier.knows(RECORDS[0].key)
    assert tier.find(ROOT, IDS) == []
    assert not tier.write(RECORDS[0])
    reading = tier.read(entries)
    assert reading.done
    assert reading.records == []
    assert tier.drain()


def test_blocks_are_taken_before_the_folder_is(desk: Desk) -> None:
    tier = desk.tier(started=False)
    assert all(tier.write(record) for record in RECORDS)
    assert tier.knows(RECORDS[3].key)
    assert tier.find(ROOT, IDS) == []
    assert tier.read([]).done
    assert not desk.folder.exists()
    tier.start()
    assert tier.drain()
    assert len(desk.read(tier, IDS)) == 4


def test_a_tier_that_never_started_can_be_closed(desk: Desk) -> None:
    tier = desk.tier(started=False)
    tier.close()
    assert not tier.write(RECORDS[0])
    assert not desk.folder.exists()


def test_a_snapshot_that_comes_later_takes_the_place_of_a_block_without(desk: Desk) -> None:
    tier = desk.tier()
    without, with_snapshot = record_of(ROOT, IDS[:64]), record_of(ROOT, IDS[:64], snapshot=True)
    desk.write(tier, [without, without, with_snapshot, with_snapshot, without])
    assert tier.reading.blocks == 1
    (entry,) = tier.find(ROOT, IDS[:64])
    assert entry.has_snapshot
    assert plain(desk.read(tier, IDS[:64])[0]) == plain(with_snapshot)
    assert tier.reading.bytes == desk.file_of(without).stat().st_size
    assert tier.take_news() == ([without.key], [])


def test_files_and_folders_are_for_their_owner_only(desk: Desk) -> None:
    desk.folder.mkdir(mode=0o755)
    tier = desk.tier()
    desk.write(tier, RECORDS)
    paths = [desk.folder, *desk.folder.rglob("*")]
    assert {path.name for path in paths} >= {"lock", "written", desk.file_of(RECORDS[0]).name}
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_oldest_blocks_make_room(desk: Desk) -> None:
    tier = desk.tier()
    desk.write(tier, chain(prompt(1, 64)))
    size = tier.reading.bytes
    tier.close()
    small = desk.tier(bytes_max=4 * size + size // 2)
    for number in range(2, 7):
        desk.write(small, chain(prompt(number, 64)))
        assert desk.read(small, prompt(1, 64))
    assert [number for number in range(7) if small.find(ROOT, prompt(number, 64))] == [1, 4, 5, 6]
    assert small.reading.evictions == 2
    assert small.reading.bytes == sum(path.stat().st_size for path in desk.files()) <= 4.5 * size


def test_what_was_read_last_stays_longest_also_after_a_restart(desk: Desk) -> None:
    first = desk.tier()
    for number in range(8):
        desk.write(first, chain(prompt(number, 64)))
    size = first.reading.bytes // 8
    for number in (0, 2, 4):
        assert desk.read(first, prompt(number, 64))
    first.close()
    tier = desk.tier(bytes_max=4 * size + size // 2)
    assert [number for number in range(8) if tier.find(ROOT, prompt(number, 64))] == [0, 2, 4, 7]
    assert len(desk.files()) == 4


def test_a_chain_that_is_longer_than_the_disk_keeps_its_beginning(desk: Desk) -> None:
    ids = prompt(1, 640)
    tier = desk.tier(blocks_max=4)
    desk.write(tier, chain(ids))
    assert len(desk.read(tier, ids)) == 4
    assert tier.reading.evictions == 0
    assert len(desk.files()) == 4


def test_a_block_does_not_make_room_by_the_one_it_is_built_on(desk: Desk) -> None:
    tier = desk.tier(blocks_max=2)
    for record in (RECORDS[0], record_of(ROOT, prompt(9, 64)), RECORDS[1]):
        desk.write(tier, [record])
    assert len(desk.read(tier, IDS)) == 2


def test_a_file_of_a_clock_that_was_ahead_does_not_stay_for_ever(desk: Desk) -> None:
    desk.wall_s += 400 * DAY_S
    ahead = desk.tier()
    desk.write(ahead, chain(prompt(1, 64)))
    ahead.close()
    desk.wall_s -= 400 * DAY_S
    tier = desk.tier(blocks_max=2)
    for number in (2, 3):
        desk.write(tier, chain(prompt(number, 64)))
    assert [number for number in (1, 2, 3) if tier.find(ROOT, prompt(number, 64))] == [2, 3]


def test_what_is_built_on_a_block_that_was_refused_is_refused_until_that_one_is_taken(desk: Desk) -> None:
    tier = desk.tier(queue_bytes_max=300)
    large = record_of(ROOT, IDS[:64], nbytes=500)
    behind = chain(IDS)[1]
    assert not tier.write(large)
    assert not tier.write(behind)
    desk.write(tier, RECORDS[:1])
    desk.write(tier, [behind])
    assert tier.reading.blocks == 2
    # Nor does it turn away what is built on a block whose snapshot alone wasn't taken.
    assert not tier.write(record_of(ROOT, IDS[:64], snapshot=True, nbytes=500))
    desk.write(tier, RECORDS[2:3])


def test_no_more_blocks_are_known_than_may_be(desk: Desk) -> None:
    first = desk.tier()
    for number in range(5):
        desk.write(first, chain(prompt(number, 64)))
    first.close()
    tier = desk.tier(blocks_max=3)
    assert tier.reading.blocks == len(desk.files()) == 3
    desk.write(tier, chain(prompt(9, 64)))
    assert tier.reading.blocks == len(desk.files()) == 3
    assert tier.find(ROOT, prompt(9, 64))


def test_other_models_files_are_never_read_and_go_first(desk: Desk) -> None:
    desk.wall_s = 1.0
    first = desk.tier("an old model")
    desk.write(first, chain(prompt(1, 64)))
    first.close()
    desk.wall_s += 1000
    second = desk.tier("a new model")
    desk.write(second, chain(prompt(1, 64)))
    size = second.reading.bytes // 2
    second.close()
    desk.wall_s += 1000
    tier = desk.tier(bytes_max=3 * size + size // 2)
    assert tier.reading.bytes == 2 * size
    assert tier.find(ROOT, prompt(1, 64)) == []
    desk.write(tier, chain(prompt(1, 128)))
    assert (tier.reading.bytes, tier.reading.evictions) == (3 * size, 0)
    tier.close()
    assert desk.tier("a new model").find(ROOT, prompt(1, 64))
    assert not desk.tier("an old model").find(ROOT, prompt(1, 64))


def test_what_is_larger_than_the_disk_or_the_queue_is_refused(desk: Desk) -> None:
    tier = desk.tier(bytes_max=1000, queue_bytes_max=500)
    assert not tier.write(record_of(ROOT, IDS[:64], nbytes=300))
    assert not tier.write(record_of(ROOT, IDS[:64], nbytes=2000))
    assert tier.write(record_of(ROOT, IDS[:64], nbytes=100))
    assert tier.drain()
    assert tier.reading.blocks == 1


def test_a_day_has_its_bytes_and_the_next_one_as_well(desk: Desk) -> None:
    tier = desk.tier(a_day=10_000)
    for number in range(40):
        tier.write(record_of(ROOT, prompt(number, 64), nbytes=500))
        assert tier.drain()
    assert tier.reading.writes == 7
    assert tier.reading.bytes <= 10_000 < tier.reading.bytes * 8 / 7
    assert not tier.write(record_of(ROOT, prompt(99, 64), nbytes=5000))
    tier.close()
    again = desk.tier(a_day=10_000)
    assert again.reading.bytes > 0
    assert not again.write(record_of(ROOT, prompt(99, 64), nbytes=1500))
    desk.wall_s += DAY_S
    desk.write(again, [record_of(ROOT, prompt(99, 64), nbytes=1500)])
    assert again.find(ROOT, prompt(99, 64))


def test_a_days_bytes_are_those_of_files_not_of_arrays(desk: Desk) -> None:
    tier = desk.tier(a_day=5000, started=False)
    taken = [tier.write(record_of(ROOT, prompt(number, 64))) for number in range(30)]
    assert taken == [True] * 26 + [False] * 4  # 192 bytes each
    tier.start()
    assert tier.drain()
    written = sum(path.stat().st_size for path in desk.files())
    assert 0 < written <= 5000


def test_a_count_that_is_damaged_costs_its_day(desk: Desk) -> None:
    first = desk.tier()
    desk.write(first, RECORDS)
    first.close()
    (desk.folder / "written").write_bytes(b"19000 12 0123456789abcdef")
    tier = desk.tier()
    assert not tier.write(record_of(ROOT, prompt(9, 64)))
    assert len(desk.read(tier, IDS)) == 4
    desk.wall_s += DAY_S
    desk.write(tier, [record_of(ROOT, prompt(9, 64))])
    tier.close()
    assert desk.tier().write(record_of(ROOT, prompt(10, 64)))


def test_a_reading_brings_no_more_bytes_than_it_may(desk: Desk) -> None:
    tier = desk.tier()
    desk.write(tier, RECORDS)
    size = desk.file_of(RECORDS[0]).stat().st_size
    tier.close()
    small = desk.tier(reading_bytes_max=2 * size + size // 2)
    assert [record.key for record in desk.read(small, IDS)] == [record.key for record in RECORDS[:2]]


def test_a_reading_that_nobody_waits_for_is_done_all_the_same(desk: Desk) -> None:
    tier = desk.tier()
    desk.write(tier, RECORDS)
    reading = tier.read(tier.find(ROOT, IDS))
    reading.cancel()
    assert reading.wait(20)
    assert tier.read([]).wait(20)


def test_callers_of_different_salts_find_nothing_of_each_other(desk: Desk) -> None:
    private = root_key("a model", 0, salt="private")
    tier = desk.tier()
    desk.write(tier, [*RECORDS, *chain(IDS, private)])
    assert [record.parent for record in desk.read(tier, IDS, private)][:1] == [private]
    assert [record.parent for record in desk.read(tier, IDS)][:1] == [ROOT]
    assert desk.read(tier, IDS, root_key("a model", 0, salt="a third")) == []


def test_two_prompts_with_one_key_never_get_each_others_block(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("records", "index", "block_file"):
        monkeypatch.setattr(
            f"worker.prefix_disk.{module}.next_key", lambda parent, ids: next_key(parent, ids[:1])
        )
    mine, others = IDS[:64], [*IDS[:63], 7]
    key = next_key(ROOT, mine[:1])
    tier = desk.tier()
    desk.write(tier, [Record(key, ROOT, tuple(others), True, RECORDS[0].arrays, ())])
    assert [entry.key for entry in tier.find(ROOT, mine)] == [key]
    assert [record.ids for record in desk.read(tier, others)] == [tuple(others)]
    assert desk.read(tier, mine) == []


_branches = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(
    lambda names: [token for name in names for token in [ord(name)] * 64]
)


@given(st.lists(st.tuples(_branches, st.integers(0, 63)), min_size=1, max_size=6), st.randoms())
@settings(max_examples=15)
def test_no_other_record_is_served_than_the_one_asked_for(
    tmp_path_factory, prompts, luck: random.Random
) -> None:
    """Whatever was written, and whichever files took each other's places or lost a bit."""
    desk = Desk(tmp_path_factory.mktemp("law"))
    try:
        first = desk.tier()
        asked = [whole[: len(whole) - cut] for whole, cut in prompts]
        for ids in asked:
            desk.write(first, chain(ids))
        for path in desk.files():
            fate = luck.choice(["sound", "sound", "sound", "another", "flipped"])
            if fate == "another":
                path.write_bytes(luck.choice(desk.files()).read_bytes())
            elif fate == "flipped":
                data = bytearray(path.read_bytes())
                data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
                path.write_bytes(data)
        again = luck.choice([True, False])
        if again:
            first.close()
        tier = desk.tier() if again else first
        for ids in asked:
            parent, at = ROOT, 0
            for record in desk.read(tier, ids):
                block = ids[at : at + len(record.ids)]
                assert plain(record) == plain(record_of(parent, block, snapshot=len(block) < 64))
                parent, at = record.key, at + len(block)
    finally:
        desk.close()
