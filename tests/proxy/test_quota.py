"""A key's bounds: how much passes, when one may come back, and what is given back."""

import pytest

from proxy.admission.quota import Quotas, _duration
from proxy.authenticate import ANONYMOUS
from shared.errors import InvalidRequest
from tests.proxy.small_quotas import caller, charging, opened, refused

# --- requests a minute ------------------------------------------------------------------------------------


def test_a_minutes_requests_pass_at_once_and_the_next_is_told_when_to_come():
    quotas, who = Quotas(), caller(requests_per_minute=6)
    assert [opened(quotas, who, 100.0) for _ in range(7)] == [True] * 6 + [False]
    refusal = refused(quotas.open, who, 102.0)
    assert refusal.retry_after_s == pytest.approx(8.0)
    assert refusal.message == (
        "The key 'ci' may make 6 requests a minute, and has made them; the next is free in 8s."
    )


def test_requests_come_back_one_by_one():
    quotas, who = Quotas(), caller(requests_per_minute=6)
    for _ in range(6):
        opened(quotas, who, 0.0)
    assert not opened(quotas, who, 9.9)
    assert opened(quotas, who, 10.0)
    assert not opened(quotas, who, 10.1)
    assert [opened(quotas, who, 30.0) for _ in range(3)] == [True, True, False]


def test_a_refused_request_takes_neither_a_request_nor_a_place():
    quotas, who = Quotas(), caller(requests_per_minute=60, concurrent_max=1)
    quotas.open(who, 0.0)
    for _ in range(100):
        refused(quotas.open, who, 0.0)
    assert quotas.headers(who, 0.0)["x-ratelimit-remaining-requests"] == "59"
    assert quotas.live(who) == 1


def test_one_keys_requests_are_none_of_anothers():
    quotas = Quotas()
    one, other = caller("one", requests_per_minute=1), caller("other", requests_per_minute=1)
    assert opened(quotas, one, 0.0)
    assert opened(quotas, other, 0.0)
    assert not opened(quotas, one, 0.0)


# --- requests at a time -----------------------------------------------------------------------------------


def test_as_many_are_live_as_the_key_may_have_and_a_place_comes_back():
    quotas, who = Quotas(), caller(concurrent_max=2)
    quotas.open(who, 0.0)
    quotas.open(who, 0.0)
    refusal = refused(quotas.open, who, 0.0)
    assert refusal.retry_after_s == 1.0
    assert refusal.message == "The key 'ci' may have 2 requests at a time, and has 2."
    quotas.close(who)
    quotas.open(who, 0.0)


def test_live_requests_of_a_key_without_bounds_count_once_it_gets_one():
    quotas = charging(caller())
    refused(quotas.open, caller(concurrent_max=1), 0.0)


def test_a_request_is_closed_once():
    quotas, who = Quotas(), caller(concurrent_max=2)
    quotas.open(who, 0.0)
    quotas.close(who)
    with pytest.raises(AssertionError):
        quotas.close(who)


# --- tokens a minute --------------------------------------------------------------------------------------


def test_tokens_are_taken_and_the_refusal_names_bound_rest_and_request():
    who = caller(tokens_per_minute=600)
    quotas = charging(who)
    quotas.charge(who, 500, 0.0)
    refusal = refused(quotas.charge, who, 150, 0.0)
    assert refusal.retry_after_s == pytest.approx(5.0)
    assert refusal.message == (
        "The key 'ci' may use 600 tokens a minute, of which 100 are free; "
        "this request takes 150 (prompt and max_tokens), which are free in 5s."
    )
    quotas.charge(who, 100, 0.0)
    quotas.charge(who, 50, 5.0)


def test_more_than_a_minutes_tokens_can_never_pass():
    who = caller(tokens_per_minute=600)
    quotas = charging(who)
    with pytest.raises(InvalidRequest) as problem:
        quotas.charge(who, 601, 0.0)
    assert problem.value.param == "max_tokens"
    assert "601 tokens" in problem.value.message
    assert "600 tokens a minute" in problem.value.message
    quotas.charge(who, 600, 0.0)


def test_what_was_not_used_is_given_back():
    who = caller(tokens_per_minute=600)
    quotas = charging(who)
    quotas.charge(who, 600, 0.0)
    quotas.refund(who, 250, 0.0)
    quotas.charge(who, 250, 0.0)
    refused(quotas.charge, who, 1, 0.0)


def test_a_refund_of_what_has_come_back_by_itself_gives_nothing_more():
    who = caller(tokens_per_minute=600)
    quotas = charging(who)
    quotas.charge(who, 600, 0.0)
    quotas.refund(who, 600, 45.0)
    assert quotas.headers(who, 45.0)["x-ratelimit-remaining-tokens"] == "600"
    quotas.charge(who, 600, 45.0)
    refused(quotas.charge, who, 1, 45.0)


def test_tokens_are_taken_by_open_requests_only():
    who = caller(tokens_per_minute=600)
    for act in (Quotas().charge, Quotas().refund):
        with pytest.raises(AssertionError):
            act(who, 1, 0.0)


