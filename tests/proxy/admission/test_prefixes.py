"""What of a prompt needn't be computed: what the worker keeps, and what live answers compute anyway."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.prefixes import Prefixes
from shared.limits import PREFIX_BLOCKS_MAX
from tests.proxy.admission.small_prompts import names_of, tokens_of
from tests.proxy.small_worlds import facts

BLOCK = 64


def prefixes_of(*words, **changes):
    """Return a mirror of a worker that keeps these beginnings; where rows share, four blocks do."""
    prefixes = Prefixes()
    prefixes.worker_came(facts(**{"reuse": "any", "shares_from": 4 * BLOCK, **changes}))
    for word in words:
        prefixes.told(names_of(word), ())
    return prefixes


def cached(prefixes, word, more=1):
    """Return how many tokens of a prompt that starts now are there."""
    return prefixes.cached_tokens(names_of(word), tokens_of(word, more))


def expected(prefixes, word, rank=0):
    """Return how many tokens of a prompt that is queued now will be there."""
    return prefixes.expected_tokens(names_of(word), tokens_of(word), rank)


def test_leading_blocks_that_the_worker_keeps_are_there_and_none_behind_a_gap():
    prefixes = prefixes_of("abc")
    assert [cached(prefixes, word) for word in ("abcd", "ab", "abd", "b", "")] == [192, 128, 128, 0, 0]
    prefixes.told((), names_of("ab")[1:])
    assert (cached(prefixes, "abc"), prefixes.kept) == (BLOCK, 2)
    prefixes.told(names_of("ab")[1:], ())
    assert cached(prefixes, "abc") == 192


def test_the_last_token_is_computed_however_much_is_kept():
    assert cached(prefixes_of("abc"), "abc", more=0) == 191


@given(st.lists(st.tuples(st.booleans(), st.text("ab", max_size=4)), max_size=30), st.text("ab", max_size=6))
def test_what_is_there_follows_the_workers_words(news, word):
    prefixes, kept = prefixes_of(), set()
    for is_added, told in news:
        names = names_of(told)
        prefixes.told(*((names, ()) if is_added else ((), names)))
        kept = kept | set(names) if is_added else kept - set(names)
    leading = next((place for place, name in enumerate(names_of(word)) if name not in kept), len(word))
    assert (cached(prefixes, word), prefixes.kept) == (BLOCK * leading, len(kept))


def test_a_new_life_of_the_worker_tells_all_anew():
    prefixes = prefixes_of("abc")
    prefixes.worker_came(facts(reuse="any"))
    assert (cached(prefixes, "abc"), prefixes.kept) == (0, 0)


def test_no_more_is_remembered_than_a_worker_keeps_and_what_was_told_first_goes_first():
    prefixes = prefixes_of()
    prefixes.told(range(PREFIX_BLOCKS_MAX), ())
    prefixes.told((0, -1, -2), ())
    assert prefixes.kept == PREFIX_BLOCKS_MAX
    assert [prefixes.cached_tokens([name], 100) for name in (-2, -1, 0, 1, 2, 3)] == [64, 64, 64, 0, 0, 64]


def test_of_a_family_that_can_use_nothing_again_nothing_is_there():
    prefixes = prefixes_of("abcde", reuse="none")
    prefixes.arrived(names_of("abcde"), 0)
    prefixes.started(names_of("abcde"))
    assert (cached(prefixes, "abcde"), expected(prefixes, "abcde")) == (0, 0)


# --- live answers -------------------------------------------------------------------------------------------


def test_what_a_running_answer_computes_is_there_for_who_starts_beside_it():
    prefixes = prefixes_of()
    prefixes.started(names_of("abcde"))
    prefixes.started(names_of("abcdf"))
    assert [cached(prefixes, word) for word in ("abcdeg", "abcdx", "abcx")] == [320, 256, 0]
    prefixes.stopped(names_of("abcde"))
    assert cached(prefixes, "abcdeg") == 256
    prefixes.stopped(names_of("abcdf"))
    assert cached(prefixes, "abcdeg") == 0


def test_what_is_kept_leads_to_what_a_running_answer_computes():
    prefixes = prefixes_of("abc")
    prefixes.started(names_of("abcd"))
    assert [cached(prefixes, word) for word in ("abcd", "abcx", "abx")] == [256, 192, 128]


@pytest.mark.parametrize(("shares_from", "there"), [(320, 0), (256, 256), (0, 256)])
def test_nobody_waits_for_less_than_rows_share(shares_from, there):
    """Where a family holds copies, for less than 256 tokens."""
    prefixes = prefixes_of(shares_from=shares_from)
    prefixes.started(names_of("abcd"))
    assert cached(prefixes, "abcd") == there


def test_who_is_queued_finds_what_those_before_it_compute_and_who_starts_only_what_runs():
    prefixes = prefixes_of()
    prefixes.arrived(names_of("abcd"), 0)
    assert (expected(prefixes, "abcde"), cached(prefixes, "abcde")) == (256, 0)
    prefixes.started(names_of("abcd"))
    assert (expected(prefixes, "abcde"), cached(prefixes, "abcde")) == (256, 256)
    prefixes.stopped(names_of("abcd"))
    prefixes.left(names_of("abcd"), 0)
    assert (expected(prefixes, "abcde"), cached(prefixes, "abcde")) == (0, 0)


def test_what_waits_in_a_lower_lane_computes_nothing_before_who_is_queued_above_it():
    prefixes = prefixes_of()
    prefixes.arrived(names_of("abcd"), 1)
    assert [expected(prefixes, "abcde", rank) for rank in (0, 1, 2)] == [0, 256, 256]
    prefixes.started(names_of("abcd"))
    assert expected(prefixes, "abcde", 0) == 256
