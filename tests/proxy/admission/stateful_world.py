"""The other side of a core under test: clients and a worker that know by themselves who waits and runs."""

import math

from proxy.admission.answer import Standing
from proxy.admission.charging import Share
from proxy.admission.core import Admission
from proxy.admission.instructions import Park, Start
from proxy.admission.lane import ID_BYTES
from proxy.admission.state import MARGIN_TOKENS
from shared.errors import InvalidRequest, QueueTimeout, Refusal, Unavailable
from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.limits import PARKS_MAX
from tests.proxy.admission.stateful_live import Live, Request
from tests.proxy.small_worlds import newcomer

SHARED = AdmissionSettings(key_queue_share=0.25, overload_after_s=3.0)
PARK_TOKENS_MAX = 31  # tokens that a row may get from a park's asking to its answer
MIB = 1 << 20


class World:
    """Passes events on, takes instructions literally, and asserts what holds after each of them."""

    def __init__(self, lanes):
        self.core = Admission(lanes, SHARED)
        self.lanes = list(lanes)
        self.live: dict[str, Live] = {}
        self.announcements = []
        self.now = 0.0
        self.worker = None
        self.numbers = 0
        self.asked_at: dict[str, float] = {}
        self.released: dict[str, int] = {}
        self.rung, self.one_at_a_time, self.told = 0, False, math.inf

    # --- what it knows ------------------------------------------------------------------------------------

    def of(self, *standings):
        return [each for each in self.live.values() if each.standing in standings]

    def rank(self, name):
        names = [lane.name for lane in self.lanes]
        return names.index(name) if name in names else len(names) - 1

    def settings(self, each) -> LaneSettings:
        return self.lanes[self.rank(each.lane)]

    def price(self, lengths):
        """Bytes of rows side by side, by the facts' words: each has room for its next token, in steps."""
        facts, _, _ = self.worker
        tokens = 0
        for length in lengths:
            step = max(facts.kv_pad_tokens, 2 ** math.floor(math.log2(length + 1)) // 32)
            tokens += math.ceil((length + 1) / step) * step
        return tokens * facts.kv_bytes_per_token + len(lengths) * facts.fixed_bytes_per_row

    def rows(self, without=()):
        """Return the running rows' reserved tokens and ranks; what is being parked has none."""
        ledger = self.core.state.ledger
        return [
            (ledger.tokens_of(each.name), self.rank(each.lane))
            for each in self.of("running")
            if each.name not in without
        ]

    def wish(self, each):
        return self.core.state.tokens_for(self.core.state.answers[each.name])

    def fits(self, each, rows, *, kept=True):
        """Whether an answer may join rows, in bytes and slots, and clear of what is kept for higher lanes."""
        budget, slots = self.budget, self.slots
        rank, wish = self.rank(each.lane), self.wish(each)
        if not rows:
            return self.price([wish]) <= budget
        if len(rows) >= slots or self.price([wish, *(tokens for tokens, _ in rows)]) > budget:
            return False
        if not kept:
            return True
        reserve = self.core.state.reserve_above(self.core.state.lanes[rank])
        if len(rows) >= slots - min(reserve.slots, slots - 1):
            return False
        return self.price([wish, *(tokens for tokens, _ in rows)]) <= budget - reserve.kv_bytes

    @property
    def budget(self):
        """The bytes that may be reserved now; what is reserved already may be more."""
        return min(self.told, int(self.worker[1] * (1.0 if self.rung == 0 else 0.9)), self.worker[1])

    @property
    def slots(self):
        share = (1.0, 1.0, 0.5, 0.0)[self.rung]
        return 1 if self.one_at_a_time else max(1, int(share * self.worker[2]))

    @property
    def on_trial(self):
        """Return the one that runs alone, or for which others are being parked; None if there is none."""
        tried = self.core.state.trials.on_trial
        return tried and self.live[tried.name]

    def waits_for_memory(self, each):
        """Whether one wouldn't even fit alone, as memory is now: it lets others pass."""
        return self.budget < self.worker[1] and self.price([self.wish(each)]) > self.budget

    def queued_in(self, rank):
        """Return who waits in a lane, and isn't a suspect; but for those who wait for memory."""
        waiting = [each for each in self.of("queued") if self.rank(each.lane) == rank]
        return [each for each in waiting if self.worker is None or not self.waits_for_memory(each)]

    def first_in(self, rank):
        """Return the first of a lane that doesn't leave the last row to others; None if all do."""
        order = (self.live[answer.name] for answer in self.core.state.lanes[rank].candidates(self.now))
        may = (each for each in order if not self.waits_for_memory(each))
        return next((each for each in may if not self.leaves_the_last_row(each)), None)

    def leaves_the_last_row(self, each):
        """Whether another key asked lately, and this one has half of the rows: then one stays free of it."""
        slots = self.slots
        lately = [key for key, at in self.asked_at.items() if key != each.key and self.now - at <= 600.0]
        if slots < 8 or not lately:
            return False
        rank, running = self.rank(each.lane), self.of("running")
        fixed = [row for row in running if self.rank(row.lane) <= rank or not self.may_park(row)]
        kept = min(self.core.state.reserve_above(self.core.state.lanes[rank]).slots, slots - 1)
        own = sum(row.key == each.key for row in running)
        return len(fixed) + 1 >= slots - kept and 2 * own >= slots

    def may_park(self, row):
        return self.settings(row).parkable and row.parks < PARKS_MAX

    def waits_s(self, each):
        return self.now - self.core.state.answers[each.name].queued_at

    def eldest_waits_s(self, rank):
        """Return how long a lane's oldest has waited, if only for more memory."""
        waiting = (each for each in self.of("queued") if self.rank(each.lane) == rank)
        return max(map(self.waits_s, waiting), default=0.0)

    # --- events -------------------------------------------------------------------------------------------

    def arrive(self, lane, key, weight, sizes, deadline_s, asks=None):
        names = [f"{self.numbers}/{number}" for number in range(len(sizes))]
        self.numbers += 1
        asked = [
            newcomer(name, key, prompt, most, weight, deadline_s, asks)
            for name, (prompt, most) in zip(names, sizes, strict=True)
        ]
        before = set(self.core.state.answers)
        try:
            self.core.arrived(lane, asked, self.now)
        except Refusal as refusal:
            self.check_refusal(refusal)
            assert set(self.core.state.answers) == before
            return
        self.asked_at[key] = self.now
        request = Request(self.now + deadline_s)
        for each in asked:
            live = Live(
                each.name, self.lanes[self.rank(lane)].name, key, each.prompt_tokens, each.max_tokens, request
            )
            live.asks = asks
            live.standing = self.queued_as(live)
            self.live[each.name] = live
        self.check_bounds(self.rank(lane), key)

    def check_refusal(self, refusal):
        if isinstance(refusal, Unavailable):
            assert 1.0 <= refusal.retry_after_s <= 50.0
        else:
            assert isinstance(refusal, InvalidRequest)

    def check_bounds(self, rank, key):
        lane, settings = self.core.state.lanes[rank], self.lanes[rank]
        waiting = [each for each in self.of("queued", "suspect") if self.rank(each.lane) == rank]
        fresh = [each for each in waiting if not self.core.state.answers[each.name].starts]
        assert lane.fresh == len(fresh) <= settings.queue_places
        of_key = sum(each.key == key for each in fresh)
        assert not key or of_key <= max(4, settings.queue_places // 4)
        assert lane.queued_tokens == sum(each.prompt for each in fresh) <= settings.queue_mb * MIB // ID_BYTES

    def announce(self, lane, key, answers):
        try:
            self.announcements.append(self.core.announced(lane, key, answers, 30.0, self.now))
        except Refusal as refusal:
            self.check_refusal(refusal)

    def end(self, each, *, completed):
        self.core.ended(each.name, completed=completed)
        del self.live[each.name]
        assert each.name not in self.core.state.answers

    def step(self):
        """Give every row a token, those that are being parked, too; those that have all of theirs end.

        No park takes longer than some tokens: what runs is to start again, and to be parked again.
        """
        for each in self.of("parking"):
            if each.emitted - each.parked_at >= PARK_TOKENS_MAX:
                self.park_done(each)
        rows = self.of("running", "parking")
        for each in rows:
            each.emitted += 1
        tried = self.core.state.trials.on_trial
        self.core.stepped([each.name for each in rows], 20.0, 20.0 / max(1, len(rows)), [], self.now)
        self.check_verdict(tried)
        for each in rows:
            if each.emitted == each.most:
                self.end(each, completed=True)

    def prefill(self, name, tokens):
        self.core.stepped([], 0.0, 0.0, [Share(name, tokens, 1.5 * tokens)], self.now)

    def park_done(self, each):
        """Let the worker say that a row is parked, or the dispatcher, where that was lost on the wire."""
        self.core.parked(each.name, self.now)
        each.standing = self.queued_as(each)

    def worker_dies(self, blamed=()):
        """Let the worker die, in a step of the blamed; who is guilty ends, and all that ask the same."""
        tried = set(self.core.state.trials.tried)
        self.core.worker_went(self.now)
        self.worker = None
        rows = self.of("running", "parking")
        self.core.interrupted([each.name for each in rows], self.now)
        guilty = self.core.died({each.name: each.emitted for each in blamed}, self.now)
        alone_on_trial = len(blamed) == 1 and blamed[0].name in tried
        assert guilty == (blamed[0].fingerprint if alone_on_trial else None)
        for each in list(self.live.values()):
            if each.fingerprint == guilty:
                self.end(each, completed=False)
            else:
                each.standing = self.queued_as(each)

    def queued_as(self, each):
        """Return how one waits: its fingerprint alone decides it."""
        suspected = self.core.state.trials.suspects(self.core.state.answers[each.name], self.now)
        known = each.name in self.core.state.trials.waiting
        assert suspected == known or each.standing == "suspect"
        return "suspect" if known else "queued"

    def check_verdict(self, tried):
        """Once one on trial is cleared, those alike wait for none."""
        if tried is not None and self.core.state.trials.on_trial is not tried:
            cleared = tried.newcomer.fingerprint
            for each in self.of("suspect"):
                if each.fingerprint == cleared:
                    each.standing = "queued"

    def caution(self, rung, one_at_a_time):
        self.rung, self.one_at_a_time = rung, one_at_a_time
        self.core.cautioned(rung, one_at_a_time=one_at_a_time)

    def squeeze(self, budget):
        self.told = budget
        self.core.squeezed(budget)

    def worker_comes(self, facts, budget, slots):
        self.worker, self.told = (facts, budget, slots), math.inf
        self.core.worker_came(facts, budget, slots, self.now)
        self.watch_releases(self.core.state.ledger)

    def watch_releases(self, ledger):
        """Note what each row had when it was given up: others may have started before, in the same breath."""
        release = ledger.release

        def noting(name):
            self.released[name] = ledger.tokens_of(name)
            release(name)

        ledger.release = noting

    def tokens_of(self, name):
        """Return the tokens of a row that runs, or that this decision has given up."""
        in_place = self.core.state.answers[name].standing is Standing.RUNNING
        return self.core.state.ledger.tokens_of(name) if in_place else self.released[name]

    def reconfigure(self, lanes):
        self.core.reconfigured(lanes, SHARED)
        kept = {lane.name for lane in lanes}
        for each in self.live.values():
            if each.lane not in kept:
                each.lane = lanes[-1].name
        self.lanes = list(lanes)

    # --- instructions -------------------------------------------------------------------------------------

    def decide(self):
        rows = [each.name for each in self.of("running")]
        short = any(self.is_short(each) for each in self.of("running"))
        short = short or self.is_squeezed()
        said = self.core.decide(self.now)
        for place, instruction in enumerate(said):
            each = self.live[instruction.name]
            assert instruction.lane == self.settings(each).name
            if isinstance(instruction, Start):
                self.take_start(each, rows)
                rows.append(each.name)
            elif isinstance(instruction, Park):
                self.take_park(each)
                rows.remove(each.name)
                assert short or self.on_trial or self.has_start_above(each, said[place:]), (
                    f"{each.name} is parked in vain"
                )
            else:
                self.take_refusal(each, instruction.refusal)
        assert self.core.decide(self.now) == [], "what is decided stays so until something happens"

    def is_short(self, each):
        """Whether a row's reservation is nearly used up: it grows now, or others are parked for it."""
        used = each.prompt + each.emitted + min(each.most - each.emitted, MARGIN_TOKENS)
        return used > self.core.state.ledger.tokens_of(each.name)

    def is_squeezed(self):
        """Whether more is reserved than there is: then rows are parked for nobody."""
        return self.worker is not None and self.core.reserved_bytes > self.budget

    def has_start_above(self, each, said):
        """Whether something of a higher lane starts once a row has been given up."""
        starts = [self.live[later.name] for later in said if isinstance(later, Start)]
        return any(self.rank(later.lane) < self.rank(each.lane) for later in starts)

    def take_start(self, each, rows):
        assert self.worker is not None
        assert each.standing in {"queued", "suspect"}
        assert each.request.started or self.now < each.request.deadline_at, "started after its deadline"
        assert not self.core.held
        if each.standing == "suspect":
            assert (each, rows, self.of("parking")) == (self.on_trial, [], []), "a trial is not alone"
        else:
            assert self.on_trial is None or self.on_trial.standing == "suspect"
            self.check_turn(each, rows)
        each.standing = "running"
        each.request.started = True

    def check_turn(self, each, rows):
        """It fits, and it is its turn: clear of what is kept, and no higher one could have started instead.

        Or its lane goes first this once, by its age or its share.
        """
        held = [(self.tokens_of(name), self.rank(self.live[name].lane)) for name in rows]
        rank = self.rank(each.lane)
        higher = [
            other
            for other in self.of("queued")
            if self.rank(other.lane) < rank and not self.leaves_the_last_row(other)
        ]
        assert self.fits(each, held, kept=False)
        assert not self.leaves_the_last_row(each)
        if not self.fits(each, held) or any(self.fits(other, held) for other in higher):
            settings = self.settings(each)
            least_s = min(settings.ages_after_s, 60 if settings.step_share_min else math.inf)
            assert rank > 0
            assert self.eldest_waits_s(rank) >= least_s

    def take_park(self, each):
        assert self.worker is not None
        assert each.standing == "running"
        if self.core.state.answers[each.name].parks > each.parks:
            assert self.settings(each).parkable
            assert each.parks < PARKS_MAX
            each.parks += 1
        else:
            assert self.on_trial is not None, "only for a trial a park doesn't count"
        each.standing = "parking"
        each.parked_at = each.emitted

    def take_refusal(self, each, refusal):
        assert each.standing in {"queued", "suspect"}
        if isinstance(refusal, Unavailable):
            assert not each.request.started
            assert 1.0 <= refusal.retry_after_s <= 60.0
            assert isinstance(refusal, QueueTimeout) == (self.now >= each.request.deadline_at)
            assert self.now >= each.request.deadline_at or self.worker is None
        else:
            self.check_refusal(refusal)
        del self.live[each.name]
