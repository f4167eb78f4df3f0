"""Takes snapshots of a gateway, and closes the intervals of its history."""

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from proxy.dispatch import Dispatcher
from proxy.observer import Observer
from proxy.prompt_use import PromptUse
from proxy.status.history import INTERVAL_S, Levels
from proxy.status.snapshot import (
    DeathView,
    GatewayView,
    HistoryView,
    LaneView,
    MemoryView,
    QuarantinedView,
    RowView,
    Snapshot,
    SpeedView,
    WorkerView,
)
from proxy.worker_link import WorkerLink
from shared.clock import Clock

_ROWS_SHOWN: Final = 256
_QUARANTINED_SHOWN: Final = 20
_DETAIL_CHARS: Final = 300
# Speeds are those of about ten seconds.
_INTERVALS_OF_NOW: Final = 5


class SnapshotTaker:
    """`prompts` returns what prompts took so far; `wall` is the wall clock, in Unix seconds."""

    def __init__(
        self,
        model: str,
        link: WorkerLink,
        dispatcher: Dispatcher,
        observer: Observer,
        prompts: Callable[[], PromptUse],
        *,
        clock: Clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._model = model
        self._link = link
        self._dispatcher = dispatcher
        self._observer = observer
        self._prompts = prompts
        self._clock = clock
        self._wall = wall
        self._began = clock.now()
        self._closed_at = clock.now()

    def tick(self) -> None:
        """Close the interval of the history if it is over; to be called more often than that."""
        now = self._clock.now()
        if now - self._closed_at < INTERVAL_S:
            return
        self._closed_at = now
        progress = self._link.state.progress
        admission = self._dispatcher.admission
        levels = Levels(admission.queued, admission.running, progress.kv_bytes if progress else 0)
        self._observer.history.close(now, levels)

    def snapshot(self) -> Snapshot:
        prompts = self._prompts()
        entries = list(self._dispatcher.quarantine.entries())
        return Snapshot(
            time=round(self._wall(), 3),
            gateway=self._gateway(),
            worker=self._worker(),
            lanes=self._lanes(),
            rows=self._rows(),
            memory=self._memory(),
            speed=self._speed(),
            deaths=tuple(self._deaths()),
            quarantined=len(entries),
            quarantine=tuple(
                QuarantinedView(
                    each.fingerprint, each.at, each.until, each.cause, each.lane, each.prompt_tokens
                )
                for each in entries[-_QUARANTINED_SHOWN:]
            ),
            suspects=len(self._dispatcher.admission.state.trials.waiting),
            prompt_tokens=prompts.tokens,
            cached_tokens=prompts.cached,
        )

    def history(self) -> HistoryView:
        intervals = list(self._observer.history.intervals)
        offset = self._wall() - self._clock.now()
        return HistoryView(
            interval_s=INTERVAL_S,
            time=tuple(round(each.end + offset, 1) for each in intervals),
            tokens_per_s=tuple(round(each.tokens_per_s, 2) for each in intervals),
            ttft_p50_s=tuple(_rounded(each.ttft_p50_s) for each in intervals),
            ttft_p95_s=tuple(_rounded(each.ttft_p95_s) for each in intervals),
            queued=tuple(each.levels.queued for each in intervals),
            running=tuple(each.levels.running for each in intervals),
            kv_bytes=tuple(each.levels.kv_bytes for each in intervals),
            refused=tuple(each.refused for each in intervals),
            deaths=tuple(each.deaths for each in intervals),
        )

    # --- parts --------------------------------------------------------------------------------------------

    def _gateway(self) -> GatewayView:
        state, now = self._link.state, self._clock.now()
        return GatewayView(
            status="draining" if self._dispatcher.draining else state.status,
            since_s=round(now - state.since, 1),
            uptime_s=round(now - self._began, 1),
            version=version("forebay"),
            model=self._model,
            draining=self._dispatcher.draining,
            held=self._dispatcher.held,
            live=self._dispatcher.live,
            resumed=self._dispatcher.resumed,
        )

    def _worker(self) -> WorkerView:
        state = self._link.state
        hello, progress = state.hello, state.progress
        retry_at = state.retry_at
        return WorkerView(
            status=state.status,
            epoch=hello.epoch if hello else None,
            family=hello.facts.family if hello else None,
            caches=hello.facts.caches if hello else None,
            context_tokens=hello.facts.context_tokens if hello else None,
            slots=hello.slots if hello else None,
            rows=progress.engine.rows if progress else None,
            groups=progress.engine.groups if progress else None,
            step=progress.step if progress else None,
            rung=state.care.rung,
            breaker=state.care.breaker,
            starts_in_s=None if retry_at is None else round(max(0.0, retry_at - self._clock.now()), 1),
            deaths=state.deaths,
        )

    def _lanes(self) -> tuple[LaneView, ...]:
        now = self._clock.now()
        return tuple(
            LaneView(
                name=lane.settings.name,
                queued=len(lane),
                running=len(lane.running),
                queue_places=lane.settings.queue_places,
                oldest_wait_s=round(lane.waits_s(now), 1),
                overloaded=lane.overload.lasting,
            )
            for lane in self._dispatcher.admission.state.lanes
        )

    def _rows(self) -> tuple[RowView, ...]:
        rows = self._dispatcher.rows()[:_ROWS_SHOWN]
        return tuple(
            RowView(
                lane=lane,
                tokens=len(each.prompt_ids) + len(each.emitted),
                tokens_max=len(each.prompt_ids) + each.max_tokens,
                attempt=each.attempt,
            )
            for lane, each in rows
        )

    def _memory(self) -> MemoryView:
        hello, progress = self._link.state.hello, self._link.state.progress
        memory = progress.memory if progress else None
        prefixes = progress.prefixes if progress else None
        return MemoryView(
            weights_bytes=hello.facts.weights_bytes if hello else None,
            kv_budget_full_bytes=hello.budget_bytes if hello else None,
            kv_budget_bytes=progress.budget_bytes if progress else None,
            kv_reserved_bytes=self._dispatcher.admission.reserved_bytes,
            kv_held_bytes=progress.kv_bytes if progress else None,
            prefix_kept_bytes=prefixes.kept_bytes if prefixes else None,
            prefix_shared_bytes=prefixes.shared_bytes if prefixes else None,
            prefix_disk_bytes=prefixes.disk_bytes if prefixes else None,
            active_bytes=memory.active_bytes if memory else None,
            cache_bytes=memory.cache_bytes if memory else None,
            peak_bytes=memory.peak_bytes if memory else None,
            footprint_bytes=memory.footprint_bytes if memory else None,
            arrays=progress.engine.arrays if progress else None,
            arrays_max=progress.engine.arrays_max if progress else None,
        )

    def _speed(self) -> SpeedView:
        last = list(self._observer.history.intervals)[-_INTERVALS_OF_NOW:]
        began = [each for each in last if each.ttft_p50_s is not None and each.ttft_p95_s is not None]
        return SpeedView(
            tokens_per_s=round(sum(each.tokens_per_s for each in last) / len(last), 2) if last else 0.0,
            ttft_p50_s=_rounded(sorted(each.ttft_p50_s or 0.0 for each in began)[len(began) // 2])
            if began
            else None,
            ttft_p95_s=_rounded(max(each.ttft_p95_s or 0.0 for each in began)) if began else None,
            refused=sum(each.refused for each in last),
        )

    def _deaths(self) -> list[DeathView]:
        offset = self._wall() - self._clock.now()
        return [
            DeathView(
                at=round(each.at + offset, 1),
                epoch=each.epoch,
                cause=each.cause,
                detail=each.detail[:_DETAIL_CHARS],
                rows=each.rows,
                restart_s=_rounded(each.restart_s),
            )
            for each in self._observer.deaths
        ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
