"""A key's own bounds: requests and tokens a minute, and requests at a time. Pure: time is an argument.

A bucket holds a minute's worth and refills continuously, so in any t seconds at most (1 + t/60) minutes'
worth passes. It's kept as what was used, not as what is left: then a limit that changes at a reload applies
at once. A caller brings its own limits; one that began before a reload settles with those it began with.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from proxy.authenticate import Caller
from shared.errors import InvalidRequest, RateLimited

_MINUTE_S: Final = 60.0
# Of a minute's worth: what rounding may hide, so that whoever comes back exactly when told isn't too early.
_SLACK: Final = 1e-9
# And never so much that a whole one is made of it.
_SLACK_MAX: Final = 1e-3
# When an answer will end can't be told, and this is the least that a refusal can say.
_CONCURRENT_RETRY_S: Final = 1.0


@dataclass(slots=True)
class _Bucket:
    """What was used of a minute's worth, as it was at the time `at_s`."""

    used: float = 0.0
    at_s: float = 0.0

    def used_at(self, per_minute: int, now_s: float) -> float:
        """Return what is used now. Under a limit that fell, what exceeds a minute's worth is let go."""
        refilled = per_minute * max(0.0, now_s - self.at_s) / _MINUTE_S
        return max(0.0, min(self.used, per_minute) - refilled)

    def free(self, per_minute: int, now_s: float) -> int:
        """Return how many whole ones can be taken now."""
        slack = min(_SLACK_MAX, per_minute * _SLACK)
        free = math.floor(per_minute - self.used_at(per_minute, now_s) + slack)
        return min(per_minute, free)

    def wait_s(self, amount: int, per_minute: int, now_s: float) -> float:
        """Return how long until `amount`, at most a minute's worth, can be taken; 0 if it can be now."""
        if amount <= self.free(per_minute, now_s):
            return 0.0
        lacking = self.used_at(per_minute, now_s) + amount - per_minute
        return lacking * _MINUTE_S / per_minute

    def settle(self, amount: int, per_minute: int, now_s: float) -> None:
        """Use `amount` more, or give it back if it is negative: never over a full bucket."""
        self.used = max(0.0, self.used_at(per_minute, now_s) + amount)
        self.at_s = max(self.at_s, now_s)


@dataclass(slots=True)
class _Use:
    """What one key has used, and how many of its requests are live."""

    requests: _Bucket = field(default_factory=_Bucket)
    tokens: _Bucket = field(default_factory=_Bucket)
    live: int = 0
    touched_s: float = 0.0


