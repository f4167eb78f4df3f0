"""Between admission and the wire: who runs where, what came back, and what happens when a worker dies.

Every token an answer was given is kept here, so an interrupted answer is submitted again with prompt and
emitted ids and goes on from the token it stopped at.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from proxy.admission.charging import Share
from proxy.admission.core import Admission
from proxy.admission.instructions import Park, Refuse, Start
from proxy.admitted import Admitted, Event, LiveSequence, TokenCame
from proxy.deaths import Deaths
from proxy.live_answers import Link, LiveAnswers, newcomer_of, sequences_of
from proxy.observer import Observer
from proxy.quarantine import Quarantine
from proxy.request import Measured, Ticket
from shared import messages
from shared.clock import Clock
from shared.errors import Draining, InvalidRequest, Loading, Refusal, Unavailable
from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.logs import Logger
from shared.messages import (
    CALM,
    Cancel,
    Care,
    Exited,
    Failed,
    Finished,
    Hello,
    Parked,
    Prefixes,
    Progress,
    Step,
    Submit,
)
from shared.model_facts import ModelFacts

_DRAIN_RETRY_S: Final = 5.0


class Dispatcher:
    """Holds every live sequence. Hears the worker through the link, and the clients through `admit`.

    Whatever happens is told to admission, whose instructions are then carried out.
    """

    def __init__(
        self,
        link: Link,
        admission: Admission,
        quarantine: Quarantine,
        *,
        resumes_max: int,
        stop_ids: tuple[int, ...],
        clock: Clock,
        observer: Observer,
        log: Logger,
    ) -> None:
        self._link = link
        self._admission = admission
        self.quarantine = quarantine
        self._stop_ids = stop_ids
        self._clock = clock
        self._observer = observer
        self._log = log
        self._live = LiveAnswers(link, admission, observer, clock)
        self._deaths = Deaths(self._live, admission, quarantine, resumes_max, clock=clock, log=log)
        self._numbers = itertools.count(1)
        self._has_had_worker = False
        self._care = CALM
        self._starts_at = 0.0
        self._warned_of: int | None = None
        self.draining = False
        self.emptied = self._live.emptied
        self.stale_words = 0
        self.resumed = 0

    # --- clients ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def arriving(self, answers: int, ticket: Ticket) -> Iterator[None]:
        """Hold places for answers while they are measured; a Refusal if they can't be queued now."""
        self._check_open()
        announcement = self._admission.announced(
            ticket.lane.name, ticket.caller.key_id, answers, ticket.deadline_s, self._clock.now()
        )
        try:
            yield
        finally:
            self._admission.measured(announcement)

    def _check_open(self) -> None:
        if self.draining:
            raise Draining("the server takes nothing new for now", retry_after_s=_DRAIN_RETRY_S)
        if self._care.breaker == "open":
            message = "no worker runs: the last ones died too fast, and another one is tried in a while"
            raise Unavailable(message, retry_after_s=self._starts_at - self._clock.now())
        if not self._has_had_worker:
            raise Loading("the model is being loaded", retry_after_s=self._restart_s)

    def admit(self, measured: Measured, request_id: str, arrived_at: float | None = None) -> Admitted:
        """Queue all answers of a request, or raise a Refusal that says why not and when to come back.

        `arrived_at` is when the request came; by default now.
        """
        self._check_open()
        self.quarantine.refuse(measured.fingerprints)
        events: asyncio.Queue[Event] = asyncio.Queue()
        now, ticket = self._clock.now(), measured.ticket
        # Clients choose request ids, and may choose the same one twice.
        sequences = tuple(sequences_of(measured, f"{request_id}/{next(self._numbers)}", events))
        self._admission.arrived(ticket.lane.name, [newcomer_of(each, ticket) for each in sequences], now)
        came_at = now if arrived_at is None else arrived_at
        admitted = Admitted(measured, sequences, events, came_at, now, self._release, ticket.lane.name)
        self._live.add(admitted)
        self.tick()
        return admitted

    def reconfigure(self, lanes: Sequence[LaneSettings], settings: AdmissionSettings) -> None:
        """Go on with other lanes."""
        self._admission.reconfigured(lanes, settings)
        self.tick()

    @property
    def held(self) -> bool:
        """Whether nothing new is started, while what runs goes on and newcomers queue."""
        return self._admission.held

    @held.setter
    def held(self, held: bool) -> None:
        self._admission.held = held

    def fail_all(self, refusal: Refusal) -> None:
        """End whatever is queued or runs with a refusal."""
        for sequence in self._live:
            self._live.give_up(sequence, refusal)

    @property
    def live(self) -> int:
        """How many answers are queued or run."""
        return len(self._live)

    def rows(self) -> list[tuple[str, LiveSequence]]:
        """Return the answers that hold a row, each with its lane; to be read."""
        return [(lane, self._live[name]) for lane, name in self._admission.state.rows()]

    @property
    def admission(self) -> Admission:
        """What decides; to be read, not told anything."""
        return self._admission

    @property
    def facts(self) -> ModelFacts | None:
        """The last worker's facts, None before the first."""
        ledger = self._admission.state.ledger
        return ledger.facts if ledger else None

    @property
    def _restart_s(self) -> float:
        return self._admission.state.restarts.restart_s

    # --- the worker (LinkEvents) --------------------------------------------------------------------------

    def worker_came(self, hello: Hello) -> None:
        self._has_had_worker = True
        self._observer.worker_came()
        self._admission.worker_measured(hello.prefill_ms_per_token, hello.decode_ms_per_step)
        self._admission.worker_came(hello.facts, hello.budget_bytes, hello.slots, self._clock.now())
        self.tick()

    def worker_delayed(self, starts_at: float) -> None:
        """Take note that no worker is started before a time."""
        self._starts_at = starts_at
        self._admission.worker_delayed(starts_at)

    def cautioned(self, care: Care) -> None:
        """Give the next workers less to do, or more again, as their supervisor advises."""
        self._care = care
        self._admission.cautioned(care.rung, one_at_a_time=care.breaker == "half_open")
        self.tick()

    def worker_went(self, cause: str) -> None:
        """Put what ran back in front of its lane. Whose fault it was shows when its supervisor says so."""
        now = self._clock.now()
        self._observer.worker_went()
        self._admission.worker_went(now)
        running = self._live.running()
        for sequence in running:
            sequence.lost_at = now if sequence.lost_at is None else sequence.lost_at
        self._interrupt(running, cause)
        self.tick()

    def worker_died(self, exited: Exited) -> None:
        """Take the supervisor's word on why a worker ended, some time after `worker_went`."""
        self._observer.died(exited)
        self._deaths.died(exited)
        self.tick()

    def stepped(self, step: Step) -> None:
        """Hand each row's token on, and tell admission what the step took."""
        lost: list[LiveSequence] = []
        came: list[str] = []
        self._observer.stepped(step)
        logprobs = {each.place: each for each in step.logprobs}
        for place, row in enumerate(step.rows):
            sequence = self._live.current(row.sequence, row.attempt)
            if sequence is None or row.index < len(sequence.emitted) or sequence.full:
                self.stale_words += 1
            elif row.index > len(sequence.emitted):
                lost.append(sequence)
            else:
                sequence.emitted.append(row.token)
                self._observer.came(self._live.owner(sequence), sequence)
                sequence.lost_at = None
                sequence.events.put_nowait(TokenCame(sequence.answer, row.token, logprobs.get(place)))
                came.append(row.sequence)
        shares = [*self._shares(step)]
        self._admission.stepped(came, step.step_ms, step.row_ms, shares, self._clock.now())
        self._recover(lost, "tokens were lost on the wire")
        self.tick()

    def _shares(self, step: Step) -> Iterator[Share]:
        """Yield what was prefilled of what runs. The client is told what its first share found there."""
        for share in step.prefills:
            sequence = self._live.current(share.sequence, share.attempt)
            if sequence is not None:
                if sequence.cached_tokens is None:
                    sequence.cached_tokens = share.cached
                self._observer.prefilled(self._live.owner(sequence), share)
                yield Share(share.sequence, share.tokens, share.gpu_ms, share.cached)

    def finished(self, finished: Finished) -> None:
        sequence = self._live.current(finished.sequence, finished.attempt)
        if sequence is None:
            self.stale_words += 1
            return
        if finished.index != len(sequence.emitted):
            self._recover([sequence], "tokens were lost on the wire")
        else:
            self._live.finish(sequence, finished.reason)
        self.tick()

    def failed(self, failed: Failed) -> None:
        sequence = self._live.current(failed.sequence, failed.attempt)
        if sequence is not None:
            self._live.fail(sequence, InvalidRequest(failed.message))
            self.tick()

    def parked(self, parked: Parked) -> None:
        """Queue an answer again whose row the worker has given up; it goes on from the token it is at."""
        sequence = self._live.current(parked.sequence, parked.attempt)
        if sequence is None:
            self.stale_words += 1
            return
        if parked.index != len(sequence.emitted) or sequence.park_pinged is None:
            self._recover([sequence], "tokens were lost on the wire")
        else:
            self._end_park(sequence)
        self.tick()

    def progressed(self, progress: Progress) -> None:
        """Set right what the wire lost: a sequence that only one side holds, or a park or its answer."""
        held = set(progress.running)
        lost, parked = [], []
        for sequence in self._live.running():
            if sequence.park_pinged is not None and sequence.park_pinged < progress.ping:
                parked.append(sequence)
            elif sequence.pinged < progress.ping and sequence.name not in held:
                lost.append(sequence)
        for sequence in parked:
            self._link.send(Cancel(progress.epoch, sequence.name))
            self._end_park(sequence)
        self._recover(lost, "the worker doesn't hold it")
        for name in (name for name in held if name not in self._live):
            self._link.send(Cancel(progress.epoch, name))
        self._watch_memory(progress)
        self._admission.squeezed(progress.budget_bytes)
        self.tick()

    def keeps(self, news: Prefixes) -> None:
        """Pass on what the worker keeps of prompts: what needn't be computed again starts earlier."""
        self._admission.keeps(news.added, news.gone)

    def _end_park(self, sequence: LiveSequence) -> None:
        """Queue an answer again whose row is given up, by the worker's word or without; a full one ends."""
        sequence.running = False
        sequence.park_pinged = None
        if sequence.full:
            self._live.finish(sequence, "length")
            return
        if self._deaths.too_many(sequence):
            self._live.fail(sequence, self._deaths.crashed(sequence, "it was begun too often"))
            return
        sequence.parks += 1
        sequence.ran_on = None
        self._observer.parked(self._live.owner(sequence))
        self._admission.parked(sequence.name, self._clock.now())

    def _watch_memory(self, progress: Progress) -> None:
        """Say so, once in a worker's life, if its caches hold more than its budget: its facts are too low.

        More than is reserved is nothing strange: the batch gives back room late, while it is within budget.
        Nor is more than a budget that has just shrunk: what runs doesn't.
        """
        ledger = self._admission.state.ledger
        if ledger is None or progress.kv_bytes <= ledger.full_bytes or self._warned_of == progress.epoch:
            return
        self._warned_of = progress.epoch
        self._log.warning(
            "KV caches hold more than their budget",
            held_bytes=progress.kv_bytes,
            budget_bytes=ledger.full_bytes,
            reserved_bytes=self._admission.reserved_bytes,
        )

    # --- carrying out -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Carry out what admission decides now. To be called now and then, too: deadlines just pass."""
        for instruction in self._admission.decide(self._clock.now()):
            match instruction:
                case Start():
                    self._observer.started(instruction)
                    self._submit(self._live[instruction.name])
                case Park(name):
                    self._park(self._live[name])
                case Refuse(name, lane, refusal):
                    self._live.owner(self._live[name]).lane = lane
                    self._live.fail(self._live[name], refusal)

    def _submit(self, sequence: LiveSequence) -> None:
        epoch = self._link.epoch
        assert epoch is not None, "admission starts nothing without a worker"
        admitted = self._live.owner(sequence)
        lane = self._admission.state.lane_of[sequence.name]
        if admitted.started_at is None:
            admitted.started_at = self._clock.now()
        admitted.lane = lane.settings.name
        sequence.attempt += 1
        sequence.running = True
        sequence.ran_on = epoch
        sequence.pinged = self._link.ping
        self._link.send(
            Submit(
                epoch=epoch,
                sequence=sequence.name,
                attempt=sequence.attempt,
                prompt_ids=sequence.prompt_ids,
                emitted_ids=tuple(sequence.emitted),
                max_tokens=sequence.max_tokens,
                stop_ids=() if admitted.measured.parsed.ignores_eos else self._stop_ids,
                sampling=sequence.sampling,
                rank=lane.rank,
                quantum_ms=lane.settings.prefill_quantum_ms * self._admission.caution.quantum_share,
                salt=admitted.measured.ticket.salt,
            )
        )

    def _park(self, sequence: LiveSequence) -> None:
        assert self._link.epoch is not None, "without a worker there are no rows"
        sequence.park_pinged = self._link.ping
        self._link.send(messages.Park(self._link.epoch, sequence.name))

    # --- interrupting and ending --------------------------------------------------------------------------

    def _interrupt(self, sequences: list[LiveSequence], cause: str) -> None:
        going_on = []
        for sequence in sequences:
            sequence.running = False
            sequence.park_pinged = None
            if sequence.full:
                self._live.finish(sequence, "length")
            elif self._deaths.too_many(sequence):
                self._live.fail(sequence, self._deaths.crashed(sequence, cause))
            else:
                going_on.append(sequence.name)
        self._admission.interrupted(going_on, self._clock.now())
        self.resumed += len(going_on)
        for name in going_on:
            self._observer.resumed(self._live.owner(self._live[name]))

    def _recover(self, sequences: list[LiveSequence], cause: str) -> None:
        """Run sequences again from what they have, while the worker goes on with the others."""
        for sequence in sequences:
            self._log.warning("sequence is run again", sequence=sequence.name, cause=cause)
            self._live.cancel(sequence)
            self._deaths.interrupted(sequence)
            sequence.ran_on = None
        self._interrupt(sequences, cause)

    def _release(self, sequence: LiveSequence, *, complete: bool) -> None:
        """Whoever waits for this sequence wants no more of it; a second time does nothing."""
        if self._live.release(sequence, complete=complete):
            self.tick()
