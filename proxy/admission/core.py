"""The deciding core: pure, told of events with their times, answering with who may start now.

One queue, in order of arrival, bounded by count; whoever is at its head starts as soon as the worker has a
slot and the ledger has the bytes. Nothing here awaits, and nothing else changes queue or ledger.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy.admission.estimate import Estimate
from proxy.admission.ledger import Ledger
from proxy.admission.queue import Queue, Waiting
from shared.errors import ContextTooLong, InvalidRequest, Overloaded
from shared.messages import ModelFacts


@dataclass(frozen=True, slots=True)
class _Running:
    waiting: Waiting
    started_at: float


class Admission:
    """Who waits, who runs, and what they may take."""

    def __init__(self, places: int, estimate: Estimate) -> None:
        self._queue = Queue(places)
        self._estimate = estimate
        self._running: dict[str, _Running] = {}
        self._ledger: Ledger | None = None
        self._slots = 0
        self._slots_last = 1
        self._announced = 0

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def reserved_bytes(self) -> int:
        return self._ledger.reserved_bytes if self._ledger else 0

    def announced(self, answers: int) -> None:
        """Count answers that are being measured, or refuse them: the gate before any tokenising.

        What may be measured at a time is what queue and free slots together may take.
        """
        free = max(0, self._slots - len(self._running))
        if not self._queue.has_room(self._announced + answers - free):
            raise self._overloaded(answers)
        self._announced += answers

    def measured(self, answers: int) -> None:
        """Take back what was announced: it arrives now, or never will."""
        self._announced -= answers

    def arrived(self, answers: Sequence[Waiting]) -> None:
        """Queue all answers of one request, or none: Overloaded says when to come back."""
        self._refuse_what_never_fits(answers)
        if len(answers) > self._queue.places:
            raise InvalidRequest(
                f"{len(answers)} answers in one request; at most {self._queue.places} may wait here",
                param="n",
            )
        if not self._queue.has_room(len(answers)):
            raise self._overloaded(len(answers))
        for waiting in answers:
            self._queue.append(waiting)

    def starts(self, now: float) -> list[str]:
        """Return who starts now, in order, and count them as running."""
        started = []
        while (head := self._queue.head()) is not None and self._may_start(head):
            assert self._ledger is not None
            self._queue.remove(head.name)
            self._ledger.reserve(head.name, head.tokens)
            self._running[head.name] = _Running(head, now)
            started.append(head.name)
        return started

    def misfits(self) -> list[str]:
        """Take out and return those at the head that no longer fit even an empty worker."""
        found = []
        while (head := self._queue.head()) is not None and self._ledger is not None:
            if self._ledger.could_ever_fit(head.tokens):
                break
            self._queue.remove(head.name)
            found.append(head.name)
        return found

    def ended(self, name: str, now: float, *, completed: bool) -> None:
        """Forget an answer, wherever it stands: its place and its bytes are free from now on."""
        self._queue.remove(name)
        running = self._running.pop(name, None)
        if running is not None:
            if completed:
                self._estimate.answer_took(now - running.started_at)
            if self._ledger is not None:
                self._ledger.release(name)

    def interrupted(self, names: Sequence[str]) -> None:
        """Put running answers back, in front of the queue: their rows are gone."""
        back = [self._running.pop(name).waiting for name in names]
        for waiting in back:
            if self._ledger is not None:
                self._ledger.release(waiting.name)
        self._queue.put_first(back)

    def worker_came(self, facts: ModelFacts, budget_bytes: int, slots: int) -> None:
        """Admit to a worker from now on. Nothing may run: what ran on the one before was interrupted."""
        assert not self._running, "answers still run on the worker before"
        self._ledger = Ledger(facts, budget_bytes)
        self._slots = self._slots_last = slots

    def worker_went(self) -> None:
        """Admit nothing; newcomers queue. The ledger stays, for what could never fit."""
        self._slots = 0

    def _overloaded(self, answers: int) -> Overloaded:
        return Overloaded(
            f"{len(self._queue)} answers wait already; this request's {answers} find no place",
            retry_after_s=self._estimate.wait_s(len(self._queue), self._slots_last),
        )

    def _may_start(self, head: Waiting) -> bool:
        ledger = self._ledger
        return ledger is not None and ledger.rows < self._slots and ledger.fits(head.tokens)

    def _refuse_what_never_fits(self, answers: Sequence[Waiting]) -> None:
        if self._ledger is None:
            return
        for waiting in answers:
            if not self._ledger.could_ever_fit(waiting.tokens):
                raise ContextTooLong(
                    f"prompt and answer may take {waiting.tokens} tokens, which don't fit in the "
                    f"{self._ledger.budget_bytes >> 20} MiB that this machine has for them; lower max_tokens",
                    param="max_tokens",
                )
