"""Which responses are kept: bounds of bytes, entries and time; shares of keys; turns that are shared."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from proxy.response_store import ENTRY_BYTES, Kept, KeptItem, ResponseStore, Turn

ROOMY = 1 << 20


def turn(name, size=10):
    return Turn((KeptItem(f"{name}-in", b"i" * size),), (KeptItem(f"{name}-out", b"o" * size),))


def kept(name, *turns, at=0.0, size=10):
    return Kept(name, b"b" * size, (*turns, turn(name)), at)


def store(bytes_max=ROOMY, lifetime_s=100.0, entries_max=100):
    return ResponseStore(bytes_max, lifetime_s, entries_max)


def test_a_response_is_found_by_the_key_that_kept_it_only():
    here = store()
    response = kept("r1")
    assert here.keep("k1", response)
    assert here.find("k1", "r1", 1) is response
    assert here.find("k2", "r1", 1) is None
    assert here.item("k1", "r1-out", 1) == b"o" * 10
    assert here.item("k2", "r1-out", 1) is None
    assert not here.drop("k2", "r1")
    assert here.drop("k1", "r1")
    assert here.find("k1", "r1", 1) is None
    assert here.item("k1", "r1-out", 1) is None
    assert here.held_bytes == 0


def test_a_response_is_made_from_all_before_its_own_answer():
    response = kept("r2", turn("r1"))
    assert [item.id for item in response.inputs] == ["r1-in", "r1-out", "r2-in"]
    assert [item.id for item in response.items] == ["r1-in", "r1-out", "r2-in", "r2-out"]


def test_shared_turns_are_held_once_and_stay_with_whoever_needs_them():
    here = store()
    first = kept("r1")
    here.keep("k", first)
    alone = here.held_bytes
    here.keep("k", kept("r2", *first.turns))
    both = here.held_bytes
    assert both - alone < alone + 20
    here.drop("k", "r1")
    assert [item.id for item in here.find("k", "r2", 0).items][:2] == ["r1-in", "r1-out"]
    assert here.item("k", "r1-out", 0) is not None
    here.drop("k", "r2")
    assert here.held_bytes == 0


@pytest.mark.parametrize(("dropped", "left", "item"), [("r1", "r2", b"new"), ("r2", "r1", b"old")])
def test_an_item_that_came_twice_stays_while_one_has_it(dropped, left, item):
    here = store()
    here.keep("k", Kept("r1", b"", (Turn((KeptItem("x", b"old"), KeptItem("x", b"old")), ()),), 0))
    here.keep("k", Kept("r2", b"", (Turn((KeptItem("x", b"new"),), ()),), 0))
    assert here.item("k", "x", 0) == b"new"
    here.drop("k", dropped)
    assert here.item("k", "x", 0) == item
    here.drop("k", left)
    assert here.item("k", "x", 0) is None


def test_responses_end_with_their_time():
    here = store(lifetime_s=100)
    here.keep("k", kept("r1", at=0))
    here.keep("k", kept("r2", at=50))
    assert here.find("k", "r1", 99) is not None
    assert here.find("k", "r1", 100) is None
    assert here.item("k", "r1-in", 100) is None
    assert here.find("k", "r2", 100) is not None


def test_the_oldest_goes_when_there_is_no_room():
    here = store(entries_max=2)
    for name in ("r1", "r2", "r3"):
        assert here.keep("", kept(name))
    assert here.find("", "r1", 0) is None
    assert len(here) == 2


def test_a_key_has_a_quarter_and_takes_nothing_from_others():
    here = store(entries_max=8)
    here.keep("other", kept("mine"))
    for number in range(5):
        here.keep("greedy", kept(f"r{number}"))
    assert [here.find("greedy", f"r{number}", 0) is not None for number in range(5)] == [False] * 3 + [
        True
    ] * 2
    assert here.find("other", "mine", 0) is not None


def test_what_is_longer_than_all_room_is_not_kept():
    assert not store(bytes_max=4 * ENTRY_BYTES).keep("", kept("r1", size=4 * ENTRY_BYTES))
    assert not store(bytes_max=0).keep("", kept("r1"))


OPERATIONS = some.lists(
    some.one_of(
        some.tuples(
            some.just("keep"), some.sampled_from(["", "a", "b"]), some.integers(0, 8), some.integers(0, 4000)
        ),
        some.tuples(some.just("drop"), some.sampled_from(["", "a", "b"]), some.integers(0, 30), some.just(0)),
        some.tuples(some.just("wait"), some.just(""), some.integers(0, 40), some.just(0)),
    ),
    max_size=30,
)


@given(OPERATIONS)
def test_bytes_are_those_of_what_is_there_and_within_their_bounds(operations):
    here, now, all_turns, made = store(bytes_max=20_000, entries_max=6), 0.0, {}, []
    for kind, key, number, size in operations:
        if kind == "wait":
            now += number
        elif kind == "drop":
            here.drop(key, f"r{number}")
        else:
            # It goes on from an earlier one of the same key's, if there are so many.
            mine = all_turns.setdefault(key, [()])
            past = mine[number % len(mine)]
            response = kept(f"r{len(made)}", *past, at=now, size=size)
            made.append((key, response.id))
            mine.append(response.turns)
            here.keep(key, response)
        there = {(key, id_): here.find(key, id_, now) for key, id_ in made}
        there = {place: response for place, response in there.items() if response is not None}
        turns = {turn for response in there.values() for turn in response.turns}
        total = sum(response.own_bytes for response in there.values()) + sum(
            turn.held_bytes for turn in turns
        )
        assert here.held_bytes == total <= 20_000
        assert len(here) == len(there) <= 6
        assert all(now - response.stored_s < 100 for response in there.values())
        for (owner, _), response in there.items():
            assert all(here.item(owner, item.id, now) is not None for item in response.items)
