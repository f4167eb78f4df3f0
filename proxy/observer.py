"""Hears what becomes of each answer, and has metrics and the last quarter of an hour know of it.

The dispatcher tells it; nobody asks it anything on a request's way. Times are the clock's, in seconds.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from proxy.admission.instructions import Start
from proxy.admitted import Admitted, LiveSequence
from proxy.status.history import History
from shared.clock import Clock
from shared.errors import Refusal
from shared.messages import DeathCause, Exited, Step
from shared.metrics import Metrics

_DEATHS_KEPT: Final = 20


@dataclass(frozen=True, slots=True)
class Death:
    """One end of a worker, told of `at`. `restart_s` is from losing it to the Hello of the next one."""

    at: float
    epoch: int
    cause: DeathCause
    detail: str
    rows: int
    restart_s: float | None = None


class Observer:
    """One gateway's. Each method is told once for what its name says."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._lost_at: float | None = None
        self.history = History()
        self.deaths: deque[Death] = deque(maxlen=_DEATHS_KEPT)

    # --- answers ------------------------------------------------------------------------------------------

    def started(self, start: Start) -> None:
        self._metrics.started(start)

    def came(self, admitted: Admitted, sequence: LiveSequence) -> None:
        """Take note of a token; it stands in `emitted` already."""
        now = self._clock.now()
        if sequence.lost_at is not None:
            self._metrics.resume_seconds.labels(admitted.lane).observe(now - sequence.lost_at)
        if len(sequence.emitted) == 1:
            self.history.began(now - admitted.arrived_at)
        self.history.came()
        sequence.came_at = now

    def ended(self, admitted: Admitted, sequence: LiveSequence, *, completed: bool) -> None:
        """Take note that an answer is over: its text is complete, it failed, or nobody wants it any more."""

    def failed(self, admitted: Admitted, refusal: Refusal) -> None:
        """Take note of a request that failed after it was let in; once for each request."""
        self.refused(admitted.lane, refusal.code)

    def refused(self, lane: str, code: str) -> None:
        """Take note of a refusal at arrival. The lane is "" where it isn't known."""
        self._metrics.refused.labels(lane, code).inc()
        self.history.refused(code)

    def parked(self, lane: str) -> None:
        self._metrics.parks.labels(lane).inc()

    def resumed(self, lane: str) -> None:
        """Take note of an answer that lost its row to a worker's end and goes on."""
        self._metrics.resumes.labels(lane).inc()

    # --- the worker ---------------------------------------------------------------------------------------

    def stepped(self, step: Step) -> None:
        """Take note of a step, before its tokens are handed on."""

    def worker_came(self) -> None:
        """Take note of how long there was none."""
        if self._lost_at is None:
            return
        restart_s, self._lost_at = self._clock.now() - self._lost_at, None
        if self.deaths and self.deaths[-1].restart_s is None:
            self.deaths[-1] = replace(self.deaths[-1], restart_s=restart_s)

    def worker_went(self) -> None:
        if self._lost_at is None:
            self._lost_at = self._clock.now()

    def died(self, exited: Exited) -> None:
        """Take the supervisor's word on why a worker ended; it may come after the next one is there."""
        self._metrics.deaths.labels(exited.cause).inc()
        now = self._clock.now()
        self.deaths.append(Death(now, exited.epoch, exited.cause, exited.detail, len(exited.rows)))
        self.history.died()
