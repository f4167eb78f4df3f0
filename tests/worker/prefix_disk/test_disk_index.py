"""What is on disk and what goes first, against a plain list of blocks."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.prefix_chain import keys_of, next_key, root_key
from tests.worker.prefix_disk.small_blocks import ROOT, chain, prompt
from worker.prefix_disk.index import DiskIndex, Stranger
from worker.prefix_disk.records import Entry, Record


def entry_of(record: Record, nbytes: int = 100) -> Entry:
    return Entry(record.key, record.parent, record.ids, record.cuttable, bool(record.snapshot), nbytes)


def filled(index: DiskIndex, *prompts: list[int]) -> DiskIndex:
    """An index of prompts, each used later than the one before."""
    for used, ids in enumerate(prompts):
        for record in chain(ids):
            index.add(entry_of(record), float(used))
    return index


def evict(index: DiskIndex) -> bytes:
    victim = index.victim()
    assert isinstance(victim, bytes)
    index.remove(victim)
    return victim


def test_a_chain_is_found_as_far_as_it_is_there() -> None:
    ids = prompt(1, 200)
    index = filled(DiskIndex(1 << 20, 99), ids)
    assert [entry.ids for entry in index.find(ROOT, ids)] == [record.ids for record in chain(ids)]
    assert len(index.find(ROOT, ids[:199])) == 3
    assert len(index.find(ROOT, ids[:191])) == 2
    assert index.find(ROOT, ids[1:]) == []
    assert index.find(root_key("a model", 0, salt="private"), ids) == []
    index.remove(chain(ids)[1].key)
    assert len(index.find(ROOT, ids)) == 1


def test_of_several_blocks_in_part_the_longest_that_fits_is_found() -> None:
    ids = prompt(1, 64 + 60)
    index = filled(DiskIndex(1 << 20, 99), ids[: 64 + 10], ids[: 64 + 30], [*ids[: 64 + 40], 7])
    found = {tokens: index.find(ROOT, ids[: 64 + tokens])[1:] for tokens in (9, 10, 29, 30, 60)}
    assert {tokens: [len(entry.ids) for entry in entries] for tokens, entries in found.items()} == {
        9: [],
        10: [10],
        29: [10],
        30: [30],
        60: [30],
    }


def test_the_end_of_the_oldest_chain_goes_first_and_its_beginning_last() -> None:
    old, new = prompt(1, 192), prompt(2, 128)
    index = filled(DiskIndex(1 << 20, 99), old, new)
    expected = [*reversed(keys_of(ROOT, old)), *reversed(keys_of(ROOT, new))]
    assert [evict(index) for _ in expected] == expected
    assert index.victim() is None
    assert index.nbytes == 0


def test_what_was_used_since_goes_later() -> None:
    old, new = prompt(1, 64), prompt(2, 64)
    index = filled(DiskIndex(1 << 20, 99), old, new)
    assert index.victim() == chain(old)[0].key
    index.touch([chain(old)[0].key], 5.0)
    assert evict(index) == chain(new)[0].key


def test_strangers_go_before_blocks_but_only_for_their_bytes() -> None:
    index = filled(DiskIndex(1000, 3), prompt(1, 192))
    index.set_strangers([Stranger(Path("a"), 500), Stranger(Path("b"), 200)])
    assert index.nbytes == 1000
    assert not index.fits(1)
    assert index.victim(1) == Stranger(Path("a"), 500)
    index.remove_stranger()
    assert index.fits(500)
    assert not index.fits(1, 1)
    assert isinstance(index.victim(1), bytes)


def test_a_block_goes_with_all_that_is_built_on_it() -> None:
    ids = prompt(1, 192)
    branch = [*ids[:128], *prompt(2, 70)]
    index = filled(DiskIndex(1 << 20, 99), ids, branch)
    first, second, *_ = chain(ids)
    below = index.remove_tree(second.key)
    assert set(below) == {record.key for record in (*chain(ids)[2:], *chain(branch)[2:])}
    assert index.keys() == [first.key]
    assert index.victim() == first.key


def test_what_came_and_went_since_is_no_news() -> None:
    ids = prompt(1, 130)
    index = filled(DiskIndex(1 << 20, 99), ids)
    first, second, part = chain(ids)
    index.remove(part.key)
    index.remove(second.key)
    assert index.take_news() == ([first.key], [])
    index.add(entry_of(second), 9.0)
    index.remove(first.key)
    index.add(entry_of(first), 9.0)
    assert index.take_news() == ([second.key], [])
    assert index.take_news() == ([], [])


class Naive:
    """The same, by looking through everything each time."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, tuple[Record, int, float]] = {}

    def leaves(self) -> list[tuple[float, bytes]]:
        parents = {record.parent for record, _, _ in self.blocks.values()}
        return [(used, key) for key, (_, _, used) in self.blocks.items() if key not in parents]

    def find(self, root: bytes, ids: list[int]) -> list[tuple[int, ...]]:
        found, parent = [], root
        while True:
            fitting = [
                record
                for record, _, _ in self.blocks.values()
                if record.parent == parent and record.ids == tuple(ids[: len(record.ids)])
            ]
            if not fitting:
                return found
            longest = max(fitting, key=lambda record: len(record.ids))
            found.append(longest.ids)
            ids, parent = ids[len(longest.ids) :], longest.key
            if len(longest.ids) < 64:
                return found


