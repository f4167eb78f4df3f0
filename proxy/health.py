"""Does the gateway live, can it have a request answered now, and what has it been doing."""

from dataclasses import asdict
from typing import Any, get_args

from aiohttp import web

from proxy.dispatch import Dispatcher
from proxy.prompt_use import PromptUse
from proxy.worker_link import WorkerLink
from shared.clock import Clock
from shared.messages import Breaker
from shared.metrics import CONTENT_TYPE, Metrics


class Health:
    """Handlers of /health/live, /health/ready and /metrics. None of them asks for a key."""

    def __init__(self, link: WorkerLink, dispatcher: Dispatcher, metrics: Metrics, clock: Clock) -> None:
        self._link = link
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._clock = clock
        self.prompts = PromptUse()

    def prompted(self, lane: str, use: PromptUse) -> None:
        """Count what a request's prompts took, once it has ended; one that never began took nothing."""
        self.prompts += use
        if use.tokens:
            self._metrics.prompt_tokens.labels(lane).inc(use.tokens)
            self._metrics.cached_tokens.labels(lane).inc(use.cached)

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
        """Return all metrics in Prometheus' text format."""
        admission, progress = self._dispatcher.admission, self._link.state.progress
        self._metrics.forget_lanes()
        for lane in admission.state.lanes:
            self._metrics.queued.labels(lane.settings.name).set(len(lane))
            self._metrics.running.labels(lane.settings.name).set(len(lane.running))
        self._metrics.reserved_bytes.set(admission.reserved_bytes)
        self._metrics.held_bytes.set(progress.kv_bytes if progress else 0)
        self._metrics.budget_bytes.set(admission.state.ledger.budget_bytes if admission.state.ledger else 0)
        self._metrics.footprint_bytes.set(progress.memory.footprint_bytes if progress else 0)
        self._metrics.keeps(progress.prefixes if progress else None)
        care = self._link.state.care
        self._metrics.rung.set(care.rung)
        for state in get_args(Breaker):
            self._metrics.breaker.labels(state).set(state == care.breaker)
        self._metrics.suspects.set(len(admission.state.trials.waiting))
        self._metrics.quarantined.set(len(self._dispatcher.quarantine))
        self._metrics.house_seconds.set(admission.state.house_ms / 1000)
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

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
