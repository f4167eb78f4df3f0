"""What must hold in every simulation, seen from outside: from what was asked, said and got."""

import itertools
from collections.abc import Sequence
from typing import Final

from proxy.admission.instructions import Instruction, Park, Start
from shared.errors import Quarantined, Unavailable
from shared.lane_settings import AdmissionSettings
from shared.limits import PARKS_MAX
from shared.model_facts import ModelFacts
from tests.simulation.clock import Clock
from tests.simulation.device import token_at
from tests.simulation.front import Front
from tests.simulation.request import Request

_KEY_PLACES_MIN: Final = 4
_SHARE_WINDOW_S: Final = 60.0


class Checkers:
    """Watches the proxy's side, and asserts. Its own books are made of events only.

    An innocent is never quarantined, and no request kills the worker more than twice. While somebody is on
    trial or waits for that, only this is asked for: that nobody runs beside who is on trial.

    Work is conserved, by this rule: while a worker is there, the answer that has waited longest in the
    highest lane that has any starts if there is a row for it and its bytes are free beside what is reserved,
    and no reserve of a lane above would be touched. What has aged may hold others back, but never in an
    empty worker.
    """

    def __init__(
        self,
        front: Front,
        settings: AdmissionSettings,
        facts: ModelFacts,
        budget_bytes: int,
        slots: int,
        clock: Clock,
    ) -> None:
        self._front = front
        self._admission = front.admission
        self._facts = facts
        self._budget_bytes = budget_bytes
        self._slots = slots
        self._clock = clock
        self._lanes = list(front.lanes.values())
        self._lower_ranks = range(1, len(self._lanes))
        self._ranks = {lane.name: rank for rank, lane in enumerate(self._lanes)}
        self._key_places = {
            lane.name: max(_KEY_PLACES_MIN, int(settings.key_queue_share * lane.queue_places))
            for lane in self._lanes
        }
        self._unended: set[str] = set()
        self._waiting: list[dict[str, float]] = [{} for _ in self._lanes]
        self._running: dict[str, Request] = {}
        self._parking: dict[str, Request] = {}
        self._parks: dict[str, int] = {}
        self._fresh: list[int] = [0] * len(self._lanes)
        self._fresh_by_key: dict[tuple[str, str], int] = {}
        self._last_start_at = [0.0] * len(self._lanes)
        self._went_first: set[str] = set()
        self.start_gap_s_max = [0.0] * len(self._lanes)
        self.requests: list[Request] = []

    # --- what happens -------------------------------------------------------------------------------------

    def offered(self, request: Request) -> None:
        assert request.name not in self._unended
        self._unended.add(request.name)
        self.requests.append(request)

    def queued(self, request: Request) -> None:
        rank = self._ranks[request.lane]
        if not self._waiting[rank]:
            self._last_start_at[rank] = max(self._last_start_at[rank], self._clock.now)
        self._waiting[rank][request.name] = self._clock.now
        self._count_fresh(request, 1)

    def token(self, request: Request, index: int, token: int) -> None:
        assert request.running, f"{request.name} got a token without a row"
        assert index == len(request.tokens), f"{request.name}: token {index} after {len(request.tokens)}"
        assert token == token_at(index), f"{request.name}: another token at {index}"

    def put_back(self, request: Request) -> None:
        if self._parking.pop(request.name, None) is None:
            del self._running[request.name]
        self._waiting[self._ranks[request.lane]][request.name] = self._clock.now

    def ended(self, request: Request) -> None:
        assert request.name in self._unended, f"{request.name} ended twice"
        self._unended.remove(request.name)
        has_run = [rows.pop(request.name, None) for rows in (self._running, self._parking)]
        if not any(has_run) and request.queued:
            del self._waiting[self._ranks[request.lane]][request.name]
            if not request.attempt:
                self._count_fresh(request, -1)
        if request.completed:
            assert len(request.tokens) == min(request.length, request.max_tokens)
        if isinstance(request.refusal, Unavailable):
            assert 1 <= request.refusal.retry_after_s <= 60
        if isinstance(request.refusal, Quarantined):
            assert request.kills_at is not None, f"{request.name} is innocent"
        elif request.refusal is not None and not request.interruptions:
            assert not request.tokens, f"{request.name} was refused after it had started"

    def decided(self, instructions: Sequence[Instruction]) -> None:
        self._went_first.clear()
        started = []
        for instruction in instructions:
            if isinstance(instruction, Start):
                started.append(self._started(instruction))
            elif isinstance(instruction, Park):
                self._given_up(self._running.pop(instruction.name))
        self._check_books()
        self._check_bytes()
        if self._front.has_worker:
            self._check_trial()
            self._check_order(started)
            self._check_work_conserved(started)

    # --- checks -------------------------------------------------------------------------------------------

    def _started(self, start: Start) -> Request:
        request, now = self._front.live[start.name], self._clock.now
        rank = self._ranks[request.lane]
        assert self._front.has_worker, "started without a worker"
        if request.attempt == 1:
            self._check_deadline(request)
            self._count_fresh(request, -1)
        if self._may_go_first(rank):
            self._went_first.add(request.name)
        del self._waiting[rank][request.name]
        self._running[request.name] = request
        assert len(self._running) <= self._slots, f"{request.name} starts before a row is given up"
        if request.name not in self._went_first:
            self._check_reserve(request, rank)
        self.start_gap_s_max[rank] = max(self.start_gap_s_max[rank], now - self._last_start_at[rank])
        self._last_start_at[rank] = now
        return request

    def _check_reserve(self, request: Request, rank: int) -> None:
        """A start leaves free what lanes above have reserved of the rows; one row there may always be."""
        state = self._admission.state
        usable = max(1, self._rows_allowed - state.reserve_above(state.lanes[rank]).slots)
        assert len(self._running) <= usable, f"{request.name} takes a row that is reserved"

    @property
    def _rows_allowed(self) -> int:
        """How many rows there may be now: fewer after deaths for want of memory."""
        ledger = self._admission.state.ledger
        return self._slots if ledger is None else min(self._slots, ledger.slots)

    def _check_trial(self) -> None:
        tried = self._admission.state.trials.on_trial
        assert tried is None or set(self._running) <= {tried.name}, "somebody runs beside who is on trial"

    def _check_deadline(self, request: Request) -> None:
        """The first of a request's answers starts within its deadline, counted from where it was measured."""
        if any(each.attempt for each in request.beside if each is not request):
            return
        waited_s = self._clock.now - request.queued_at
        assert waited_s <= request.deadline_s + 1e-6, f"{request.name} started after {waited_s:.1f} s"

    def _given_up(self, request: Request) -> None:
        """Take note of a park: from here on the row is free for others, and its answer waits nowhere."""
        if self._admission.state.trials.on_trial is None:
            assert self._front.lanes[request.lane].parkable, f"{request.name} may not be parked"
            self._parks[request.name] = self._parks.get(request.name, 0) + 1
            assert self._parks[request.name] <= PARKS_MAX, f"{request.name} is parked too often"
        self._parking[request.name] = request

    def _count_fresh(self, request: Request, change: int) -> None:
        """Count who waits for a first start: these fill the queue, and its bounds are theirs."""
        rank, key = self._ranks[request.lane], (request.lane, request.key)
        self._fresh[rank] += change
        self._fresh_by_key[key] = self._fresh_by_key.get(key, 0) + change
        assert self._fresh[rank] <= self._lanes[rank].queue_places, f"{request.lane} overflows"
        if request.key:
            assert self._fresh_by_key[key] <= self._key_places[request.lane], f"{key} overflows"

    def _check_books(self) -> None:
        assert self._admission.queued == sum(map(len, self._waiting))
        assert self._admission.running == len(self._running) <= self._slots

    def _check_bytes(self) -> None:
        reserved = self._admission.reserved_bytes
        assert reserved <= self._budget_bytes, f"{reserved} of {self._budget_bytes} bytes are reserved"
        ledger = self._admission.state.ledger
        for request in self._running.values():
            assert ledger is not None
            held = request.prompt_tokens + len(request.tokens)
            assert held <= ledger.tokens_of(request.name), f"{request.name} has outgrown its reservation"
        if not self._running:
            assert reserved == 0

    def _check_order(self, started: Sequence[Request]) -> None:
        """Of what starts at once, higher lanes go first; but for the aged."""
        for earlier, later in itertools.pairwise(started):
            in_order = self._ranks[earlier.lane] <= self._ranks[later.lane]
            assert in_order or earlier.name in self._went_first, f"{earlier.name} went before {later.name}"

    def _may_go_first(self, rank: int) -> bool:
        """Whether a lane has waited so long that it goes before those above it, or just did."""
        lane = self._lanes[rank]
        oldest = min(self._waiting[rank].values(), default=self._clock.now)
        return self._clock.now - oldest >= min(lane.ages_after_s, _SHARE_WINDOW_S)

    def _check_work_conserved(self, started: Sequence[Request]) -> None:
        rank = next((rank for rank, waiting in enumerate(self._waiting) if waiting), None)
        if rank is None:
            return
        state = self._admission.state
        if state.trials.waiting or state.trials.on_trial or state.ledger is None:
            return
        waits = [self._front.live[name] for waiting in self._waiting for name in waiting]
        fits = [each for each in waits if state.ledger.fits_alone(each.prompt_tokens + each.max_tokens)]
        assert self._running or not fits, "a worker idles while somebody waits"
        if not self._running:
            return
        if self._went_first or self._has_aged(rank) or any(map(self._may_go_first, self._lower_ranks)):
            return
        waiting, lower = self._waiting[rank], [each.name for each in started if self._ranks[each.lane] > rank]
        head = self._front.live[min(waiting, key=lambda name: waiting[name])]
        assert self._leaves_the_last_row(head, rank) or not self._has_room(head, rank, lower), (
            f"{head.name} could have started"
        )

    def _leaves_the_last_row(self, request: Request, rank: int) -> bool:
        """Whether a key that has half of the rows takes one more only where another stays free."""
        if {key for _, key in self._fresh_by_key} == {request.key}:
            return False
        own = sum(row.key == request.key for row in self._running.values())
        state = self._admission.state
        in_the_way = len(self._running) + state.reserve_above(state.lanes[rank]).slots
        return 2 * own >= self._slots and in_the_way + 1 >= self._slots

    def _has_room(self, request: Request, rank: int, without: Sequence[str]) -> bool:
        """Whether a row and the bytes of all of a request are free, beside what lanes above have reserved."""
        state = self._admission.state
        assert state.ledger is not None
        rows = [name for name in self._running if name not in without]
        if not rows:
            return state.ledger.fits_alone(request.prompt_tokens + request.max_tokens)
        reserve = state.reserve_above(state.lanes[rank])
        lengths = [state.ledger.tokens_of(name) for name in rows]
        taken = self._facts.batch_bytes([request.prompt_tokens + request.max_tokens, *lengths])
        has_row = len(rows) + reserve.slots < self._rows_allowed
        return has_row and taken + reserve.kv_bytes <= state.ledger.budget_bytes

    def _has_aged(self, rank: int) -> bool:
        """Whether a lane's first may hold back the others of its lane."""
        oldest = min(self._waiting[rank].values())
        return self._clock.now - oldest >= self._lanes[rank].ages_after_s

    def check_idle(self) -> None:
        """With nothing live: each request ended once, and nothing is held."""
        assert not self._unended, f"never ended: {sorted(self._unended)[:5]}"
        assert not self._admission.state.answers
        assert not self._admission.queued
        assert not self._admission.running
        assert not self._admission.reserved_bytes
        assert not any(self._fresh)
        assert not self._parking
        for lane in self._admission.state.lanes:
            assert lane.announced == 0 == lane.queued_tokens
            assert not lane.counters.active()
