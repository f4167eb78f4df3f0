"""The deciding core: pure, told of events with their times, answering with instructions.

Three currencies decide. Bytes: may it enter the batch? (`ledger`) Time of the device: when will it start, and
whose turn is it? (`estimate`, `fairness`) Count: rows, and places in queues (`lane`). Nothing here awaits,
and nothing outside changes what is kept here.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from proxy.admission import charging, last_row, parking
from proxy.admission.answer import Answer, Newcomer, Patience, Standing
from proxy.admission.charging import Share
from proxy.admission.gate import Announcement, Gate
from proxy.admission.instructions import Instruction, Park, Refuse, Start
from proxy.admission.lane import Lane
from proxy.admission.ledger import Ledger
from proxy.admission.order import next_exchange, next_start
from proxy.admission.outlook import answer_s, come_back_s
from proxy.admission.state import State
from shared.errors import ContextTooLong, Overloaded, QueueTimeout, Refusal
from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.model_facts import ModelFacts

_RECHECK_S: Final = 0.25


class Admission:
    """Who waits, who runs, and what they may take. `state` is to be read by others, and changed here only."""

    def __init__(self, lanes: Sequence[LaneSettings], settings: AdmissionSettings) -> None:
        self.state = State()
        self._gate = Gate(self.state)
        self._numbers = 0
        self._recheck_at = float("inf")
        self.reconfigured(lanes, settings)

    @property
    def queued(self) -> int:
        return sum(map(len, self.state.lanes))

    @property
    def running(self) -> int:
        """Count the answers that hold a row."""
        return self.state.running

    @property
    def reserved_bytes(self) -> int:
        return self.state.ledger.reserved_bytes if self.state.ledger else 0

    # --- clients ------------------------------------------------------------------------------------------

    def announced(
        self, lane_name: str, key: str, answers: int, deadline_s: float, now: float
    ) -> Announcement:
        """Hold places for answers that are measured now, or raise a Refusal: the gate before tokenising."""
        return self._gate.announced(self.state.lane_named(lane_name), key, answers, deadline_s, now)

    def measured(self, announcement: Announcement) -> None:
        """Take back what was announced: it arrives now, or never will."""
        self._gate.measured(announcement)

    def arrived(self, lane_name: str, newcomers: Sequence[Newcomer], now: float) -> None:
        """Queue all answers of one request, or none: then a Refusal says why, and when to come back."""
        lane = self.state.lane_named(lane_name)
        estimates = self._gate.check(lane, newcomers, now)
        patience = Patience(now + newcomers[0].deadline_s)
        self._recheck_at = min(self._recheck_at, now + newcomers[0].deadline_s)
        last_row.asked(self.state.keys_asked, newcomers[0].key, now)
        for newcomer, estimated_s in zip(newcomers, estimates, strict=True):
            assert newcomer.name not in self.state.answers
            self._numbers += 1
            answer = Answer(newcomer, self._numbers, patience, now, estimated_s)
            self.state.answers[answer.name] = answer
            self.state.lane_of[answer.name] = lane
            lane.counters.entered(answer.key)
            lane.sizes.add(newcomer.tokens)
            lane.prompts.add(newcomer.prompt_tokens)
            lane.append(answer, now)

    def ended(self, name: str, *, completed: bool) -> None:
        """Forget an answer, wherever it stands: its place and its bytes are free from now on."""
        answer = self.state.answers.get(name)
        if answer is None:
            return
        lane = self.state.lane_of[name]
        if answer.standing is Standing.QUEUED:
            lane.remove(answer)
        else:
            # Who leaves in the middle of a prefill has had it: a share of it may still be on its way here.
            self._take_row(answer, lane, refund=completed)
        if completed:
            lane.lengths.answered(answer.emitted)
            if answer.remaining:
                lane.ended_early()
        lane.counters.left(answer.key)
        del self.state.answers[name], self.state.lane_of[name]

    # --- the worker ---------------------------------------------------------------------------------------

    def worker_came(self, facts: ModelFacts, budget_bytes: int, slots: int, now: float) -> None:
        """Admit to a worker from now on. Nothing may run: what ran on the one before was interrupted."""
        assert not self.running, "answers still run on the worker before"
        self.state.ledger = Ledger(facts, budget_bytes, slots)
        self.state.has_worker = True
        self.state.restarts.came(now)
        self._recheck_at = now

    def worker_measured(self, prefill_ms_per_token: float, decode_ms_per_step: float) -> None:
        """Take a worker's own first measurements for its speed, until it is seen at work."""
        self.state.speeds.worker_came(prefill_ms_per_token, decode_ms_per_step)

    def worker_delayed(self, starts_at: float) -> None:
        """Take note that no worker is started before a time."""
        self.state.restarts.delayed(starts_at)

    def worker_went(self, now: float) -> None:
        """Start nothing; newcomers queue. The ledger stays, for what could never fit."""
        self.state.has_worker = False
        self.state.restarts.lost(now)
        self._recheck_at = now

    def stepped(
        self, names: Sequence[str], step_ms: float, row_ms: float, prefills: Iterable[Share], now: float
    ) -> None:
        """Take note of a step: a token for each of these answers, and what was prefilled since the last."""
        charging.charge_prefills(self.state, prefills, now)
        charging.charge_step(self.state, names, step_ms, row_ms, now)

    def interrupted(self, names: Sequence[str], now: float) -> None:
        """Put running answers back, in front of their lanes: their rows are gone."""
        for name in names:
            answer, lane = self.state.answers[name], self.state.lane_of[name]
            self._take_row(answer, lane, refund=True)
            lane.put_front(answer, now)

    def parked(self, name: str, now: float) -> None:
        """Queue an answer again, in front of its lane: the worker has parked it, as it was asked to."""
        answer, lane = self.state.answers[name], self.state.lane_of[name]
        assert answer.standing is Standing.PARKING, f"{name} was not to be parked"
        self._take_row(answer, lane, refund=True)
        lane.put_front(answer, now)

    def _take_row(self, answer: Answer, lane: Lane, *, refund: bool) -> None:
        """Take an answer's row and bytes, or forget that it is being parked."""
        if answer.standing is Standing.PARKING:
            del lane.parking[answer.name]
            return
        del lane.running[answer.name]
        if refund:
            charging.give_back(answer, lane)
        assert self.state.ledger is not None
        self.state.ledger.release(answer.name)

    # --- deciding -----------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Instruction]:
        """Return what is to be done now, and count it as done. Call it after each event, and now and then."""
        instructions: list[Instruction] = []
        if now >= self._recheck_at:
            instructions += self._refuse_late(now)
        if self.state.has_worker:
            while victims := parking.for_growth(self.state, now):
                instructions += map(self._park, victims)
            instructions += self._starts(now)
            while (exchange := next_exchange(self.state, now)) is not None:
                instructions += map(self._park, exchange.parked)
                instructions += [self._start(each, exchange.lane, now) for each in exchange.starting]
                instructions += self._starts(now)
        return instructions

    def _starts(self, now: float) -> Iterator[Start]:
        while (found := next_start(self.state, now)) is not None:
            yield self._start(*found, now)

    def _start(self, answer: Answer, lane: Lane, now: float) -> Start:
        assert self.state.ledger is not None
        waited_s, first = now - answer.queued_at, answer.starts == 0
        if first:
            lane.overload.started(waited_s, now)
            self.state.calibration.started(answer.estimated_wait_s, waited_s)
        lane.remove(answer)
        self.state.ledger.reserve(answer.name, self.state.tokens_for(answer))
        lane.running[answer.name] = answer
        lane.last_start_at = now
        answer.standing = Standing.RUNNING
        answer.patience.deadline_at = None
        answer.started_at = now
        answer.starts += 1
        answer.emitted_at_start = answer.emitted
        answer.prefilled = 0
        charging.prepay(self.state, answer, lane)
        return Start(answer.name, lane.settings.name, waited_s, answer.estimated_wait_s, first)

    def _park(self, answer: Answer) -> Park:
        lane = self.state.lane_of[answer.name]
        self._take_row(answer, lane, refund=True)
        answer.standing = Standing.PARKING
        answer.parks += 1
        lane.parking[answer.name] = answer
        return Park(answer.name, lane.settings.name)

    def _refuse_late(self, now: float) -> Iterator[Refuse]:
        """Refuse those whose time is over, or will be before a worker is there; and what fits no more."""
        left_s = self.state.restarts.left_s(now)
        self._recheck_at = now + _RECHECK_S if left_s else float("inf")
        for lane in self.state.lanes:
            for answer in lane.queued():
                refusal = self._problem_with(answer, lane, left_s, now)
                if refusal is not None:
                    yield Refuse(answer.name, lane.settings.name, refusal)
                    self.ended(answer.name, completed=False)
                elif answer.patience.deadline_at is not None:
                    self._recheck_at = min(self._recheck_at, answer.patience.deadline_at)

    def _problem_with(self, answer: Answer, lane: Lane, left_s: float, now: float) -> Refusal | None:
        if not self.state.could_ever_fit(answer.newcomer.tokens):
            message = "the worker that came back has too little memory for this request; lower max_tokens"
            return ContextTooLong(message, param="max_tokens")
        deadline_at = answer.patience.deadline_at
        if deadline_at is None or now + left_s < deadline_at:
            return None
        if now < deadline_at:
            message = (
                f"the worker restarts, and is not expected in the {answer.newcomer.deadline_s:g} s allowed"
            )
            return Overloaded(message, retry_after_s=self._after_restart_s(lane, left_s, now))
        message = f"nothing of this request could start within the {answer.newcomer.deadline_s:g} s allowed"
        return QueueTimeout(message, retry_after_s=come_back_s(self.state, lane, answer.newcomer, 1, now))

    def _after_restart_s(self, lane: Lane, left_s: float, now: float) -> float:
        return self.state.promises.next_s(left_s, answer_s(self.state, lane), now)

    # --- settings -----------------------------------------------------------------------------------------

    def reconfigured(self, lanes: Sequence[LaneSettings], settings: AdmissionSettings) -> None:
        """Go on with these lanes. The answers of one that is gone go on in the lowest."""
        before = {lane.settings.name: lane for lane in self.state.lanes}
        self.state.lanes = []
        for rank, each in enumerate(lanes):
            lane = before.pop(each.name, None)
            if lane is None:
                lane = Lane(each, rank, settings)
            else:
                lane.configure(each, rank, settings)
            self.state.lanes.append(lane)
        for gone in before.values():
            self._merge(gone, self.state.lanes[-1])

    def _merge(self, gone: Lane, lowest: Lane) -> None:
        for answer in [*gone.running.values(), *gone.parking.values(), *gone.queued()]:
            self.state.lane_of[answer.name] = lowest
            lowest.counters.entered(answer.key)
            lowest.counters.charge(answer.key, answer.prepaid_ms, answer.newcomer.weight)
        lowest.running.update(gone.running)
        lowest.parking.update(gone.parking)
        for answer in gone.queued():
            if answer.starts:
                lowest.put_front(answer, answer.queued_at)
            else:
                lowest.append(answer, answer.queued_at)
