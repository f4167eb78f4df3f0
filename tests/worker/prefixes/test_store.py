"""What is kept of prompts: who finds what, and what is told of it."""

import pytest

from shared import prefix_chain
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
from worker.prefixes.blocks import Run, joined, runs_of


@pytest.fixture
def store():
    return new_store()


# --- who finds what -----------------------------------------------------------------------------------------


def test_a_prompt_that_came_before_is_found_but_for_its_last_token(store):
    ids = prompt(1, 2)
    put(store, ids)
    found = store.match(ids, "", len(ids) - 1)
    assert found.tokens == 127
    assert [block.end for block in found.blocks] == [64, 128]
    assert read(runs_of(found.blocks, found.tokens)) == trace(ids)[:127]


def test_a_prompt_without_its_first_token_finds_nothing(store):
    ids = prompt(1, 2)
    put(store, ids)
    assert tokens_in(store, ids[1:]) == 0
    assert tokens_in(store, ids[64:]) == 0, "a block in the middle is no beginning"


def test_an_edit_in_the_middle_leaves_what_is_before_it(store):
    ids = prompt(1, 2, 3)
    put(store, ids)
    edited = (*ids[:100], 7, *ids[101:])
    assert tokens_in(store, edited) == 100
    assert store.held(edited, "") == 64
    put(store, edited, start=64)
    assert tokens_in(store, edited) == 192
    assert tokens_in(store, ids) == 192


def test_of_many_followers_the_one_most_alike_is_used(store):
    head = prompt(1)
    put(store, head)
    for number in range(50):
        put(store, (*head, 9, number % 5, *range(number, 62 + number)), start=64)
    assert tokens_in(store, (*head, 9, 3, *range(28, 40), 0)) == 64 + 2 + 12
    assert tokens_in(store, (*head, 9, 3, *range(28, 40), 9999)) == 64 + 2 + 12
    assert tokens_in(store, (*head, 9, 3, 0)) == 66
    assert tokens_in(store, (*head, 9, 8)) == 65
    assert tokens_in(store, (*head, 8)) == 64


def test_salts_have_nothing_in_common(store):
    ids = prompt(1, 2)
    put(store, ids, "one")
    assert tokens_in(store, ids, "one") == 128
    for salt in ("", "other"):
        assert tokens_in(store, ids, salt) == 0
        assert store.held(ids, salt) == 0
        assert store.blocks_of(ids, salt, 128) == ()
        store.snapshot(ids, salt, 128, None)
    put(store, ids, "other", start=64)
    assert store.blocks == 2, "its beginning isn't there"


def test_a_key_that_two_prompts_have_in_common_gives_none_of_them_the_others(monkeypatch, store):
    monkeypatch.setattr(prefix_chain, "next_key", lambda *_: bytes(16))
    first, second = prompt(1), prompt(2, 3)
    put(store, first)
    put(store, second)
    put(store, (*first, *second))
    put(store, first, "salt")
    assert tokens_in(store, first) == 64
    assert tokens_in(store, second) == store.held(second, "") == 0
    assert tokens_in(store, (*first, *second)) == 64
    assert tokens_in(store, first, "salt") == 0
    for others in (first, second):
        put(store, (*first, *others, 5, 5))
        put(store, (*others, *others, 5, 5))
    put(store, (*prompt(2), 5, 5))
    assert tokens_in(store, (*first, 5, 5)) == 64
    assert (store.blocks, len(store.keys()), len(store.slabs)) == (1, 1, 1)


def test_roots_that_are_named_alike_are_still_told_apart():
    store = prefix_store.PrefixStore(lambda _: bytes(16), Mover(), 1 << 30)
    ids = (*prompt(1), 5, 6)
    put(store, ids, "one")
    assert tokens_in(store, ids, "other") == 0
    put(store, ids[:30], "other")
    assert tokens_in(store, ids, "other") == 30


def test_neighbours_in_one_slab_are_read_in_one_piece():
    one, other = FalseSlab((0,) * 9), FalseSlab((0,) * 9)
    runs = [Run(one, 0, 2), Run(one, 2, 3), Run(one, 6, 1), Run(other, 7, 1), Run(other, 8, 1)]
    assert joined(runs) == [Run(one, 0, 5), Run(one, 6, 1), Run(other, 7, 2)]


def test_what_is_held_already_stays_where_it_is(store):
    first = put(store, prompt(1, 2))
    second = put(store, prompt(1, 2, 3))
    assert [
        (run.slab, run.start, run.count) for run in runs_of(store.blocks_of(prompt(1, 2, 3), "", 192), 192)
    ] == [
        (first, 0, 128),
        (second, 128, 64),
    ]
    put(store, prompt(1, 2, 3))
    assert store.slabs == [first, second]


# --- blocks in part -----------------------------------------------------------------------------------------


def test_a_longer_block_takes_a_parts_place(store):
    head = prompt(1)
    put(store, head[:20])
    put(store, head[:40])
    assert store.blocks == 1
    put(store, head[:30])
    assert (store.blocks, tokens_in(store, head)) == (1, 40)
    put(store, head)
    assert (store.blocks, len(store.slabs), store.evictions) == (1, 1, 0)
    put(store, head[:50])
    assert (store.blocks, len(store.slabs)) == (1, 1)


