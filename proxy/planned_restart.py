"""A planned restart of the worker, decided in a pure object: what is seen goes in, what to do comes out.

The gateway carries it out by itself, within a limit of time, so whoever asked for it may leave meanwhile and
nothing stays held.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from shared.messages import Breaker

Phase = Literal["draining", "restarting", "done", "failed"]

# From the order to the old worker's end. It finishes a step first, and its supervisor kills it after a grace.
LEAVING_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What there is to see at one moment.

    `epoch` is that of a worker that is ready, `trouble` how the last one ended, in words.
    """

    now_s: float
    epoch: int | None
    status: str
    breaker: Breaker
    trouble: str
    running: int
    live: int


class PlannedRestart:
    """One of them, from the order to its end. `holds` while nothing new may start."""

    def __init__(self, number: int, sight: Sight, *, drain: bool, timeout_s: float) -> None:
        self.number = number
        self.phase: Phase = "draining"
        self.holds = True
        self.problem: str | None = None
        self._drain = drain
        self._timeout_s = timeout_s
        self._began_s = sight.now_s
        self._sent_s: float | None = None
        self._took_s: float | None = None
        self._old_epoch = sight.epoch
        self._new_epoch: int | None = None
        self._live = sight.live

    @property
    def over(self) -> bool:
        return self.phase in ("done", "failed")

    def observe(self, sight: Sight) -> bool:
        """Take in what is seen; return whether the worker is to be told to restart, now."""
        assert not self.over, "nothing is observed after the end"
        if self.phase == "draining":
            return self._observe_draining(sight)
        self._observe_restarting(sight)
        return False

    def unreachable(self) -> None:
        """Take in that nobody is there who could restart the worker."""
        self._fail("its supervisor can't be reached")

    def abandon(self, why: str) -> None:
        """End it, unless it is over: the gateway does something else now."""
        if not self.over:
            self._fail(why)

    def told(self) -> dict[str, Any]:
        """Return what is known of it, as JSON."""
        return {
            "number": self.number,
            "phase": self.phase,
            "drain": self._drain,
            "old_epoch": self._old_epoch,
            "new_epoch": self._new_epoch,
            "live": self._live,
            "took_s": self._took_s,
            "problem": self.problem,
        }

    def _observe_draining(self, sight: Sight) -> bool:
        if sight.epoch != self._old_epoch:
            self._fail(f"the worker left by itself meanwhile{_because(sight)}; another one comes")
        elif not self._drain or sight.running == 0:
            self.phase, self._sent_s, self._live = "restarting", sight.now_s, sight.live
            return True
        elif self._is_late(sight):
            still = f"{sight.running} answer{'s' if sight.running > 1 else ''} still ran"
            self._fail(f"{still} after {self._timeout_s:g} s; nothing is held any more, and the worker stays")
        return False

    def _observe_restarting(self, sight: Sight) -> None:
        assert self._sent_s is not None, "it restarts after the order"
        waited_s = sight.now_s - self._sent_s
        if sight.epoch == self._old_epoch:
            if waited_s > LEAVING_S:
                self._fail(f"the worker is still there {LEAVING_S:g} s after the order; it goes on")
            return
        self.holds = False
        if sight.epoch is not None:
            self.phase, self._new_epoch, self._took_s = "done", sight.epoch, round(waited_s, 2)
        elif sight.breaker == "open":
            self._fail(f"the new worker died, and the breaker is open{_because(sight)}")
        elif self._is_late(sight):
            words = f"no worker was ready after {self._timeout_s:g} s: it is {sight.status}"
            self._fail(f"{words}{_because(sight)}")

    def _is_late(self, sight: Sight) -> bool:
        return sight.now_s - self._began_s > self._timeout_s

    def _fail(self, problem: str) -> None:
        self.phase, self.holds, self.problem = "failed", False, problem


def why_not(sight: Sight) -> str | None:
    """Return why no restart can begin now; None if one can."""
    if sight.epoch is not None:
        return None
    if sight.breaker == "open":
        return f"the breaker is open, and no worker is started{_because(sight)}"
    return f"there is no worker to replace: it is {sight.status}{_because(sight)}"


def _because(sight: Sight) -> str:
    return f" (the last one: {sight.trouble})" if sight.trouble else ""
