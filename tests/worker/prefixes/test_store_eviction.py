"""What is kept of prompts: what is given up for whom, who is spared, and what that costs."""

import pytest

from shared import prefix_chain
from shared.limits import PREFIX_BLOCKS_MAX
from tests.worker.prefixes.false_slabs import (
    BLOCK_BYTES,
    TOKEN_BYTES,
    FalseSlab,
    Mover,
    mark,
    new_store,
    prompt,
    put,
    read,
    tokens_in,
    trace,
)
from worker.prefixes import store as prefix_store


@pytest.fixture
def mover():
    return Mover()


@pytest.fixture
def store(mover):
    return new_store(mover=mover)


def test_what_was_used_least_recently_goes_first_and_ends_before_beginnings(store):
    put(store, prompt(1, 2, 3))
    for number in (4, 5):
        put(store, prompt(1, number))
    tokens_in(store, prompt(1, 2))
    gone = []
    for kept in range(4, -1, -1):
        before = set(store.keys())
        store.trim(kept * BLOCK_BYTES)
        gone += before - set(store.keys())
    names = {
        prefix_chain.keys_of(store.root(""), prompt(*numbers))[-1]: numbers
        for numbers in [(1,), (1, 2), (1, 2, 3), (1, 4), (1, 5)]
    }
    assert [names[key] for key in gone] == [(1, 2, 3), (1, 4), (1, 5), (1, 2), (1,)]
    assert store.evictions == 5


def test_what_rows_read_is_never_given_up_and_moves_with_its_lease(store, mover):
    put(store, prompt(1, 2, 3, 4, 5))
    lease = store.lease(store.blocks_of(prompt(1, 2, 3), "", 192))
    other = store.lease(lease.blocks[:2])
    store.trim(0)
    assert (store.kept_bytes, store.shared_bytes, store.blocks) == (0, 3 * BLOCK_BYTES, 3)
    assert mover.moves == [(192, 320)]
    assert read(lease.runs()) == trace(prompt(1, 2, 3))
    lease.release()
    assert (store.kept_bytes, store.shared_bytes) == (BLOCK_BYTES, 2 * BLOCK_BYTES)
    assert read(other.runs()) == trace(prompt(1, 2))
    other.release()
    store.keep_within()
    assert (store.blocks, store.slabs) == (0, [])


def test_what_was_read_until_now_counts_as_used_now(store):
    put(store, prompt(1))
    lease = store.lease(store.blocks_of(prompt(1), "", 64))
    put(store, prompt(2))
    lease.release()
    store.trim(BLOCK_BYTES)
    assert store.keys() == prefix_chain.keys_of(store.root(""), prompt(1))


def test_a_lease_is_released_once(store):
    put(store, prompt(1))
    lease = store.lease(store.blocks_of(prompt(1), "", 64))
    lease.release()
    with pytest.raises(AssertionError, match="released already"):
        lease.release()


def test_what_is_larger_than_the_bound_keeps_its_beginning_and_can_be_leased_before(store):
    store.trim(3 * BLOCK_BYTES)
    put(store, prompt(*range(10)))
    assert store.blocks == 10, "who comes in may be leased before anything goes"
    store.keep_within()
    assert tokens_in(store, prompt(*range(10))) == 3 * 64
    assert store.kept_bytes == 3 * BLOCK_BYTES


def test_a_slab_with_few_dead_tokens_is_left_alone_and_one_with_many_is_moved_once(store, mover):
    put(store, prompt(*range(8)))
    store.trim(7 * BLOCK_BYTES)
    assert (store.blocks, store.kept_bytes) == (5, 5 * BLOCK_BYTES)
    assert mover.moves == [(5 * 64, 8 * 64)]
    put(store, prompt(*range(5), 20, 21))
    put(store, prompt(*range(5), 20, 22))
    store.trim(store.kept_bytes)
    assert len(mover.moves) == 1, "there is room for what is dead"


def test_what_is_dead_beside_what_rows_read_goes_last_however_little_it_is(store, mover):
    put(store, prompt(*range(8)))
    lease = store.lease(store.blocks_of(prompt(*range(7)), "", 7 * 64))
    put(store, prompt(9))
    store.trim(2 * BLOCK_BYTES)
    assert store.blocks == 9
    store.trim(0)
    assert (store.blocks, store.kept_bytes, mover.moves) == (7, 0, [(7 * 64, 8 * 64)])
    assert read(lease.runs()) == trace(prompt(*range(7)))