def test_a_part_that_rows_read_stays_beside_the_longer_one(store):
    put(store, prompt(1)[:20])
    lease = store.lease(store.match(prompt(1), "", 64).blocks)
    put(store, prompt(1))
    assert read(lease.runs()) == trace(prompt(1)[:20])
    assert store.blocks == 2
    lease.release()
    assert tokens_in(store, prompt(1)) == 64


def test_behind_one_place_four_parts_are_kept_those_used_last(store):
    head = prompt(1)
    put(store, head)
    for number in range(4):
        put(store, (*head, number, 9), start=64)
    assert tokens_in(store, (*head, 0)) == 65
    put(store, (*head, 4, 9), start=64)
    assert (store.blocks, store.evictions) == (5, 1)
    assert [tokens_in(store, (*head, number)) for number in range(5)] == [65, 64, 65, 65, 65]


def test_parts_that_rows_read_count_but_stay_and_so_does_who_comes_last(store):
    leases = []
    for number in range(4):
        put(store, (number, 9))
        leases.append(store.lease(store.match((number, 9), "", 2).blocks))
    put(store, (4, 9))
    assert [tokens_in(store, (number, 9)) for number in range(5)] == [2] * 5
    leases.pop(2).release()
    put(store, (5, 9))
    assert [tokens_in(store, (number, 9)) for number in range(6)] == [2, 2, 0, 2, 0, 2]


def test_a_part_that_gives_way_takes_its_state_along(store):
    for number in range(6):
        put(store, (number, 9), cuttable=False)
        mark(store, (number, 9), nbytes=100)
    assert (store.blocks, store.kept_bytes) == (4, 4 * (2 * TOKEN_BYTES + 100))
    assert [tokens_in(store, (number, 9)) for number in range(6)] == [0, 0, 2, 2, 2, 2]


# --- states that can't be cut -------------------------------------------------------------------------------


def test_what_cannot_be_cut_is_used_where_its_state_was_kept(store):
    ids = prompt(1, 2, 3)
    put(store, ids[:150], cuttable=False)
    assert tokens_in(store, ids) == 0
    assert store.held(ids, "") == 128, "it's there all the same"
    early = mark(store, ids[:64])
    late = mark(store, ids[:150])
    assert store.match(ids, "", 192).snapshot is late
    assert store.match(ids, "", 149).snapshot is early
    assert store.match(ids, "", 63).tokens == 0
    assert [block.end for block in store.match(ids, "", 192).blocks] == [64, 128, 150]


def test_a_state_in_the_middle_of_a_block_outlives_the_longer_block(store):
    ids = prompt(1, 2)
    put(store, ids[:30], cuttable=False)
    state = mark(store, ids[:30])
    put(store, ids[:20], cuttable=False)
    put(store, ids, cuttable=False)
    mark(store, ids)
    assert store.blocks == 3, "the part without a state gave way"
    found = store.match((*ids[:40], 7), "", 41)
    assert (found.tokens, found.snapshot) == (30, state)


@pytest.mark.parametrize("lengths", [(20, 30), (30, 20)])
def test_of_several_states_in_a_block_the_last_that_fits_is_used(store, lengths):
    ids = prompt(1)
    put(store, ids[:30], cuttable=False)
    mark(store, ids[:30])
    for length in lengths:
        put(store, ids[:length], cuttable=False)
        mark(store, ids[:length])
    assert [tokens_in(store, ids[:length]) for length in (19, 29, 64)] == [0, 20, 30]
    assert tokens_in(store, ids) == 30


def test_a_state_replaces_the_one_before_it_and_needs_its_block(store):
    ids = prompt(1)
    mark(store, ids)
    put(store, ids)
    mark(store, ids, nbytes=1000)
    second = mark(store, ids, nbytes=10)
    mark(store, ids[:30])
    mark(store, (*ids, *ids))
    assert store.kept_bytes == BLOCK_BYTES + 10
    assert store.snapshots == [second]


def test_where_both_lead_as_far_no_state_is_needed(store):
    put(store, prompt(1))
    mark(store, prompt(1))
    assert store.match(prompt(1), "", 64).snapshot is None


def test_what_can_be_cut_is_used_in_front_of_what_cannot(store):
    ids = prompt(1, 2)
    put(store, ids[:94])
    put(store, ids, start=64, cuttable=False)
    assert store.blocks == 3, "a part that can be cut is more use than a block that can't"
    assert tokens_in(store, ids) == 94


# --- what is told -------------------------------------------------------------------------------------------


def test_what_came_and_went_between_two_tellings_is_no_news(store):
    first, second = (prefix_chain.keys_of(store.root(""), prompt(number)) for number in (1, 2))
    put(store, prompt(1)[:40])
    put(store, prompt(1))
    assert store.take_news() == (first, [])
    put(store, prompt(2))
    store.trim(0)
    store.trim(1 << 30)
    assert store.take_news() == ([], first)
    put(store, prompt(1))
    store.take_news()
    store.trim(0)
    put(store, prompt(1))
    assert store.take_news() == ([], [])
    put(store, prompt(2))
    assert store.take_news() == (second, [])
    assert store.keys() == first + second
