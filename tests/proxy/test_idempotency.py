"""Bookkeeping of Idempotency-Keys: what is found, what is another request, and what goes for want of room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.idempotency import ENTRY_BYTES, IdempotencyStore, Scope, fingerprint, idempotency_key
from proxy.recording import Recording
from shared.errors import IdempotencyKeyReused, InvalidRequest

RULES = object()
DAY_S = 86400.0


def scope(key="k", key_id="", path="/a"):
    return Scope(key_id, path, key)


def store_of(entries, **changes):
    """Return a store with room for so many answers of no length."""
    return IdempotencyStore(entries * ENTRY_BYTES, DAY_S, **changes)


def begun(store, key="k", key_id="", now_s=0.0):
    return store.begin(scope(key, key_id), b"same", Recording(), now_s)


def stored(store, key="k", key_id="", now_s=0.0, rules=None):
    entry = begun(store, key, key_id, now_s)
    store.store(entry, now_s, rules=rules)
    return entry


def finds(store, key="k", key_id="", now_s=0.0, rules=RULES):
    return store.find(scope(key, key_id), b"same", rules, now_s)


# --- headers ------------------------------------------------------------------------------------------------


def test_a_request_without_the_header_has_no_key():
    assert idempotency_key(()) is None


@pytest.mark.parametrize("value", ["a", "!", "~" * 255, '"8e03978e-40d5-43dd-bc93-6894a57f9324"'])
def test_visible_ascii_is_a_key(value):
    assert idempotency_key([value]) == value


@pytest.mark.parametrize("values", [[""], ["a" * 256], ["a b"], ["é"], ["a\t"], ["a", "a"]])
def test_anything_else_is_refused_by_the_headers_name(values):
    with pytest.raises(InvalidRequest) as refused:
        idempotency_key(values)
    assert refused.value.param == "Idempotency-Key"


def test_a_fingerprint_tells_lane_and_body_apart():
    asked = [
        (None, b"body"),
        ("", b"body"),
        ("-", b"body"),
        ("batch", b"body"),
        ("batchb", b"ody"),
        (None, b"Body"),
    ]
    assert len({fingerprint(*each) for each in asked}) == len(asked)
    assert fingerprint("batch", b"body") == fingerprint("batch", b"body")


# --- finding ------------------------------------------------------------------------------------------------


def test_what_runs_is_found_and_so_is_what_is_stored():
    store = store_of(10)
    entry = begun(store)
    assert finds(store) is entry
    store.store(entry, 1.0)
    assert finds(store) is entry


@pytest.mark.parametrize("other", [scope("l"), scope(key_id="x"), scope(path="/b")])
def test_another_key_caller_or_url_is_another_scope(other):
    store = store_of(10)
    stored(store)
    assert store.find(other, b"same", RULES, 0.0) is None


def test_another_request_under_the_same_key_is_refused():
    store = store_of(10)
    begun(store)
    with pytest.raises(IdempotencyKeyReused):
        store.find(scope(), b"other", RULES, 0.0)


def test_what_failed_is_forgotten_and_may_begin_anew_with_another_body():
    store = store_of(10)
    entry = begun(store)
    store.forget(entry)
    store.forget(entry)
    assert (len(store), store.all_bytes) == (0, 0)
    assert store.find(scope(), b"other", RULES, 0.0) is None
    assert entry.recording.forgotten


def test_a_refusal_holds_while_the_rules_do():
    store = store_of(10)
    entry = stored(store, rules=RULES)
    assert finds(store) is entry
    assert finds(store, rules=object()) is None
    assert len(store) == 0


def test_an_answer_holds_under_any_rules():
    store = store_of(10)
    entry = stored(store)
    assert finds(store, rules=object()) is entry


def test_an_answer_is_kept_for_its_time_from_its_end_and_not_longer():
    store = store_of(10)
    entry = begun(store)
    store.store(entry, 1000.0)
    assert finds(store, now_s=1000.0 + DAY_S - 1) is entry
    assert finds(store, now_s=1000.0 + DAY_S) is None
    assert store.all_bytes == 0


def test_what_runs_does_not_expire():
    store = store_of(10)
    entry = begun(store)
    assert finds(store, now_s=10 * DAY_S) is entry


# --- room ---------------------------------------------------------------------------------------------------


def test_the_oldest_stored_goes_first_and_what_runs_never_does():
    store = store_of(4)
    running = begun(store, "running")
    for key in "abcd":
        stored(store, key)
    assert [key for key in "abcd" if finds(store, key)] == ["b", "c", "d"]
    assert finds(store, "running") is running


def test_growing_makes_room_too():
    store = store_of(8)
    for key in "abcdefg":
        stored(store, key)
    assert store.grew(begun(store, "long"), ENTRY_BYTES)
    assert [key for key in "abcdefg" if finds(store, key)] == list("bcdefg")


def test_with_everything_running_there_is_no_room_for_another():
    store = store_of(4)
    for key in "abcd":
        begun(store, key)
    assert begun(store, "e") is None
    assert (len(store), store.all_bytes) == (4, 4 * ENTRY_BYTES)


def test_one_that_grows_when_all_the_others_run_is_forgotten_itself():
    store = store_of(8)
    entries = [begun(store, key) for key in "abcdefgh"]
    assert not store.grew(entries[0], 1)
    assert finds(store, "a") is None
    assert not store.grew(entries[0], 1)
    assert store.all_bytes == 7 * ENTRY_BYTES


def test_one_answer_has_a_quarter_of_the_bytes_at_most_and_turns_nobody_out_for_more():
    store = store_of(16)
    stored(store, "other")
    entry = begun(store)
    assert store.grew(entry, 3 * ENTRY_BYTES)
    assert not store.grew(entry, 1)
    assert finds(store, "other") is not None
    assert store.all_bytes == ENTRY_BYTES


def test_entries_are_counted_as_well_as_bytes():
    store = store_of(1000, entries_max=3)
    for key in "abcd":
        stored(store, key)
    assert [key for key in "abcd" if finds(store, key)] == ["b", "c", "d"]


def test_one_api_key_has_a_quarter_of_the_entries_and_turns_out_only_its_own():
    store = store_of(1000, entries_max=8)
    stored(store, "other", "y")
    for key in "abc":
        stored(store, key, "x")
    assert [key for key in "abc" if finds(store, key, "x")] == ["b", "c"]
    assert finds(store, "other", "y") is not None


def test_one_api_key_has_a_quarter_of_the_bytes():
    store = store_of(8)
    first, second = begun(store, "a", "x"), begun(store, "b", "x")
    assert begun(store, "c", "x") is None
    store.store(first, 0.0)
    assert not store.grew(second, ENTRY_BYTES + 1)
    assert begun(store, "d", "x") is not None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "grow", "store", "forget", "wait"]),
        st.sampled_from(["a", "b", "c", "d", "e", "f"]),
        st.sampled_from(["", "x", "y"]),
        st.integers(0, 3000),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_bounds_hold_and_the_count_is_right_whatever_happens(steps):
    store, entries, now_s = store_of(9, entries_max=7), {}, 0.0
    for what, key, key_id, number in steps:
        place = (key, key_id)
        entry = entries.get(place)
        runs = entry is not None and store.holds(entry) and entry.stored_s is None
        if what == "begin" and finds(store, key, key_id, now_s) is None:
            entries[place] = begun(store, key, key_id, now_s)
        elif what == "grow" and runs:
            assert store.grew(entry, number) == store.holds(entry)
        elif what == "store" and runs:
            store.store(entry, now_s)
        elif what == "forget" and entry is not None:
            store.forget(entry)
        elif what == "wait":
            now_s += number * 60
        held = [each for each in entries.values() if each is not None and store.holds(each)]
        assert len(held) == len(store) <= 7
        assert sum(each.answer_bytes for each in held) == store.all_bytes <= 9 * ENTRY_BYTES
        for caller in ("x", "y"):
            assert (
                sum(each.answer_bytes for each in held if each.scope.key_id == caller) <= 9 * ENTRY_BYTES // 4
            )
        assert all(each.recording.forgotten == (not store.holds(each)) for each in entries.values() if each)