# --- limits that change -----------------------------------------------------------------------------------


def test_a_limit_that_rises_applies_at_once():
    quotas = Quotas()
    low, high = caller(requests_per_minute=2), caller(requests_per_minute=5)
    assert [opened(quotas, low, 0.0) for _ in range(3)] == [True, True, False]
    assert [opened(quotas, high, 0.0) for _ in range(4)] == [True, True, True, False]


def test_a_limit_that_falls_applies_at_once_and_keeps_nobody_out_for_over_a_minute():
    low, high = caller(tokens_per_minute=100), caller(tokens_per_minute=10_000)
    quotas = charging(high)
    quotas.charge(high, 9_000, 0.0)
    refusal = refused(quotas.charge, low, 100, 0.0)
    assert refusal.retry_after_s == pytest.approx(60.0)
    quotas.charge(low, 100, 60.0)


def test_a_bound_that_is_gone_does_not_bind():
    quotas = Quotas()
    assert opened(quotas, caller(requests_per_minute=1), 0.0)
    assert [opened(quotas, caller(), 0.0) for _ in range(5)] == [True] * 5


# --- memory -----------------------------------------------------------------------------------------------


def test_anonymous_callers_have_no_bounds_and_leave_nothing():
    quotas = Quotas()
    for _ in range(1000):
        quotas.open(ANONYMOUS, 0.0)
        quotas.charge(ANONYMOUS, 1 << 40, 0.0)
        quotas.refund(ANONYMOUS, 1, 0.0)
    quotas.close(ANONYMOUS)
    assert (len(quotas), quotas.live(ANONYMOUS), quotas.headers(ANONYMOUS, 0.0)) == (0, 0, {})


def test_keys_idle_for_a_minute_are_forgotten_and_live_ones_are_not():
    quotas = Quotas()
    busy = caller("busy", concurrent_max=1)
    quotas.open(busy, 0.0)
    for number in range(50):
        opened(quotas, caller(f"key {number}", requests_per_minute=5), 1.0)
    assert len(quotas) == 51
    opened(quotas, caller("late"), 60.9)
    assert len(quotas) == 52
    opened(quotas, caller("later"), 61.0)
    assert len(quotas) == 3
    refused(quotas.open, busy, 61.0)
    quotas.close(busy)
    opened(quotas, caller("last"), 200.0)
    assert len(quotas) == 1


def test_a_key_that_still_speaks_is_not_forgotten():
    who = caller(tokens_per_minute=600)
    quotas = charging(who)
    quotas.charge(who, 600, 50.0)
    quotas.close(who)
    opened(quotas, caller("other"), 70.0)
    quotas.open(who, 70.0)
    refused(quotas.charge, who, 300, 70.0)


def test_a_key_that_still_speaks_keeps_no_idle_one_remembered():
    quotas = Quotas()
    for key_id, now_s in (("speaks", 0.0), ("idle", 1.0), ("speaks", 50.0), ("late", 61.5)):
        opened(quotas, caller(key_id, requests_per_minute=5), now_s)
    assert len(quotas) == 2


def test_asking_for_headers_leaves_nothing():
    quotas = Quotas()
    quotas.headers(caller(requests_per_minute=5), 0.0)
    assert len(quotas) == 0


# --- headers ----------------------------------------------------------------------------------------------


def test_headers_tell_limit_rest_and_time_of_the_bounds_that_a_key_has():
    who = caller(requests_per_minute=60, tokens_per_minute=6000)
    quotas = charging(who)
    quotas.charge(who, 6000, 0.0)
    assert quotas.headers(who, 0.88) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "120ms",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "88",
        "x-ratelimit-reset-tokens": "1m0s",
    }
    tokens_only = quotas.headers(caller(tokens_per_minute=6000), 0.0)
    assert {name.rsplit("-", 1)[1] for name in tokens_only} == {"tokens"}
    assert quotas.headers(caller(concurrent_max=1), 0.0) == {}


def test_headers_of_a_key_that_was_never_seen_are_full():
    told = Quotas().headers(caller(requests_per_minute=60), 0.0)
    assert list(told.values()) == ["60", "60", "0s"]


def test_a_full_bucket_tells_its_limit_and_not_one_more_by_rounding():
    told = Quotas().headers(caller(tokens_per_minute=10**9), 0.0)
    assert list(told.values()) == ["1000000000", "1000000000", "0s"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0s"),
        (1e-9, "0s"),
        (0.0004, "1ms"),
        (0.12, "120ms"),
        (0.9991, "1s"),
        (1.0, "1s"),
        (1.001, "2s"),
        (59.2, "1m0s"),
        (60.0, "1m0s"),
        (60.000000001, "1m0s"),
        (360.0, "6m0s"),
        (61.5, "1m2s"),
    ],
)
def test_durations_are_written_as_openai_writes_them_and_never_too_short(seconds, said):
    assert _duration(seconds) == said
