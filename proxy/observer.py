"""Hears what becomes of each answer, and has metrics and the last quarter of an hour know of it.

The dispatcher tells it; nobody asks it anything on a request's way. Times are the clock's, in seconds.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from proxy.admission.instructions import Start
from proxy.admitted import Admitted, LiveSequence
from proxy.prompt_use import prompt_use
from proxy.status.history import History
from shared import metrics_table as table
from shared.clock import Clock
from shared.errors import Refusal
from shared.messages import DeathCause, Exited, PrefillShare, Step
from shared.metrics import Metrics, Place

_DEATHS_KEPT: Final = 20


@dataclass(frozen=True, slots=True)
class Death:
    """One end of a worker, told of `at`, in Unix seconds; it was lost at the clock's `lost_at`.

    `restart_s` is from then to the Hello of the next one that says it, None until that is there.
    """

    at: float
    lost_at: float
    epoch: int
    cause: DeathCause
    detail: str
    rows: int
    restart_s: float | None = None


class Observer:
    """One gateway's. Each method is told once for what its name says. `wall` returns Unix seconds."""

    def __init__(self, metrics: Metrics, clock: Clock, wall: Callable[[], float] = time.time) -> None:
        self.metrics = metrics
        self._clock = clock
        self._wall = wall
        self._lost_at: float | None = None  # since when there is none, after one that was there
        self._is_there = False
        self._restart_s = 0.0  # how long there was none, the last time
        self._place_of: dict[str, Place] = {}  # of answers that are queued or run, by name
        self._step = metrics.histogram(table.STEP)
        self.history = History()
        self.deaths: deque[Death] = deque(maxlen=_DEATHS_KEPT)

    def _place(self, admitted: Admitted) -> Place:
        return self.metrics.place(admitted.lane, admitted.measured.ticket.caller.key_class)

    # --- answers ------------------------------------------------------------------------------------------

    def admitted(self, admitted: Admitted) -> None:
        """Take note of a request that was let in."""
        self._place(admitted).admitted.inc()
        self._place_of |= dict.fromkeys((each.name for each in admitted.sequences), self._place(admitted))

    def key_class_of(self, name: str) -> str:
        """Return the key class of an answer that is queued or runs, as metrics tell it."""
        return self._place_of[name].labels[1]

    def started(self, start: Start) -> None:
        """Take note of a start, in a lane that a reload may have changed."""
        self._place_of[start.name] = self.metrics.place(start.lane, self.key_class_of(start.name))
        self.metrics.started(start, self.key_class_of(start.name))

    def prefilled(self, admitted: Admitted, share: PrefillShare) -> None:
        """Take note of what the worker computed for an answer before it could go on."""
        place = self._place(admitted)
        place.prefilled.inc(share.tokens)
        if share.attempt > 1:
            place.wasted[table.RECOMPUTED].inc(share.tokens)

    def came(self, admitted: Admitted, sequence: LiveSequence) -> None:
        """Take note of a token; it stands in `emitted` already."""
        now = self._clock.now()
        if sequence.lost_at is not None:
            self.metrics.histogram(table.RESUME).labels(admitted.lane).observe(now - sequence.lost_at)
            admitted.note("resumed", now)
        times = self._place_of[sequence.name].times
        if sequence.came_at is None:
            times.first.observe(now - admitted.arrived_at)
            self.history.began(now - admitted.arrived_at)
        else:
            times.gaps.observe(now - sequence.came_at)
        self.history.came()
        admitted.first_at = now if admitted.first_at is None else admitted.first_at
        sequence.came_at = now

    def ended(self, admitted: Admitted, sequence: LiveSequence, *, completed: bool) -> None:
        """Take note that an answer is over: its text is complete, it failed, or nobody wants it any more.

        With a request's last one it is known what its prompts took.
        """
        place, tokens = self._place(admitted), len(sequence.emitted)
        del self._place_of[sequence.name]
        if not any(each.name in self._place_of for each in admitted.sequences):
            prompts = prompt_use(admitted)
            place.prompt_tokens.inc(prompts.tokens)
            place.cached_tokens.inc(prompts.cached)
        if completed:
            place.ended[table.COMPLETED].inc()
            place.goodput.inc(tokens)
            place.whole.observe(self._clock.now() - admitted.arrived_at)
            return
        outcome = table.LEFT if admitted.failed_at is None and not admitted.broke else table.FAILED
        place.ended[outcome].inc()
        place.wasted[outcome].inc(tokens)

    def failed(self, admitted: Admitted, refusal: Refusal) -> None:
        """Take note of a request that failed after it was let in; once for each request."""
        admitted.failed_code = refusal.code
        self.refused(admitted.lane, refusal.code, admitted.measured.ticket.caller.key_class)

    def refused(self, lane: str, code: str, key_class: str = "") -> None:
        """Take note of a refusal at arrival. Lane and key class are "" where they aren't known."""
        self.metrics.refused(lane, key_class, code)
        self.history.refused(code)

    def parked(self, admitted: Admitted) -> None:
        self._place(admitted).parks.inc()
        admitted.note("parked", self._clock.now())

    def resumed(self, admitted: Admitted) -> None:
        """Take note of an answer that lost its row to a worker's end and goes on."""
        self._place(admitted).resumes.inc()
        admitted.note("interrupted", self._clock.now())

    # --- the worker ---------------------------------------------------------------------------------------

    def stepped(self, step: Step) -> None:
        """Take note of a step, before its tokens are handed on; what prefill brings took none of its own."""
        if step.rows and step.step_ms:
            self._step.observe(step.step_ms / 1000)

    def worker_came(self) -> None:
        """Take note of how long there was none, and that all ends so far have been followed by a worker."""
        now, lost_at = self._clock.now(), self._lost_at
        self._is_there, self._lost_at = True, None
        self.metrics.counter(table.STARTS).inc()
        for place, each in enumerate(self.deaths):
            if each.restart_s is None:
                self.deaths[place] = replace(each, restart_s=now - each.lost_at)
        if lost_at is not None:
            self._restart_s = now - lost_at
            self.metrics.histogram(table.RESTART).observe(self._restart_s)

    def worker_went(self) -> None:
        self._is_there = False
        if self._lost_at is None:
            self._lost_at = self._clock.now()

    def died(self, exited: Exited) -> None:
        """Take the supervisor's word on why a worker ended; it may come after the next one is there."""
        self.metrics.counter(table.DEATHS).labels(exited.cause).inc()
        restart_s = self._restart_s if self._is_there else None
        lost_at, rows = self._lost_when_told(), len(exited.rows)
        death = Death(self._wall(), lost_at, exited.epoch, exited.cause, exited.detail, rows, restart_s)
        self.deaths.append(death)
        if exited.cause != "planned":
            self.history.died()

    def _lost_when_told(self) -> float:
        """Return when the worker went whose end is told now: only the first one since then was there."""
        told_already = any(each.restart_s is None for each in self.deaths)
        return self._clock.now() if self._lost_at is None or told_already else self._lost_at

    # --- the proxy itself ---------------------------------------------------------------------------------

    def ticked(self, late_s: float) -> None:
        """Take note of how late the clock ticked, which is how long the event loop was busy."""
        self.metrics.histogram(table.LAG).observe(max(0.0, late_s))

    def cut_off(self, reason: str) -> None:
        """Take note of a connection that was ended or turned away, and why."""
        self.metrics.counter(table.CUT_OFF).labels(reason).inc()
