"""What is known of a request so far: for its response's headers, its log line and its metrics."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from proxy.admitted import Admitted
from proxy.authenticate import ANONYMOUS, Caller


@dataclass(slots=True)
class Notes:
    """Grows as the request comes along. `arrived_at` is when its head was read, by the clock.

    `parsed_at` is when its body was found to be a request. `rate_headers` returns the x-ratelimit-… headers
    as of now; `extra_headers` are what this one response has besides. `backlog_bytes` returns, roughly, what
    waits to be written to a client that doesn't take it. `caller` is nobody until it is known who asks.
    `session` marks requests that belong together, as their client says; `replays` says that it is answered
    by what was made for another one.
    """

    request_id: str
    arrived_at: float
    parsed_at: float | None = None
    lane: str = ""
    caller: Caller = ANONYMOUS
    admitted: Admitted | None = None
    rate_headers: Callable[[], dict[str, str]] = dict
    extra_headers: dict[str, str] = field(default_factory=dict)
    backlog_bytes: Callable[[], int] = int
    session: str = ""
    replays: bool = False

    @property
    def served_by(self) -> str:
        """Return the lane that serves the request or would have; "" while that isn't known."""
        return self.admitted.lane if self.admitted else self.lane

    def headers(self) -> dict[str, str]:
        """Return the headers that every response has, refusals too."""
        lane = {"x-forebay-lane": self.served_by} if self.served_by else {}
        return {
            "x-request-id": self.request_id,
            **lane,
            "x-forebay-queue-ms": str(self.admitted.queue_ms if self.admitted else 0),
            "x-forebay-attempts": str(self.admitted.attempts if self.admitted else 0),
            **self.rate_headers(),
            **self.extra_headers,
        }


NOTES: Final = web.RequestKey("notes", Notes)
