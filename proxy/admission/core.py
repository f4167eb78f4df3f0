"""The deciding core: pure, told of events with their times, answering with instructions.

Three currencies decide. Bytes: may it enter the batch? (`ledger`) Time of the device: when will it start, and
whose turn is it? (`estimate`, `fairness`) Count: rows, and places in queues (`lane`). Nothing here awaits,
and nothing outside changes what is kept here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from proxy.admission import charging, last_row, lateness, parking
from proxy.admission.answer import Answer, Newcomer, Patience, Standing
from proxy.admission.caution import RUNGS
from proxy.admission.changed_lanes import change_lanes
from proxy.admission.charging import Share
from proxy.admission.gate import Announcement, Gate
from proxy.admission.instructions import Instruction, Park, Refuse, Start
from proxy.admission.lane import Lane
from proxy.admission.ledger import Ledger
from proxy.admission.order import next_exchange, next_start
from proxy.admission.state import State
from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.model_facts import ModelFacts


class Admission:
    """Who waits, who runs, and what they may take. `state` is to be read by others, and changed here only.

    While `held` nothing is started; what runs goes on.
    """

    def __init__(self, lanes: Sequence[LaneSettings], settings: AdmissionSettings) -> None:
        self.state = State()
        self._gate = Gate(self.state)
        self._numbers = 0
        self._recheck_at = float("inf")
        self._offered_slots = 1
        self._told_bytes = 0
        self._one_at_a_time = False
        self.caution = RUNGS[0]
        self.held = False
        self.reconfigured(lanes, settings)

    @property
    def queued(self) -> int:
        return sum(map(len, self.state.lanes)) + len(self.state.trials.waiting)

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
            answer.cached = self.state.prefixes.expected_tokens(
                newcomer.names, newcomer.prompt_tokens, lane.rank
            )
            answer.shareable = newcomer.shareable_in(lane.settings.name)
            self.state.prefixes.arrived(newcomer.names, lane.rank)
            self.state.answers[answer.name] = answer
            self.state.lane_of[answer.name] = lane
            lane.counters.entered(answer.key)
            lane.sizes.add(newcomer.tokens)
            lane.prompts.add(answer.uncached_tokens)
            if self.state.trials.suspects(answer, now):
                self._suspect(answer, now)
            else:
                lane.append(answer, now)

    def ended(self, name: str, *, completed: bool) -> None:
        """Forget an answer, wherever it stands: its place and its bytes are free from now on."""
        answer = self.state.answers.get(name)
        if answer is None:
            return
        lane = self.state.lane_of[name]
        if self.state.trials.on_trial is answer:
            self._end_trial(passed=completed and answer.standing is Standing.RUNNING)
        if answer.standing is Standing.QUEUED:
            lane.remove(answer)
        elif answer.standing is Standing.SUSPECT:
            self._take_suspect(answer, lane)
        else:
            # Who leaves in the middle of a prefill has had it: a share of it may still be on its way here.
            self._take_row(answer, lane, refund=completed)
        if completed:
            lane.lengths.answered(answer.emitted)
            if answer.remaining:
                lane.ended_early()
        self.state.prefixes.left(answer.newcomer.names, lane.rank)
        lane.counters.left(answer.key)
        del self.state.answers[name], self.state.lane_of[name]

    # --- the worker ---------------------------------------------------------------------------------------

    def worker_came(self, facts: ModelFacts, budget_bytes: int, slots: int, now: float) -> None:
        """Admit to a worker from now on. Nothing may run: what ran on the one before was interrupted."""
        assert not self.running, "answers still run on the worker before"
        self.state.ledger = Ledger(facts, budget_bytes, slots)
        self.state.prefixes.worker_came(facts)
        self._offered_slots, self._told_bytes = slots, budget_bytes
        self._limit()
        self.state.has_worker = True
        self.state.trials.worker_came(now)
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
        self.state.prefixes.forget()
        self.state.restarts.lost(now)
        self._recheck_at = now

    def keeps(self, added: Sequence[int], gone: Sequence[int]) -> None:
        """Take note of what the worker keeps of prompts, and of what it keeps no more, by blocks' names."""
        self.state.prefixes.told(added, gone)

    def cautioned(self, rung: int, *, one_at_a_time: bool) -> None:
        """Give the worker less to do from now on, or more again, as its supervisor advises."""
        self.caution = RUNGS[rung]
        self._one_at_a_time = one_at_a_time
        self._limit()

    def squeezed(self, budget_bytes: int) -> None:
        """Take note of what the worker's KV caches may take now, by its own reading of the memory."""
        self._told_bytes = budget_bytes
        self._limit()

    def _limit(self) -> None:
        for lane in self.state.lanes:
            lane.overcommits = self.caution.overcommits
        ledger = self.state.ledger
        if ledger is not None:
            budget_bytes = min(self._told_bytes, int(ledger.full_bytes * self.caution.budget_share))
            slots = 1 if self._one_at_a_time else self.caution.slots(self._offered_slots)
            ledger.limit(budget_bytes, slots)

    def died(
        self,
        places: Mapping[str, int],
        now: float,
        *,
        left: Mapping[str, str] | None = None,
        alone: bool = True,
    ) -> str | None:
        """Take note of who was in the step in which the worker died; return the fingerprint of the guilty.

        A place is the index of the token that was to be made next, by the answer's name. `left` are the
        fingerprints of those among them whose clients have left; `alone` says that no others ran.
        Call it when they are queued again. Suspects wait for a trial from now on, in which each runs alone;
        those that ask the same do, too.
        """
        trials = self.state.trials
        asked = {name: self._fingerprint(name, left or {}) for name in places}
        ran = {name: (asked[name], place) for name, place in places.items()}
        guilty = trials.died(ran, now, alone=alone and len(ran) == 1)
        for lane in self.state.lanes:
            for answer in lane.queued():
                if trials.suspects(answer, now):
                    lane.remove(answer)
                    self._suspect(answer, now)
        return guilty

    def _fingerprint(self, name: str, left: Mapping[str, str]) -> str:
        return left[name] if name in left else self.state.answers[name].newcomer.fingerprint

    def _suspect(self, answer: Answer, now: float) -> None:
        answer.standing = Standing.SUSPECT
        self.state.trials.wait(answer, now)
        self.state.lane_of[answer.name].put_aside(answer)

    def _take_suspect(self, answer: Answer, lane: Lane) -> None:
        del self.state.trials.waiting[answer.name]
        lane.take_from_aside(answer)

    def stepped(
        self, names: Sequence[str], step_ms: float, row_ms: float, prefills: Iterable[Share], now: float
    ) -> None:
        """Take note of a step: a token for each of these answers, and what was prefilled since the last."""
        charging.charge_prefills(self.state, prefills, now)
        charging.charge_step(self.state, names, step_ms, row_ms, now)
        if self.state.trials.has_passed():
            self._end_trial(passed=True)

    def _end_trial(self, *, passed: bool) -> None:
        trials = self.state.trials
        for alike in trials.acquit() if passed else ():
            lane = self.state.lane_of[alike.name]
            self._take_suspect(alike, lane)
            self._queue_again(alike, lane, alike.queued_at)
        trials.on_trial = None

    def _queue_again(self, answer: Answer, lane: Lane, now: float) -> None:
        """Queue an answer that has no row: in front if it ever had one, or for its trial."""
        if self.state.trials.suspects(answer, now):
            self._suspect(answer, now)
        elif answer.starts:
            lane.put_front(answer, now)
        else:
            answer.standing = Standing.QUEUED
            lane.append(answer, answer.queued_at)

    def interrupted(self, names: Sequence[str], now: float) -> None:
        """Put running answers back, in front of their lanes: their rows are gone."""
        for name in names:
            answer, lane = self.state.answers[name], self.state.lane_of[name]
            self._take_row(answer, lane, refund=True)
            answer.queued_at = now
            self._queue_again(answer, lane, now)

    def parked(self, name: str, now: float) -> None:
        """Queue an answer again, in front of its lane: the worker has parked it, as it was asked to."""
        answer, lane = self.state.answers[name], self.state.lane_of[name]
        assert answer.standing is Standing.PARKING, f"{name} was not to be parked"
        self._take_row(answer, lane, refund=True)
        answer.queued_at = now
        self._queue_again(answer, lane, now)

    def _take_row(self, answer: Answer, lane: Lane, *, refund: bool) -> None:
        """Take an answer's row and bytes, or forget that it is being parked. That breaks a trial off."""
        if self.state.trials.on_trial is answer:
            self._end_trial(passed=False)
        if answer.standing is Standing.PARKING:
            del lane.parking[answer.name]
            return
        del lane.running[answer.name]
        self.state.prefixes.stopped(answer.newcomer.names)
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
            instructions += map(self._park, parking.for_shortage(self.state, now))
            while victims := parking.for_growth(self.state, now):
                instructions += map(self._park, victims)
            if not self.held:
                instructions += self._next(now)
        return instructions

    def _next(self, now: float) -> Iterator[Instruction]:
        """Start who may start: one on trial and nobody else, or whoever's turn it is.

        Others go before a trial until it is due, and it begins earlier only where none of them runs or can.
        """
        trials, suspect = self.state.trials, self.state.next_suspect()
        tried = trials.on_trial
        if tried is not None and tried.standing is Standing.RUNNING:
            if trials.overstays(now) and any(map(len, self.state.lanes)):
                yield self._park(tried, counts=False)
                trials.adjourn(now)
            return
        if suspect is None or (trials.on_trial is None and now < trials.due_at):
            trials.on_trial = None
            yield from self._turns(now)
            if self.state.holds_rows:
                return
        if suspect is not None:
            yield from self._trial(suspect, now)

    def _turns(self, now: float) -> Iterator[Instruction]:
        yield from self._starts(now)
        while (exchange := next_exchange(self.state, now)) is not None:
            for parked, answer in exchange.turns:
                yield from map(self._park, parked)
                yield self._start(answer, exchange.lane, now)
            yield from self._starts(now)

    def _trial(self, suspect: Answer, now: float) -> Iterator[Instruction]:
        """Begin the next trial. What runs beside is parked, whatever its lane says, and must have gone first.

        Else the worker may still be at a step of that when the trial's first one is under way.
        """
        self.state.trials.on_trial = suspect
        self.state.trials.due_at = min(self.state.trials.due_at, now)  # The others follow at once.
        for row in [row for lane in self.state.lanes for row in lane.running.values()]:
            yield self._park(row, counts=False)
        if not self.state.holds_rows:
            lane = self.state.lane_of[suspect.name]
            self._take_suspect(suspect, lane)
            self.state.trials.began(suspect)
            yield self._start(suspect, lane, now)

    def _starts(self, now: float) -> Iterator[Start]:
        while (found := next_start(self.state, now)) is not None:
            yield self._start(*found, now)

    def _start(self, answer: Answer, lane: Lane, now: float) -> Start:
        assert self.state.ledger is not None
        waited_s, first = now - answer.queued_at, answer.starts == 0
        if first:
            lane.overload.started(waited_s, now)
            self.state.calibration.started(answer.estimated_wait_s, waited_s)
        if answer.standing is Standing.QUEUED:
            lane.remove(answer)
        newcomer, prefixes = answer.newcomer, self.state.prefixes
        self.state.ledger.reserve(answer.name, self._tokens_to_start(answer), answer.shareable)
        answer.cached = prefixes.cached_tokens(newcomer.names, newcomer.prompt_tokens)
        prefixes.started(newcomer.names)
        lane.running[answer.name] = answer
        lane.last_start_at = now
        answer.standing = Standing.RUNNING
        answer.patience.deadline_at = None
        answer.started_at = now
        answer.starts += 1
        answer.emitted_at_start = answer.emitted
        answer.prefilled, answer.begun = 0, False
        charging.prepay(self.state, answer, lane)
        return Start(answer.name, lane.settings.name, waited_s, answer.estimated_wait_s, first)

    def _tokens_to_start(self, answer: Answer) -> int:
        """Return the tokens to reserve. Who is on trial has the worker to itself, and isn't parked."""
        tokens = answer.newcomer.tokens
        if (
            answer is self.state.trials.on_trial
            and self.state.ledger
            and self.state.ledger.fits_alone(tokens)
        ):
            return tokens
        return self.state.tokens_for(answer)

    def _park(self, answer: Answer, *, counts: bool = True) -> Park:
        lane = self.state.lane_of[answer.name]
        self._take_row(answer, lane, refund=True)
        answer.standing = Standing.PARKING
        answer.parks += counts
        lane.parking[answer.name] = answer
        return Park(answer.name, lane.settings.name)

    def _refuse_late(self, now: float) -> Iterator[Refuse]:
        """Refuse those whose time is over, or will be before a worker is there; and what fits no more."""
        for answer, lane, refusal in lateness.late(self.state, now):
            yield Refuse(answer.name, lane.settings.name, refusal)
            self.ended(answer.name, completed=False)
        self._recheck_at = lateness.next_look_at(self.state, now)

    # --- settings -----------------------------------------------------------------------------------------

    def reconfigured(self, lanes: Sequence[LaneSettings], settings: AdmissionSettings) -> None:
        """Go on with these lanes. The answers of one that is gone go on in the lowest."""
        change_lanes(self.state, lanes, settings)
        self._limit()