class Quotas:
    """All keys' bounds. A request opens, charges, refunds what it didn't use, and closes: in this order.

    A key without live requests whose last word is a minute old has full buckets and is forgotten, so this
    holds the keys of the last minute and those with live requests. Without a key there are no bounds.
    """

    def __init__(self) -> None:
        self._uses: OrderedDict[str, _Use] = OrderedDict()  # the least recently touched first

    def __len__(self) -> int:
        return len(self._uses)

    def live(self, caller: Caller) -> int:
        """Return how many requests of the key are live."""
        use = self._uses.get(caller.key_id)
        return use.live if use else 0

    def open(self, caller: Caller, now_s: float) -> None:
        """Take one request and one live place, or raise RateLimited and take nothing."""
        if not caller.key_id:
            return
        self._forget(now_s)
        use = self._uses.get(caller.key_id) or _Use()
        if caller.requests_per_minute is not None:
            wait_s = use.requests.wait_s(1, caller.requests_per_minute, now_s)
            if wait_s > 0:
                raise _too_many_requests(caller, caller.requests_per_minute, wait_s)
        if caller.concurrent_max is not None and use.live >= caller.concurrent_max:
            raise _too_many_at_a_time(caller, caller.concurrent_max, use.live)
        if caller.requests_per_minute is not None:
            use.requests.settle(1, caller.requests_per_minute, now_s)
        use.live += 1
        self._touch(caller, use, now_s)

    def charge(self, caller: Caller, tokens: int, now_s: float) -> None:
        """Take prompt + max_tokens of an open request: else RateLimited, or InvalidRequest if it never fits.

        After a refusal the request stays counted and open: it was made, and its closing is the caller's.
        """
        assert tokens >= 0, "a charge takes"
        if not caller.key_id or caller.tokens_per_minute is None:
            return
        if tokens > caller.tokens_per_minute:
            raise _more_than_a_minute(caller, caller.tokens_per_minute, tokens)
        use = self._opened(caller)
        wait_s = use.tokens.wait_s(tokens, caller.tokens_per_minute, now_s)
        if wait_s > 0:
            free = use.tokens.free(caller.tokens_per_minute, now_s)
            raise _too_many_tokens(caller, caller.tokens_per_minute, tokens, free, wait_s)
        use.tokens.settle(tokens, caller.tokens_per_minute, now_s)
        self._touch(caller, use, now_s)

    def refund(self, caller: Caller, tokens: int, now_s: float) -> None:
        """Give back what an open request was charged and didn't use."""
        assert tokens >= 0, "a refund gives"
        if not caller.key_id or caller.tokens_per_minute is None:
            return
        use = self._opened(caller)
        use.tokens.settle(-tokens, caller.tokens_per_minute, now_s)
        self._touch(caller, use, now_s)

    def close(self, caller: Caller) -> None:
        """Give the live place of an open request back."""
        if caller.key_id:
            self._opened(caller).live -= 1

    def headers(self, caller: Caller, now_s: float) -> dict[str, str]:
        """Return the x-ratelimit-… headers of the bounds that the key has, as OpenAI writes them.

        `reset` is the time until the bucket is full again.
        """
        use = self._uses.get(caller.key_id) or _Use()
        told: dict[str, str] = {}
        if caller.requests_per_minute is not None:
            told |= _told("requests", use.requests, caller.requests_per_minute, now_s)
        if caller.tokens_per_minute is not None:
            told |= _told("tokens", use.tokens, caller.tokens_per_minute, now_s)
        return told

    def _opened(self, caller: Caller) -> _Use:
        use = self._uses.get(caller.key_id)
        assert use is not None, "a request is opened first"
        assert use.live > 0, "a request is closed once, and last"
        return use

    def _touch(self, caller: Caller, use: _Use, now_s: float) -> None:
        use.touched_s = now_s
        self._uses[caller.key_id] = use
        self._uses.move_to_end(caller.key_id)

    def _forget(self, now_s: float) -> None:
        """Forget who was idle for a minute; who has live requests is looked at again in a minute."""
        while self._uses:
            key_id, use = next(iter(self._uses.items()))
            if now_s - use.touched_s < _MINUTE_S:
                return
            if use.live:
                use.touched_s = now_s
                self._uses.move_to_end(key_id)
            else:
                del self._uses[key_id]


def _too_many_requests(caller: Caller, per_minute: int, wait_s: float) -> RateLimited:
    return RateLimited(
        f"The key {caller.name!r} may make {_count(per_minute, 'request')} a minute, and has made them; "
        f"the next is free in {_duration(wait_s)}.",
        retry_after_s=wait_s,
    )


def _too_many_at_a_time(caller: Caller, concurrent_max: int, live: int) -> RateLimited:
    return RateLimited(
        f"The key {caller.name!r} may have {_count(concurrent_max, 'request')} at a time, and has {live}.",
        retry_after_s=_CONCURRENT_RETRY_S,
    )


def _too_many_tokens(caller: Caller, per_minute: int, tokens: int, free: int, wait_s: float) -> RateLimited:
    return RateLimited(
        f"The key {caller.name!r} may use {_count(per_minute, 'token')} a minute, of which {free} are free; "
        f"this request takes {tokens} (prompt and max_tokens), which are free in {_duration(wait_s)}.",
        retry_after_s=wait_s,
    )


def _more_than_a_minute(caller: Caller, per_minute: int, tokens: int) -> InvalidRequest:
    return InvalidRequest(
        f"This request takes {tokens} tokens (prompt and max_tokens), "
        f"and the key {caller.name!r} may use {_count(per_minute, 'token')} a minute.",
        param="max_tokens",
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _told(what: str, bucket: _Bucket, per_minute: int, now_s: float) -> dict[str, str]:
    full_in_s = bucket.used_at(per_minute, now_s) * _MINUTE_S / per_minute
    return {
        f"x-ratelimit-limit-{what}": str(per_minute),
        f"x-ratelimit-remaining-{what}": str(bucket.free(per_minute, now_s)),
        f"x-ratelimit-reset-{what}": _duration(full_in_s),
    }


def _duration(seconds: float) -> str:
    """Return 0s, 120ms, 1s, 1m0s: rounded up, so that it's never too early, but for what rounding hides."""
    ms = math.ceil(1000 * seconds - _MINUTE_S * 1000 * _SLACK)
    if ms < 1000:
        return f"{ms}ms" if ms > 0 else "0s"
    minutes, rest_s = divmod(math.ceil(ms / 1000), 60)
    return f"{minutes}m{rest_s}s" if minutes else f"{rest_s}s"
