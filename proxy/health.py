"""Does the gateway live, can it have a request answered now, and what has it been doing."""

import asyncio
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from proxy.dispatch import Dispatcher
from proxy.gauges import Door, Gauges
from proxy.observer import Observer
from proxy.prompt_use import PromptUse
from proxy.worker_link import WorkerLink
from shared.clock import Clock
from shared.limits import KIB
from shared.metrics import CONTENT_TYPE

# Some milliseconds' worth. A turn of a busy loop may take as long, so there are to be few of them.
_BYTES_AT_ONCE: Final = 64 * KIB


class Health:
    """Handlers of /health/live, /health/ready and /metrics. None of them asks for a key."""

    def __init__(
        self, link: WorkerLink, dispatcher: Dispatcher, observer: Observer, clock: Clock, model: str
    ) -> None:
        self._link = link
        self._dispatcher = dispatcher
        self._metrics = observer.metrics
        self._clock = clock
        self._gauges = Gauges(observer, link, dispatcher, clock, model)
        self.door: Door | None = None
        self.prompts = PromptUse()

    def prompted(self, use: PromptUse) -> None:
        """Count what a request's prompts took, once it has ended; one that never began took nothing."""
        self.prompts += use

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
            "queued": self._dispatcher.admission.queued,
            "reserved_bytes": self._dispatcher.admission.reserved_bytes,
            "resumed": self._dispatcher.resumed,
            "prompt_tokens": self.prompts.tokens,
            "cached_tokens": self.prompts.cached,
            "suspects": len(self._dispatcher.admission.state.trials.waiting),
            "quarantined": len(self._dispatcher.quarantine),
            "lanes": self._lanes(),
            "worker": self._worker(),
        }
        return web.json_response(body, status=200 if ready else 503)

    async def metrics(self, _request: web.Request) -> web.Response:
        """Return all metrics in Prometheus' text format. Other requests have their turns meanwhile."""
        self._gauges.read(self.door)
        body, told = bytearray(), 0
        for part in self._metrics.parts():
            body += part
            if len(body) - told > _BYTES_AT_ONCE:
                told = len(body)
                await asyncio.sleep(0)
        return web.Response(body=bytes(body), headers={"Content-Type": CONTENT_TYPE})

    def _lanes(self) -> dict[str, Any]:
        now = self._clock.now()
        return {
            lane.settings.name: {
                "queued": len(lane),
                "running": len(lane.running),
                "oldest_wait_s": round(lane.waits_s(now), 1),
                "overloaded": lane.overload.lasting,
            }
            for lane in self._dispatcher.admission.state.lanes
        }

    def _worker(self) -> dict[str, Any]:
        state = self._link.state
        hello, progress = state.hello, state.progress
        return {
            "epoch": hello.epoch if hello else None,
            "slots": hello.slots if hello else None,
            "kv_budget_bytes": hello.budget_bytes if hello else None,
            "kv_budget_now_bytes": progress.budget_bytes if progress else None,
            "rung": state.care.rung,
            "breaker": state.care.breaker,
            "step": progress.step if progress else None,
            "active_bytes": progress.memory.active_bytes if progress else None,
            "kv_bytes": progress.kv_bytes if progress else None,
            "footprint_bytes": progress.memory.footprint_bytes if progress else None,
            "prefixes": asdict(progress.prefixes) if progress else None,
            "starts_in_s": self._starts_in_s(),
            "deaths": state.deaths,
            "last_death": state.last_cause,
            "last_death_detail": state.last_detail or None,
        }

    def _starts_in_s(self) -> float | None:
        """How long the supervisor still waits before it starts the next worker; None if it doesn't."""
        retry_at = self._link.state.retry_at
        return None if retry_at is None else round(max(0.0, retry_at - self._clock.now()), 1)
