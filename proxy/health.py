"""Two questions: does the gateway live, and can it have a request answered now."""

from typing import Any

from aiohttp import web

from proxy.dispatch import Dispatcher
from proxy.worker_link import WorkerLink
from shared.clock import Clock


class Health:
    """Handlers of /health/live and /health/ready."""

    def __init__(self, link: WorkerLink, dispatcher: Dispatcher, clock: Clock) -> None:
        self._link = link
        self._dispatcher = dispatcher
        self._clock = clock

    async def live(self, _request: web.Request) -> web.Response:
        """Return 200 as long as this process turns its loop."""
        return web.json_response({"status": "live"})

    async def ready(self, _request: web.Request) -> web.Response:
        """Return 200 if a worker is ready and nothing drains, else 503; the body says what is the matter."""
        state = self._link.state
        ready = state.status == "ready" and not self._dispatcher.draining
        status = "draining" if self._dispatcher.draining else state.status
        body: dict[str, Any] = {
            "status": status,
            "since_s": round(self._clock.now() - state.since, 1),
            "live": self._dispatcher.live,
            "queued": self._dispatcher.queued,
            "reserved_bytes": self._dispatcher.reserved_bytes,
            "resumed": self._dispatcher.resumed,
            "worker": self._worker(),
        }
        return web.json_response(body, status=200 if ready else 503)

    def _worker(self) -> dict[str, Any]:
        state = self._link.state
        hello, progress = state.hello, state.progress
        return {
            "epoch": hello.epoch if hello else None,
            "slots": hello.slots if hello else None,
            "kv_budget_bytes": hello.budget_bytes if hello else None,
            "step": progress.step if progress else None,
            "active_bytes": progress.memory.active_bytes if progress else None,
            "footprint_bytes": progress.memory.footprint_bytes if progress else None,
            "starts_in_s": self._starts_in_s(),
            "deaths": state.deaths,
            "last_death": state.last_cause,
            "last_death_detail": state.last_detail or None,
        }

    def _starts_in_s(self) -> float | None:
        """How long the supervisor still waits before it starts the next worker; None if it doesn't."""
        retry_at = self._link.state.retry_at
        return None if retry_at is None else round(max(0.0, retry_at - self._clock.now()), 1)
