"""What the loop tells of itself: to the supervisor every turn, to the proxy about once a second."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Final

from shared.limits import PROGRESS_INTERVAL_S
from shared.messages import Hello, Phase, Progress
from shared.readings import EngineReading, PrefixReading
from worker.held_memory import HeldMemory
from worker.outbox import Outbox
from worker.scheduler import Emitted, Ended, Outcome

# The proxy hears at once of a budget that has fallen by more than this share of the full one.
_BUDGET_FALL_SHARE: Final = 0.01


class Reporter:
    """Counts what this life has said, and puts together each turn's Progress."""

    def __init__(
        self, hello: Hello, outbox: Outbox, report: Callable[[Progress], None], memory: HeldMemory
    ) -> None:
        self._hello = hello
        self._outbox = outbox
        self._report = report
        self._memory = memory
        self._ping = 0
        self._tokens = 0
        self._answers = 0
        self._expected_ms = 0.0
        self._told_at = float("-inf")
        self._told_budget_bytes = hello.budget_bytes
        self._told_recycle = False

    def pinged(self, number: int) -> None:
        self._ping = number

    def settled(self, outcomes: Seq[Outcome]) -> None:
        """Count a step's tokens and the answers it ended."""
        self._tokens += sum(isinstance(outcome, Emitted) for outcome in outcomes)
        self._answers += sum(isinstance(outcome, Ended) for outcome in outcomes)

    def tell(
        self,
        now: float,
        phase: Phase,
        *,
        step: int,
        expected_ms: float,
        running: tuple[str, ...],
        kv_bytes: int,
        prefixes: PrefixReading,
        rows_and_groups: tuple[int, int],
    ) -> None:
        """Say what is about to happen. What the turn before had planned may still be under way."""
        orders = self._memory.orders
        progress = Progress(
            epoch=self._hello.epoch,
            step=step,
            phase=phase,
            expected_ms=max(expected_ms, self._expected_ms),
            ping=self._ping,
            running=running,
            kv_bytes=kv_bytes,
            budget_bytes=orders.budget_bytes,
            tokens=self._tokens,
            answers=self._answers,
            wants_recycle=orders.wants_recycle,
            memory=self._memory.reading,
            prefixes=prefixes,
            engine=EngineReading(*rows_and_groups, self._memory.arrays, self._memory.arrays_max),
        )
        self._expected_ms = expected_ms
        self._report(progress)
        if now - self._told_at >= PROGRESS_INTERVAL_S or self._is_urgent(progress):
            self._told_at = now
            self._told_budget_bytes = progress.budget_bytes
            self._told_recycle = progress.wants_recycle
            self._outbox.send(progress)

    def _is_urgent(self, progress: Progress) -> bool:
        fell_bytes = self._told_budget_bytes - progress.budget_bytes
        fell = fell_bytes > _BUDGET_FALL_SHARE * self._hello.budget_bytes
        return fell or progress.wants_recycle > self._told_recycle
