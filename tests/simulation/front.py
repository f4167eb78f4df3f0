"""The proxy's side: does what admission says and tells it what happened, in a dispatcher's order."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from proxy.admission.answer import Newcomer
from proxy.admission.charging import Share
from proxy.admission.core import Admission
from proxy.admission.instructions import Instruction, Park, Start
from shared.errors import Quarantined, Refusal, WorkerCrashed
from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.limits import RESUMES_MAX
from shared.messages import Cancel, Submit
from shared.messages import Park as ParkWord
from shared.model_facts import ModelFacts
from shared.sampling import Sampling
from tests.simulation.clock import Clock
from tests.simulation.costs import Costs
from tests.simulation.device import STOP, Report
from tests.simulation.request import Request
from worker.scheduler import Emitted

_RESTART_RETRY_S = 10.0


class Watcher(Protocol):
    """Sees all that happens at the proxy, as it happens."""

    def offered(self, request: Request) -> None: ...
    def queued(self, request: Request) -> None: ...
    def token(self, request: Request, index: int, token: int) -> None: ...
    def put_back(self, request: Request) -> None: ...
    def ended(self, request: Request) -> None: ...
    def decided(self, instructions: Sequence[Instruction]) -> None: ...


class Front:
    """Holds every live request. `send` takes a word to the worker that is there."""

    def __init__(
        self,
        lanes: Sequence[LaneSettings],
        settings: AdmissionSettings,
        clock: Clock,
        costs: Costs,
        send: Callable[[Submit | Cancel | ParkWord], None],
    ) -> None:
        self.admission = Admission(lanes, settings)
        self.lanes = {lane.name: lane for lane in lanes}
        self._ranks = {lane.name: rank for rank, lane in enumerate(lanes)}
        self._clock = clock
        self._costs = costs
        self._send = send
        self.watchers: list[Watcher] = []
        self.live: dict[str, Request] = {}
        self.epoch = 0
        self.has_worker = False
        self.prefilled_tokens = 0
        self.recomputed_tokens = 0
        self.served_ms: dict[str, float] = {}
        self.quarantined: set[str] = set()

    # --- clients ------------------------------------------------------------------------------------------

    def offer(self, requests: Sequence[Request], measured_after_s: float = 0.0) -> None:
        """Take one request in, with all its answers; it is measured for a while, between two gates."""
        first, now = requests[0], self._clock.now
        for request in requests:
            request.came_at = now
            request.beside = requests
            for watcher in self.watchers:
                watcher.offered(request)
        try:
            self._refuse_quarantined(requests)
            announcement = self.admission.announced(
                first.lane, first.key, len(requests), first.deadline_s, now
            )
        except Refusal as refusal:
            self._refuse_all(requests, refusal)
            return

        def arrive() -> None:
            self.admission.measured(announcement)
            self._arrive([request for request in requests if not request.ended])

        if measured_after_s:
            self._clock.after(measured_after_s, arrive)
        else:
            arrive()

    def _arrive(self, requests: Sequence[Request]) -> None:
        if not requests:
            return
        newcomers = [_newcomer(request) for request in requests]
        try:
            self.admission.arrived(requests[0].lane, newcomers, self._clock.now)
        except Refusal as refusal:
            self._refuse_all(requests, refusal)
            return
        for request in requests:
            request.queued = True
            request.queued_at = self._clock.now
            self.live[request.name] = request
            for watcher in self.watchers:
                watcher.queued(request)
        self.decide()

    def _refuse_quarantined(self, requests: Sequence[Request]) -> None:
        if any(request.asks in self.quarantined for request in requests if request.asks):
            raise Quarantined("it killed the worker before")

    def _refuse_all(self, requests: Sequence[Request], refusal: Refusal) -> None:
        for request in requests:
            request.refusal = refusal
            self._end(request)

    def leave(self, request: Request) -> None:
        """Let a client go, whatever its request is at."""
        if request.ended:
            return
        if request.running:
            self._send(Cancel(self.epoch, request.name))
        if request.name in self.live:
            self.admission.ended(request.name, completed=False)
        self._end(request)
        self.decide()

    # --- the worker ---------------------------------------------------------------------------------------

    def worker_came(self, facts: ModelFacts, budget_bytes: int, slots: int) -> None:
        self.epoch += 1
        self.has_worker = True
        self.admission.worker_came(facts, budget_bytes, slots, self._clock.now)
        self.decide()

    def worker_went(self, *, planned: bool = False) -> None:
        """Put back what ran; unless it was on purpose, what was interrupted too often ends."""
        self.has_worker = False
        self.admission.worker_went(self._clock.now)
        going_on = []
        for request in [each for each in self.live.values() if each.running]:
            request.interruptions += not planned
            if request.interruptions > RESUMES_MAX:
                request.refusal = WorkerCrashed("lost too often", retry_after_s=_RESTART_RETRY_S)
                self.admission.ended(request.name, completed=False)
                self._end(request)
            else:
                going_on.append(request)
        self.admission.interrupted([request.name for request in going_on], self._clock.now)
        for request in going_on:
            self._put_back(request)
        self.decide()

    def worker_died(self, places: dict[str, int]) -> None:
        """Judge a death by who was in the worker's last step; end whoever asks what the guilty one asked."""
        known = {name: place for name, place in places.items() if name in self.live}
        guilty = self.admission.died(known, self._clock.now)
        if guilty is not None:
            self.quarantined.add(guilty)
            for request in [each for each in self.live.values() if (each.asks or each.name) == guilty]:
                request.refusal = Quarantined("it killed the worker when it ran alone")
                self.admission.ended(request.name, completed=False)
                self._end(request)
        self.decide()

    def heard(self, report: Report) -> None:
        """Take in what a turn brought, then decide."""
        admission, now = self.admission, self._clock.now
        row_ms = report.step_ms / report.rows if report.rows else 0.0
        self._step(report.firsts, 0.0, 0.0, self._shares(report))
        self._step(report.emitted, report.step_ms, row_ms, [])
        for ended in report.ended:
            request = self._current(ended.sequence.name, ended.sequence.attempt)
            if request:
                request.completed = True
                admission.ended(request.name, completed=True)
                self._end(request)
        for sequence in report.parked:
            request = self._current(sequence.name, sequence.attempt)
            if request:
                admission.parked(request.name, now)
                self._put_back(request)
        self.decide()

    def _step(self, emitted: list[Emitted], step_ms: float, row_ms: float, shares: list[Share]) -> None:
        """Take in a token for each of these rows, and what was prefilled."""
        named = [(each, self._current(each.sequence.name, each.sequence.attempt)) for each in emitted]
        came = [(each, request) for each, request in named if request]
        names = [request.name for _, request in came]
        self.admission.stepped(names, step_ms, row_ms, shares, self._clock.now)
        for each, request in came:
            self._take_token(request, each.index, each.token)
            self._serve(request, row_ms)

    def _shares(self, report: Report) -> list[Share]:
        shares = []
        for chunk in report.chunks:
            request = self._current(chunk.sequence.name, chunk.sequence.attempt)
            if request:
                request.prefilled += chunk.tokens
                fresh = max(0, request.prefilled - request.computed)
                request.computed += fresh
                self.prefilled_tokens += chunk.tokens
                self.recomputed_tokens += chunk.tokens - min(chunk.tokens, fresh)
                self._serve(request, self._costs.prefill_ms(chunk.tokens))
                shares.append(Share(request.name, chunk.tokens, self._costs.prefill_ms(chunk.tokens)))
        return shares

    def _serve(self, request: Request, gpu_ms: float) -> None:
        self.served_ms[request.key] = self.served_ms.get(request.key, 0.0) + gpu_ms

    def _take_token(self, request: Request, index: int, token: int) -> None:
        for watcher in self.watchers:
            watcher.token(request, index, token)
        request.tokens.append(token)
        request.computed = request.prefilled = request.prompt_tokens + len(request.tokens) - 1
        if request.first_token_at is None:
            request.first_token_at = self._clock.now
        request.last_token_at = self._clock.now

    def _current(self, name: str, attempt: int) -> Request | None:
        request = self.live.get(name)
        return request if request and request.running and request.attempt == attempt else None

    # --- doing --------------------------------------------------------------------------------------------

    def decide(self) -> None:
        instructions = self.admission.decide(self._clock.now)
        for instruction in instructions:
            request = self.live[instruction.name]
            if isinstance(instruction, Start):
                self._start(request)
            elif isinstance(instruction, Park):
                request.parks += 1
                self._send(ParkWord(self.epoch, request.name))
            else:
                request.refusal = instruction.refusal
                self._end(request)
        for watcher in self.watchers:
            watcher.decided(instructions)

    def _start(self, request: Request) -> None:
        request.running = True
        request.attempt += 1
        request.prefilled = 0
        if request.first_start_at is None:
            request.first_start_at = self._clock.now
        self._send(
            Submit(
                epoch=self.epoch,
                sequence=request.name,
                attempt=request.attempt,
                prompt_ids=(1,) * request.prompt_tokens,
                emitted_ids=tuple(request.tokens),
                max_tokens=request.max_tokens,
                stop_ids=(STOP,),
                sampling=Sampling(seed=request.length),
                rank=self._ranks[request.lane],
                quantum_ms=self.lanes[request.lane].prefill_quantum_ms,
            )
        )

    def _put_back(self, request: Request) -> None:
        request.running = False
        for watcher in self.watchers:
            watcher.put_back(request)

    def _end(self, request: Request) -> None:
        assert not request.ended, f"{request.name} ended twice"
        request.ended = True
        request.running = False
        request.ended_at = self._clock.now
        self.live.pop(request.name, None)
        for watcher in self.watchers:
            watcher.ended(request)
        if request.finished is not None:
            self._clock.after(0.0, partial(request.finished, request))


def _newcomer(request: Request) -> Newcomer:
    return Newcomer(
        request.name,
        request.key,
        request.weight,
        request.prompt_tokens,
        request.max_tokens,
        request.deadline_s,
        request.asks or request.name,
    )
