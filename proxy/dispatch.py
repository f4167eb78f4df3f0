"""Between admission and the wire: who runs where, what came back, and what happens when a worker dies.

Every token an answer was given is kept here, so an interrupted answer is submitted again with prompt and
emitted ids and goes on from the token it stopped at.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from proxy.admission.core import Admission
from proxy.admission.estimate import Estimate
from proxy.admission.queue import Waiting
from proxy.admitted import Admitted, AnswerEnded, Event, LiveSequence, RequestFailed, TokenCame
from proxy.request import Measured
from proxy.worker_link import WorkerLink
from shared.clock import Clock
from shared.config import ProxySettings
from shared.errors import ContextTooLong, Draining, InvalidRequest, Loading, Refusal, WorkerCrashed
from shared.logs import Logger
from shared.messages import Cancel, Failed, Finished, FinishReason, Hello, Progress, Step, Submit
from shared.sampling import Sampling

_DRAIN_RETRY_S: Final = 5.0


class Dispatcher:
    """Holds every live sequence. Hears the worker through the link, and the clients through `admit`."""

    def __init__(
        self,
        link: WorkerLink,
        settings: ProxySettings,
        *,
        stop_ids: tuple[int, ...],
        clock: Clock,
        log: Logger,
    ) -> None:
        self._link = link
        self._settings = settings
        self._stop_ids = stop_ids
        self._clock = clock
        self._log = log
        self._estimate = Estimate()
        self._admission = Admission(settings.queue_places, self._estimate)
        self._live: dict[str, LiveSequence] = {}
        self._owners: dict[str, Admitted] = {}
        self._numbers = itertools.count(1)
        self._lost_at: float | None = None
        self._has_had_worker = False
        self.draining = False
        self.emptied = asyncio.Event()
        self.emptied.set()
        self.stale_words = 0
        self.resumed = 0

    # --- clients ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def arriving(self, answers: int) -> Iterator[None]:
        """Hold places for answers while they are measured; Draining, Loading or Overloaded before that."""
        self._check_open()
        self._admission.announced(answers)
        try:
            yield
        finally:
            self._admission.measured(answers)

    def _check_open(self) -> None:
        if self.draining:
            raise Draining("the server is going down", retry_after_s=_DRAIN_RETRY_S)
        if not self._has_had_worker:
            raise Loading("the model is being loaded", retry_after_s=self._estimate.restart_s)

    def admit(self, measured: Measured, request_id: str) -> Admitted:
        """Queue all answers of a request, or refuse it: Overloaded, ContextTooLong, Draining, Loading."""
        self._check_open()
        events: asyncio.Queue[Event] = asyncio.Queue()
        # Clients choose request ids, and may choose the same one twice.
        sequences = tuple(_sequences(measured, f"{request_id}/{next(self._numbers)}", events))
        self._admission.arrived([_waiting(sequence) for sequence in sequences])
        admitted = Admitted(measured, sequences, events, self._clock.now(), self._release)
        self.emptied.clear()
        for sequence in sequences:
            self._live[sequence.name] = sequence
            self._owners[sequence.name] = admitted
        self._start_whoever_may()
        return admitted

    @property
    def live(self) -> int:
        """How many answers are queued or run."""
        return len(self._live)

    @property
    def queued(self) -> int:
        return self._admission.queued

    @property
    def reserved_bytes(self) -> int:
        return self._admission.reserved_bytes

    # --- the worker (LinkEvents) --------------------------------------------------------------------------

    def worker_came(self, hello: Hello) -> None:
        if self._lost_at is not None:
            self._estimate.restart_took(self._clock.now() - self._lost_at)
            self._lost_at = None
        self._has_had_worker = True
        self._admission.worker_came(hello.facts, hello.budget_bytes, hello.slots)
        self._start_whoever_may()

    def worker_went(self, cause: str) -> None:
        """Put what ran back in front of the queue; what was interrupted too often ends with an error."""
        self._lost_at = self._clock.now()
        self._admission.worker_went()
        self._interrupt([sequence for sequence in self._live.values() if sequence.running], cause)

    def stepped(self, step: Step) -> None:
        for row in step.rows:
            sequence = self._current(row.sequence, row.attempt)
            if sequence is None or row.index < len(sequence.emitted) or sequence.full:
                self.stale_words += 1
            elif row.index > len(sequence.emitted):
                self._recover(sequence, "tokens were lost on the wire")
            else:
                sequence.emitted.append(row.token)
                sequence.events.put_nowait(TokenCame(sequence.answer, row.token))

    def finished(self, finished: Finished) -> None:
        sequence = self._current(finished.sequence, finished.attempt)
        if sequence is None:
            self.stale_words += 1
        elif finished.index != len(sequence.emitted):
            self._recover(sequence, "tokens were lost on the wire")
        else:
            self._finish(sequence, finished.reason)

    def failed(self, failed: Failed) -> None:
        sequence = self._current(failed.sequence, failed.attempt)
        if sequence is not None:
            self._fail(sequence, InvalidRequest(failed.message))

    def progressed(self, progress: Progress) -> None:
        """Set right what the wire lost: a sequence that only one side holds."""
        held = set(progress.running)
        for sequence in [live for live in self._live.values() if live.running]:
            if sequence.pinged < progress.ping and sequence.name not in held:
                self._recover(sequence, "the worker doesn't hold it")
        for name in held - self._live.keys():
            self._link.send(Cancel(progress.epoch, name))

    # --- starting and ending ------------------------------------------------------------------------------

    def _start_whoever_may(self) -> None:
        for name in self._admission.misfits():
            message = "the worker that came back has too little memory for this request; lower max_tokens"
            self._fail(self._live[name], ContextTooLong(message, param="max_tokens"))
        for name in self._admission.starts(self._clock.now()):
            self._submit(self._live[name])

    def _submit(self, sequence: LiveSequence) -> None:
        epoch = self._link.epoch
        assert epoch is not None, "admission starts nothing without a worker"
        admitted = self._owners[sequence.name]
        if admitted.started_at is None:
            admitted.started_at = self._clock.now()
        sequence.attempt += 1
        sequence.running = True
        sequence.pinged = self._link.ping
        self._link.send(
            Submit(
                epoch=epoch,
                sequence=sequence.name,
                attempt=sequence.attempt,
                prompt_ids=sequence.prompt_ids,
                emitted_ids=tuple(sequence.emitted),
                max_tokens=sequence.max_tokens,
                stop_ids=self._stop_ids,
                sampling=sequence.sampling,
            )
        )

    def _interrupt(self, sequences: list[LiveSequence], cause: str) -> None:
        going_on = []
        for sequence in sequences:
            sequence.running = False
            sequence.interruptions += 1
            if sequence.full:
                self._finish(sequence, "length")
            elif sequence.interruptions > self._settings.resumes_max:
                self._fail(sequence, self._crashed(sequence, cause))
            else:
                going_on.append(sequence.name)
        self._admission.interrupted(going_on)
        self.resumed += len(going_on)

    def _crashed(self, sequence: LiveSequence, cause: str) -> WorkerCrashed:
        message = f"the worker was lost {sequence.interruptions} times under this request, at last: {cause}"
        return WorkerCrashed(message, retry_after_s=self._estimate.restart_s)

    def _recover(self, sequence: LiveSequence, cause: str) -> None:
        """Run one sequence again from what it has, while the worker goes on with the others."""
        self._log.warning("sequence is run again", sequence=sequence.name, cause=cause)
        if self._link.epoch is not None:
            self._link.send(Cancel(self._link.epoch, sequence.name))
        self._interrupt([sequence], cause)
        self._start_whoever_may()

    def _finish(self, sequence: LiveSequence, reason: FinishReason) -> None:
        sequence.events.put_nowait(AnswerEnded(sequence.answer, reason))
        self._forget(sequence, completed=True)

    def _fail(self, sequence: LiveSequence, refusal: Refusal) -> None:
        sequence.events.put_nowait(RequestFailed(refusal))
        self._forget(sequence, completed=False)

    def _release(self, sequence: LiveSequence) -> None:
        """Whoever waits for this sequence wants no more of it; a second time does nothing."""
        if self._live.get(sequence.name) is not sequence:
            return
        if sequence.running and self._link.epoch is not None:
            self._link.send(Cancel(self._link.epoch, sequence.name))
        self._forget(sequence, completed=False)

    def _forget(self, sequence: LiveSequence, *, completed: bool) -> None:
        sequence.running = False
        del self._live[sequence.name], self._owners[sequence.name]
        if not self._live:
            self.emptied.set()
        self._admission.ended(sequence.name, self._clock.now(), completed=completed)
        self._start_whoever_may()

    def _current(self, name: str, attempt: int) -> LiveSequence | None:
        sequence = self._live.get(name)
        return sequence if sequence is not None and sequence.running and sequence.attempt == attempt else None


def _sequences(measured: Measured, prefix: str, events: asyncio.Queue[Event]) -> Iterable[LiveSequence]:
    """Make one sequence for each choice of each prompt, in the order of the answers' indices."""
    parsed = measured.parsed
    for prompt, (ids, max_tokens) in enumerate(zip(measured.prompt_ids, measured.max_tokens, strict=True)):
        for choice in range(parsed.choices):
            answer = prompt * parsed.choices + choice
            sampling: Sampling = replace(parsed.sampling, choice=choice)
            yield LiveSequence(f"{prefix}/{answer}", answer, ids, max_tokens, sampling, events)


def _waiting(sequence: LiveSequence) -> Waiting:
    return Waiting(sequence.name, len(sequence.prompt_ids) + sequence.max_tokens)
