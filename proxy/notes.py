"""What is known of a request so far: for its response's headers, its log line and its metrics."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from proxy.admitted import Admitted
from proxy.prompt_use import PromptUse, prompt_use


@dataclass(slots=True)
class Notes:
    """Grows as the request comes along. `arrived_at` is when its head was read, by the clock.

    `rate_headers` returns the x-ratelimit-… headers as of now; `extra_headers` are what this one response has
    besides. `backlog_bytes` returns, roughly, what waits to be written to a client that doesn't take it.
    `session` marks requests that belong together, as their client says.
    """

    request_id: str
    arrived_at: float
    lane: str = ""
    admitted: Admitted | None = None
    rate_headers: Callable[[], dict[str, str]] = dict
    extra_headers: dict[str, str] = field(default_factory=dict)
    backlog_bytes: Callable[[], int] = int
    session: str = ""

    @property
    def served_by(self) -> str:
        """Return the lane that serves the request or would have; "" while that isn't known."""
        return self.admitted.lane if self.admitted else self.lane

    @property
    def prompts(self) -> PromptUse:
        """Return what the request's prompts took so far."""
        return prompt_use(self.admitted) if self.admitted else PromptUse()

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
