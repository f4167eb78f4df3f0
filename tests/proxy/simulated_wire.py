"""A proxy's link and dispatcher with a false worker over a bad wire, for simulations.

The link and the codec are the real ones. Everything random comes from one seed, so a failure can be seen
again. What a worker makes of a place in an answer is a hash, so the checker knows every token beforehand.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b

import structlog

from proxy.admission.core import Admission
from proxy.admitted import AnswerEnded, RequestFailed, TokenCame
from proxy.dispatch import Dispatcher
from proxy.observer import Observer
from proxy.worker_link import WorkerLink
from shared.clock import FalseClock
from shared.codec import encode
from shared.errors import Overloaded, WorkerCrashed
from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.messages import (
    CALM,
    Cancel,
    Exited,
    Finished,
    Park,
    Parked,
    Ping,
    Progress,
    Starting,
    Step,
    StepRow,
    Submit,
)
from shared.metrics import Metrics
from shared.readings import MemoryReading
from tests.proxy.dispatch_world import FalseQuarantine
from tests.proxy.small_worlds import FINGERPRINT, hello, measured

SLOTS, BUDGET = 3, 60
STOP = 0
ALONE_TURNS_MAX = 20
TURN_S = 0.5  # so long that rows are soon ripe for parking
LANES = (
    LaneSettings(name="upper", queue_places=8, deadline_s=3600, parkable=False),
    LaneSettings(name="lower", queue_places=8, deadline_s=3600, parkable=True),
)


def drawn(prompt_ids, choice, index):
    """Return the token at a place of an answer; STOP, one time in eight, ends it."""
    digest = blake2b(repr((prompt_ids, choice, index)).encode(), digest_size=2).digest()
    return STOP if digest[0] < 32 else 1 + digest[1]


def whole_answer(prompt_ids, choice, max_tokens):
    """Return what an undisturbed answer is: its tokens, and why it ends."""
    tokens = []
    while len(tokens) < max_tokens:
        token = drawn(prompt_ids, choice, len(tokens))
        if token == STOP:
            return tokens, "stop"
        tokens.append(token)
    return tokens, "length"


class FalseWorker:
    """One life: obeys the protocol, and checks that what it is told to go on from is true.

    What is more than its slots waits. While it has heard every word that was said to it, nothing is.
    """

    def __init__(self, epoch):
        self.epoch = epoch
        self.inbox = deque()
        self.said = deque()
        self.rows = {}
        self.ping = 0
        self.turns_alone = 0
        self.heard_all = True
        self.say(hello(epoch, slots=SLOTS, budget_bytes=BUDGET))

    def say(self, message):
        self.said.append(encode(message))

    def turn(self):
        self.turns_alone = 0 if self.inbox else self.turns_alone + 1
        if self.turns_alone == ALONE_TURNS_MAX:
            self.forget_the_proxy()
        while self.inbox:
            self.take(self.inbox.popleft())
        if self.dies_in(list(self.rows)[:SLOTS]):
            return
        ended = []
        rows = tuple(row for name in list(self.rows)[:SLOTS] for row in self.row(name, ended))
        if rows:
            self.say(Step(self.epoch, 1, 20.0, 20.0 / len(rows), rows, ()))
        for word in ended:
            del self.rows[word.sequence]
            self.say(word)

    def dies_in(self, _names):
        """Whether the worker dies in a step of these rows."""
        return False

    def take(self, message):
        match message:
            case Submit():
                tokens, _ = whole_answer(message.prompt_ids, message.sampling.choice, message.max_tokens)
                assert list(message.emitted_ids) == tokens[: len(message.emitted_ids)]
                self.rows[message.sequence] = (message, len(message.emitted_ids))
                assert len(self.rows) <= SLOTS or not self.heard_all
            case Cancel():
                self.rows.pop(message.sequence, None)
            case Park() if message.sequence in self.rows:
                submit, index = self.rows.pop(message.sequence)
                self.say(Parked(self.epoch, message.sequence, submit.attempt, index))
            case Ping():
                assert message.number > self.ping
                self.ping = message.number

    def row(self, name, ended):
        submit, index = self.rows[name]
        tokens, reason = whole_answer(submit.prompt_ids, submit.sampling.choice, submit.max_tokens)
        if index < len(tokens):
            self.rows[name] = (submit, index + 1)
            yield StepRow(name, submit.attempt, index, tokens[index])
        if index + 1 >= len(tokens):
            ended.append(Finished(self.epoch, name, submit.attempt, len(tokens), reason))

    def report(self):
        memory = MemoryReading(0, 0, 0, 0)
        self.say(
            Progress(
                self.epoch, 1, "decode", 1.0, self.ping, tuple(self.rows), 0, BUDGET, 0, 0, False, memory
            )
        )

    def forget_the_proxy(self):
        """Cancel everything and say Hello again, as after three missed pings."""
        self.rows.clear()
        self.inbox.clear()
        self.turns_alone = 0
        self.heard_all = False
        self.say(hello(self.epoch, slots=SLOTS, budget_bytes=BUDGET))


@dataclass
class Client:
    """Reads one request's events and checks each against what must come."""

    admitted: object
    got: dict = field(default_factory=dict)
    ended: set = field(default_factory=set)
    outcome: str | None = None

    def read(self):
        while self.outcome is None and not self.admitted.events.empty():
            self.take(self.admitted.events.get_nowait())
            if len(self.ended) == len(self.admitted.sequences):
                self.leave("complete")

    def take(self, event):
        match event:
            case RequestFailed(refusal):
                assert isinstance(refusal, WorkerCrashed)
                assert max(sequence.interruptions for sequence in self.admitted.sequences) == 3
                self.leave("crashed")
            case TokenCame(answer, token):
                assert answer not in self.ended
                tokens = self.got.setdefault(answer, [])
                tokens.append(token)
                assert token == self.expected(answer)[0][len(tokens) - 1]
            case AnswerEnded(answer, reason):
                assert answer not in self.ended
                assert (self.got.get(answer, []), reason) == self.expected(answer)
                self.ended.add(answer)

    @property
    def parks(self):
        return sum(sequence.parks for sequence in self.admitted.sequences)

    def expected(self, answer):
        sequence = self.admitted.sequences[answer]
        return whole_answer(sequence.prompt_ids, sequence.sampling.choice, sequence.max_tokens)

    def leave(self, outcome):
        assert self.outcome is None
        self.outcome = outcome
        self.admitted.__exit__(None, None, None)


