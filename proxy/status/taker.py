"""Takes snapshots of a gateway, and closes the intervals of its history."""

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

from proxy.dispatch import Dispatcher
from proxy.observer import Observer
from proxy.prompt_use import PromptUse
from proxy.status.history import INTERVAL_S, INTERVALS_OF_NOW, Interval, Levels
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
from shared.limits import RUNG_MAX

_ROWS_SHOWN: Final = 256
_QUARANTINED_SHOWN: Final = 20
_DETAIL_CHARS: Final = 300
# By so much two clocks may differ over an interval, and neither was set.
_SLEWED_S: Final = 0.5


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
        self._version = version("forebay")  # Read from disk.
        self._link = link
        self._dispatcher = dispatcher
        self._observer = observer
        self._prompts = prompts
        self._clock = clock
        self._wall = wall
        self._began = clock.now()
        self._closed_at = clock.now()
        self._draining_since: float | None = None

    def tick(self) -> None:
        """Close the interval of the history if it is over; to be called more often than that."""
        now = self._clock.now()
        self._note_draining(now)
        if now - self._closed_at < INTERVAL_S:
            return
        self._closed_at = now
        progress = self._link.state.progress
        admission = self._dispatcher.admission
        levels = Levels(admission.queued, admission.running, progress.kv_bytes if progress else 0)
        self._observer.history.close(now, levels, self._wall())

    def snapshot(self) -> Snapshot:
        prompts = self._prompts()
        quarantine = self._dispatcher.quarantine
        intervals = list(self._observer.history.intervals)
        return Snapshot(
            time=round(self._wall(), 3),
            gateway=self._gateway(),
            worker=self._worker(),
            lanes=self._lanes(),
            rows=self._rows(),
            memory=self._memory(),
            speed=self._speed(),
            deaths=tuple(self._deaths()),
            quarantined=len(quarantine),
            quarantine=tuple(
                QuarantinedView(
                    each.fingerprint, each.at, each.until, each.cause, each.lane, each.prompt_tokens
                )
                for each in quarantine.newest(_QUARANTINED_SHOWN)
            ),
            suspects=len(self._dispatcher.admission.state.trials.waiting),
            prompt_tokens=prompts.tokens,
            cached_tokens=prompts.cached,
            recent=self._columns(intervals[-INTERVALS_OF_NOW:]),
        )

    @property
    def newest(self) -> Interval | None:
        """The last interval that is over: as long as it is the same, so is the history."""
        intervals = self._observer.history.intervals
        return intervals[-1] if intervals else None

    def history(self) -> HistoryView:
        return self._columns(list(self._observer.history.intervals))

    # --- parts --------------------------------------------------------------------------------------------

    def _columns(self, intervals: list[Interval]) -> HistoryView:
        return HistoryView(
            interval_s=INTERVAL_S,
            time=tuple(round(each, 1) for each in self._times(intervals)),
            tokens_per_s=tuple(round(each.tokens_per_s, 2) for each in intervals),
            ttft_p50_s=tuple(_rounded(each.ttft_p50_s) for each in intervals),
            ttft_p95_s=tuple(_rounded(each.ttft_p95_s) for each in intervals),
            queued=tuple(each.levels.queued for each in intervals),
            running=tuple(each.levels.running for each in intervals),
            kv_bytes=tuple(each.levels.kv_bytes for each in intervals),
            refused=tuple(each.refused for each in intervals),
            deaths=tuple(each.deaths for each in intervals),
        )

    def _times(self, intervals: list[Interval]) -> list[float]:
        """Return when each ended in Unix seconds, always ascending.

        As the wall clock was then: what was before the machine slept, or before its clock was set forward, is
        that long ago. A clock that was set back puts what was before only as far back as it was.
        """
        times: list[float] = []
        later_at, later_end = self._wall(), self._clock.now()
        for each in reversed(intervals):
            steady_at = later_at - (later_end - each.end)
            was_set_back = each.at is not None and each.at > steady_at + _SLEWED_S
            later_at = steady_at if each.at is None or was_set_back else each.at
            later_end = each.end
            times.append(later_at)
        return times[::-1]

    def _note_draining(self, now: float) -> None:
        """Remember since when it has drained: nobody else needs to."""
        if not self._dispatcher.draining:
            self._draining_since = None
        elif self._draining_since is None:
            self._draining_since = now

    def _gateway(self) -> GatewayView:
        state, now = self._link.state, self._clock.now()
        self._note_draining(now)
        since = state.since if self._draining_since is None else self._draining_since
        return GatewayView(
            status="draining" if self._dispatcher.draining else state.status,
            since_s=round(now - since, 1),
            uptime_s=round(now - self._began, 1),
            version=self._version,
            model=self._model,
            draining=self._dispatcher.draining,
            held=self._dispatcher.held,
            live=self._dispatcher.live,
            resumed=self._dispatcher.resumed,
        )

    def _worker(self) -> WorkerView:
        state = self._link.state
        hello, progress = state.hello, state.progress
        retry_at, ledger = state.retry_at, self._dispatcher.admission.state.ledger
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
            slots_now=ledger.slots if hello and ledger else None,
            rung_max=RUNG_MAX,
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
                target_wait_s=lane.settings.target_wait_s,
                deadline_s=lane.settings.deadline_s,
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
        last = list(self._observer.history.intervals)[-INTERVALS_OF_NOW:]
        p50, p95 = self._observer.history.ttft_lately_s()
        return SpeedView(
            tokens_per_s=round(sum(each.tokens_per_s for each in last) / len(last), 2) if last else 0.0,
            ttft_p50_s=_rounded(p50),
            ttft_p95_s=_rounded(p95),
            refused=sum(each.refused for each in last),
        )

    def _deaths(self) -> list[DeathView]:
        return [
            DeathView(
                at=round(each.at, 1),
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