prompts_drawn = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=3).flatmap(
    lambda blocks: st.integers(0, 3).map(
        lambda more: [each for each in blocks for _ in range(64)] + [2] * more
    )
)
events_drawn = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "find", "touch", "remove", "evict", "tree", "news"]), prompts_drawn
    ),
    max_size=40,
)


@given(events_drawn)
@settings(max_examples=150)
def test_the_index_agrees_with_a_plain_list(events: list[tuple[str, list[int]]]) -> None:
    index, naive, told = DiskIndex(1 << 20, 99), Naive(), set()
    for used, (event, ids) in enumerate(events, 1):
        last = chain(ids)[-1]
        if event == "add":
            for at, record in enumerate(chain(ids)):
                index.add(entry_of(record, nbytes=used), used + at / 10)
                naive.blocks[record.key] = (record, used, used + at / 10)
        elif event == "touch" and last.key in naive.blocks:
            index.touch([last.key], used)
            naive.blocks[last.key] = (*naive.blocks[last.key][:2], float(used))
        elif event == "remove":
            index.remove(last.key)
            naive.blocks.pop(last.key, None)
        elif event == "tree":
            index.remove_tree(last.key)
            doomed, keys = {last.key}, [last.key]
            for key in keys:
                keys += [each for each, (record, _, _) in naive.blocks.items() if record.parent == key]
                doomed.update(keys)
            naive.blocks = {key: block for key, block in naive.blocks.items() if key not in doomed}
        elif event == "evict" and (victim := index.victim()) is not None:
            assert isinstance(victim, bytes)
            oldest = min(used for used, _ in naive.leaves())
            assert (oldest, victim) in naive.leaves()
            index.remove(victim)
            del naive.blocks[victim]
        elif event == "news":
            added, gone = index.take_news()
            assert not told & set(added)
            assert told >= set(gone)
            told = (told | set(added)) - set(gone)
            assert told == set(index.keys())
        assert [entry.ids for entry in index.find(ROOT, ids)] == naive.find(ROOT, ids)
        assert index.nbytes == sum(nbytes for _, nbytes, _ in naive.blocks.values())
        assert len(index) == len(naive.blocks)
        assert set(index.keys()) == {
            key for key, (record, *_) in naive.blocks.items() if len(record.ids) == 64
        }
    assert (index.victim() is None) == (not naive.blocks)


def test_a_key_is_only_found_behind_its_own_parent() -> None:
    ids = prompt(1, 128)
    index = filled(DiskIndex(1 << 20, 99), ids)
    assert index.find(keys_of(ROOT, ids)[0], ids[64:])[0].key == next_key(keys_of(ROOT, ids)[0], ids[64:])
    assert index.find(ROOT, ids[64:]) == []