class Simulation:
    """One seed's world. `happens` weighs what may happen in a turn."""

    client_type = Client
    quiet_turns = 200

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.clock = FalseClock()
        log = structlog.get_logger()
        self.link = WorkerLink(None, FINGERPRINT, self.clock, log)
        self.dispatcher = Dispatcher(
            self.link,
            Admission(LANES, AdmissionSettings()),
            FalseQuarantine(),
            resumes_max=2,
            observer=Observer(Metrics(), self.clock),
            stop_ids=(STOP,),
            clock=self.clock,
            log=log,
        )
        self.link.attach(self.dispatcher)
        self.worker = self.new_worker(1)
        self.dead = []
        self.clients = []
        self.parks_lost = 0

    def new_worker(self, epoch):
        return FalseWorker(epoch)

    @property
    def happens(self):
        return {self.arrive: 6, self.leave: 2, self.die: 1, self.forget: 1, self.report: 3}

    def live_through(self, turns):
        """Let anything happen, then let the wire be good and everything come to its end."""
        happenings, weights = zip(*self.happens.items(), strict=True)
        for _ in range(turns):
            self.random.choices(happenings, weights=weights)[0]()
            self.turn(trouble=True)
        for _ in range(self.quiet_turns):
            self.report()
            self.turn(trouble=False)
        self.check_the_end()

    def turn(self, *, trouble):
        self.clock.advance(TURN_S)
        self.pass_on_to_worker(trouble=trouble)
        self.worker.turn()
        self.look_at_worker(trouble=trouble)
        self.deliver(self.worker, trouble=trouble)
        self.dispatcher.tick()
        if trouble and self.dead and self.random.random() < 0.5:
            self.deliver(self.random.choice(self.dead), trouble=True)
        for client in self.clients:
            client.read()
        assert self.dispatcher.admission.reserved_bytes <= BUDGET

    def look_at_worker(self, *, trouble):
        """Do what is due after a worker's turn."""

    def pass_on_to_worker(self, *, trouble):
        """Do what the link's sending task does, over a wire that may lose a word."""
        if self.link.epoch is not None and self.random.random() < 0.4:
            self.link._ping_now()
        while self.link._outgoing:
            message = self.link._outgoing.popleft()
            lost = trouble and self.random.random() < (0.1 if isinstance(message, Park) else 0.02)
            if message.epoch == self.link.epoch == self.worker.epoch:
                self.tell(message, lost=lost)

    def tell(self, message, *, lost):
        if lost:
            self.worker.heard_all = False
            self.parks_lost += isinstance(message, Park)
        else:
            self.worker.inbox.append(message)

    def deliver(self, worker, *, trouble):
        identity = f"w-0-{worker.epoch}".encode()
        while worker.said and not (trouble and self.random.random() < 0.2):
            frame = worker.said.popleft()
            if trouble and self.random.random() < 0.02:
                continue
            for _ in range(2 if trouble and self.random.random() < 0.05 else 1):
                self.link.take(identity, frame)

    def arrive(self):
        prompts = tuple((self.random.randrange(100),) for _ in range(self.random.choice((1, 1, 2))))
        lane = self.random.choice((0, 1, 1))
        choices = self.random.choice((1, 1, 1, 2))
        self.send(measured(prompts, self.random.randint(1, 12), choices, lane=LANES[lane]))

    def send(self, request):
        """Let a client send a request; return the client if it is let in."""
        if self.link.state.hello is None and not self.clients:
            return None  # Still loading; the door has its own tests.
        try:
            self.clients.append(self.client_type(self.dispatcher.admit(request, "same id")))
        except Overloaded:
            queue = self.dispatcher.admission.state.lane_named(request.ticket.lane.name)
            assert queue.fresh + len(request.prompt_ids) * request.parsed.choices > 8
            return None
        return self.clients[-1]

    def leave(self):
        here = [client for client in self.clients if client.outcome is None]
        if here:
            self.random.choice(here).leave("left")

    def die(self):
        """End a life, and begin the next; the supervisor may be heard before or after the new worker."""
        epoch = self.worker.epoch
        self.dead.append(self.worker)
        self.worker = FalseWorker(epoch + 1)
        for word in (Exited(epoch, "crash", "", ()), Starting(epoch + 1, CALM)):
            if self.random.random() < 0.8:
                self.link.take(b"s-0", encode(word))

    def forget(self):
        self.worker.forget_the_proxy()

    def report(self):
        self.worker.report()

    def check_the_end(self):
        assert all(client.outcome is not None for client in self.clients)
        admission = self.dispatcher.admission
        assert (self.dispatcher.live, admission.queued, admission.reserved_bytes) == (0, 0, 0)
        assert self.dispatcher.emptied.is_set()
        assert self.worker.rows == {}
