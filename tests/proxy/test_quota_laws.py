"""The laws of a key's bounds, over all that hypothesis can think of."""

import math
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from proxy.admission.quota import Quotas
from shared.errors import RateLimited
from tests.proxy.small_quotas import caller, charging, opened, refused

LIMITS = st.integers(1, 1000) | st.integers(1, 10**9)
STARTS = st.floats(0, 1e7)
GAPS = st.floats(0, 90) | st.just(0.0)


def windows(takings):
    """Yield (seconds, amount) of every window of (time, amount)s."""
    for first in range(len(takings)):
        amount = 0
        for at_s, taken in takings[first:]:
            amount += taken
            yield at_s - takings[first][0], amount


def assert_bounded(takings, limit):
    rounding = 2e-9 * (1 + len(takings))  # of a minute's worth: what each taking may be ahead
    for seconds, amount in windows(takings):
        assert amount <= limit * (1 + seconds / 60 + rounding)


@given(limit=st.integers(1, 20), start_s=STARTS, gaps=st.lists(GAPS | st.floats(0, 3), max_size=60))
def test_never_more_requests_pass_than_a_minutes_worth_and_what_came_back(limit, start_s, gaps):
    quotas, who, now_s, takings = Quotas(), caller(requests_per_minute=limit), start_s, []
    for gap_s in gaps:
        now_s += gap_s
        if opened(quotas, who, now_s):
            takings.append((now_s, 1))
    assert_bounded(takings, limit)


@given(data=st.data(), limit=LIMITS, start_s=STARTS, count=st.integers(1, 30))
def test_tokens_stay_within_their_laws_whatever_is_charged_and_refunded(data, limit, start_s, count):
    """What is refunded counts against what is charged: the key really used the difference."""
    who, now_s, takings, charged = caller(tokens_per_minute=limit), start_s, [], 0
    quotas = charging(who, now_s)
    for _ in range(count):
        now_s += data.draw(GAPS)
        if charged and data.draw(st.booleans()):
            amount = -data.draw(st.integers(0, charged))
            quotas.refund(who, -amount, now_s)
        else:
            amount = data.draw(st.integers(0, limit))
            try:
                quotas.charge(who, amount, now_s)
            except RateLimited:
                amount = 0
        charged += amount
        takings.append((now_s, amount))
        told = quotas.headers(who, now_s)
        assert 0 <= int(told["x-ratelimit-remaining-tokens"]) <= limit
    assert_bounded(takings, limit)


@given(limit=LIMITS, start_s=STARTS, used=st.data())
def test_whoever_comes_back_when_told_passes_and_earlier_would_not(limit, start_s, used):
    who = caller(tokens_per_minute=limit)
    quotas = charging(who, start_s)
    quotas.charge(who, used.draw(st.integers(1, limit)), start_s)
    wanted = used.draw(st.integers(1, limit))
    now_s = start_s + used.draw(st.floats(0, 60))
    try:
        quotas.charge(who, wanted, now_s)
    except RateLimited as refusal:
        assert 1 <= refusal.retry_after_s <= 60  # noqa: PT017 (one fact about this refusal)
        if refusal.retry_after_s > 1 and limit >= 100:
            refused(quotas.charge, who, wanted, now_s + refusal.retry_after_s * 0.99)
        quotas.charge(who, wanted, now_s + refusal.retry_after_s)


@given(limit=st.integers(1, 600), start_s=STARTS, into_s=st.floats(0, 60))
def test_a_request_that_comes_back_when_told_passes(limit, start_s, into_s):
    quotas, who = Quotas(), caller(requests_per_minute=limit)
    for _ in range(limit):
        assert opened(quotas, who, start_s)
    now_s = start_s + into_s
    while opened(quotas, who, now_s):
        pass
    refusal = refused(quotas.open, who, now_s)
    assert opened(quotas, who, now_s + refusal.retry_after_s)


@example(limit=999_999_858, start_s=0.0, times=[0.0, 0.0])
@given(limit=LIMITS, start_s=STARTS, times=st.lists(st.floats(0, 60), min_size=2, max_size=20))
def test_what_the_headers_promise_can_be_taken_and_only_grows_while_nobody_takes(limit, start_s, times):
    who = caller(tokens_per_minute=limit)
    quotas = charging(who, start_s)
    quotas.charge(who, limit, start_s)
    rests = [
        int(quotas.headers(who, start_s + after_s)["x-ratelimit-remaining-tokens"])
        for after_s in sorted(times)
    ]
    assert all(earlier <= later for earlier, later in pairwise(rests))
    last_s = start_s + max(times)
    quotas.charge(who, rests[-1], last_s)
    assert math.isclose(int(quotas.headers(who, last_s)["x-ratelimit-remaining-tokens"]), 0, abs_tol=1)


@given(
    limit=st.integers(1, 50),
    gaps=st.lists(st.floats(0, 130), max_size=20),
)
def test_forgetting_a_key_changes_nothing_for_it(limit, gaps):
    """Against quotas that never forget, because the key has a live request in them."""
    who, now_s = caller(requests_per_minute=limit), 0.0
    forgetful, mindful = Quotas(), Quotas()
    mindful.open(caller(), now_s)
    for gap_s in gaps:
        now_s += gap_s
        for _ in range(limit):
            assert opened(forgetful, who, now_s) == opened(mindful, who, now_s)
        assert forgetful.headers(who, now_s) == mindful.headers(who, now_s)


@given(limits=st.lists(st.tuples(st.integers(1, 50), st.floats(0, 30)), min_size=1, max_size=30))
def test_whatever_limits_did_the_present_one_holds(limits):
    quotas, now_s = Quotas(), 0.0
    quotas.open(caller(), now_s)
    for limit, gap_s in limits:
        now_s += gap_s
        who = caller(tokens_per_minute=limit)
        rest = int(quotas.headers(who, now_s)["x-ratelimit-remaining-tokens"])
        assert 0 <= rest <= limit
        if rest < limit:
            assert refused(quotas.charge, who, rest + 1, now_s).retry_after_s <= 60
        quotas.charge(who, rest, now_s)
