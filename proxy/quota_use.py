"""One request's use of its key's bounds: taken at its beginning, settled at its end on every path."""

from dataclasses import replace
from types import TracebackType
from typing import Self

from proxy.admission.quota import Quotas
from proxy.admitted import Admitted
from proxy.authenticate import Caller
from shared.clock import Clock


class QuotaUse:
    """Entering takes a request and a live place, or raises RateLimited; leaving gives back what wasn't used.

    `admitted` is to be set once the request is; without it none of the charged tokens were used. One that
    was `counted` before takes only the place.
    """

    def __init__(self, quotas: Quotas, caller: Caller, clock: Clock, *, counted: bool = False) -> None:
        self._quotas = quotas
        self._caller = caller
        self._clock = clock
        self._counted = counted
        self._charged = 0
        self.admitted: Admitted | None = None

    def __enter__(self) -> Self:
        caller = replace(self._caller, requests_per_minute=None) if self._counted else self._caller
        self._quotas.open(caller, self._clock.now())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        used = self.admitted.tokens if self.admitted else 0
        self._quotas.refund(self._caller, max(0, self._charged - used), self._clock.now())
        self._quotas.close(self._caller)

    def charge(self, tokens: int) -> None:
        """Take the tokens that the request may need at most, or raise RateLimited or InvalidRequest."""
        self._quotas.charge(self._caller, tokens, self._clock.now())
        self._charged = tokens

    def headers(self) -> dict[str, str]:
        """Return the x-ratelimit-… headers as of now."""
        return self._quotas.headers(self._caller, self._clock.now())


def count_request(quotas: Quotas, caller: Caller, clock: Clock) -> None:
    """Take one request of a key's quota, or raise RateLimited: for one that may take no place of its own."""
    quotas.open(replace(caller, concurrent_max=None), clock.now())
    quotas.close(caller)