def test_clearing_leaves_what_rows_read_and_nothing_else(store):
    put(store, prompt(*range(8)))
    lease = store.lease(store.blocks_of(prompt(*range(7)), "", 7 * 64))
    store.trim(0)
    assert (store.blocks, store.kept_bytes) == (7, 0)
    assert read(lease.runs()) == trace(prompt(*range(7)))


def test_dead_tokens_make_room_before_anything_is_given_up(store, mover):
    put(store, prompt(1, 2, 3))
    put(store, prompt(1, 2, 3, 4))
    assert store.kept_bytes == 7 * BLOCK_BYTES
    store.trim(4 * BLOCK_BYTES)
    assert (store.blocks, store.evictions) == (4, 0)
    assert mover.moves == [(64, 256)]
    assert tokens_in(store, prompt(1, 2, 3, 4)) == 256


def test_an_old_state_goes_before_the_blocks_around_it(store):
    ids = prompt(1, 2)
    put(store, ids, cuttable=False)
    mark(store, prompt(1), nbytes=5000)
    late = mark(store, ids, nbytes=5000)
    put(store, prompt(3))
    store.trim(store.kept_bytes - 1)
    assert (store.snapshots, store.blocks) == ([late], 3)
    assert tokens_in(store, ids) == 128


def test_blocks_behind_the_last_state_go_with_the_one_they_led_to(store):
    ids = prompt(1, 2, 3, 4)
    put(store, ids, cuttable=False)
    early = mark(store, prompt(1))
    mark(store, ids)
    assert tokens_in(store, prompt(1)) == 64
    store.trim(store.kept_bytes - 1)
    assert store.snapshots == [early]
    assert (store.blocks, store.evictions) == (1, 3)


def test_no_more_blocks_are_kept_than_may_be_told_of(monkeypatch, store):
    assert prefix_store.PREFIX_BLOCKS_MAX == PREFIX_BLOCKS_MAX
    monkeypatch.setattr(prefix_store, "PREFIX_BLOCKS_MAX", 5)
    put(store, prompt(*range(8)))
    store.keep_within()
    assert store.blocks == 5


def test_if_a_move_fails_everything_is_still_there(store):
    def fails(_runs):
        raise MemoryError

    put(store, prompt(1, 2, 3))
    lease = store.lease(store.blocks_of(prompt(1), "", 64))
    store._homes._move = fails
    with pytest.raises(MemoryError):
        store.trim(0)
    assert read(lease.runs()) == trace(prompt(1))
    assert store.kept_bytes == 2 * BLOCK_BYTES
    store._homes._move = Mover()
    store.keep_within()
    assert (store.kept_bytes, read(lease.runs())) == (0, trace(prompt(1)))


def test_many_blocks_are_given_up_without_copying_the_rest_again_and_again(store, mover):
    """20,000 blocks, 2,000 conversations behind one beginning, trimmed in many small steps."""
    head = prompt(1)
    put(store, head)
    for number in range(2000):
        slab = FalseSlab((0,) * 640)
        ids = (*head, *(number + 2,) * 640)
        store.insert(ids, "", 64, slab, cuttable=True)
    assert store.blocks == 20_001
    looks = 0
    order = store._order

    class Counting(type(order)):
        def __iter__(self):
            nonlocal looks
            looks += 1
            return super().__iter__()

    store._order = Counting(order)
    for tenth in range(99, -1, -1):
        store.trim(store.blocks and tenth * 2000 * 10 * BLOCK_BYTES // 100)
    assert store.blocks == 0
    assert looks <= 20_001 + 200, "one look for each block that goes"
    copied = sum(tokens for tokens, _ in mover.moves)
    assert copied <= 3 * 20_000 * 64, "three bytes at most for one that is freed"


def test_a_slabs_bytes_are_shared_out_to_the_last_one(store):
    ids = prompt(1, 2)
    put(store, ids[:100], spare_bytes=7)
    leases = [store.lease(store.match(ids, "", most).blocks) for most in (64, 100)]
    assert (store.shared_bytes, store.kept_bytes) == (100 * TOKEN_BYTES + 7, 0)
    leases.pop().release()
    assert store.shared_bytes + store.kept_bytes == 100 * TOKEN_BYTES + 7
    leases.pop().release()
    assert store.shared_bytes == 0
