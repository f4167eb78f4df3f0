"""A dispatcher with a false link and a clock that stands still: a test plays the worker's part."""

import structlog

from proxy.admission.core import Admission
from proxy.dispatch import Dispatcher
from proxy.observer import Observer
from proxy.quarantine import refusal
from shared.clock import FalseClock
from shared.lane_settings import AdmissionSettings, LaneSettings
from shared.messages import Exited, Finished, Parked, PrefillShare, Progress, Step, StepRow
from shared.metrics import Metrics
from shared.readings import MemoryReading
from tests.proxy.small_worlds import hello, measured

STOP_IDS = (2, 9)


class FalseLink:
    """Keeps what is sent; `ping` is the number of the last one."""

    def __init__(self):
        self.epoch = None
        self.ping = 0
        self.sent = []

    def send(self, message):
        assert message.epoch == self.epoch, "nothing is for any other life"
        self.sent.append(message)


PLAIN = LaneSettings(name="plain", deadline_s=3600, parkable=False)
TWO_LANES = (
    LaneSettings(name="upper", deadline_s=3600, parkable=False),
    LaneSettings(name="lower", deadline_s=3600, parkable=True),
)


class FalseQuarantine:
    """Keeps what is added, in memory."""

    def __init__(self):
        self.added = {}

    def refuse(self, fingerprints):
        for fingerprint in fingerprints:
            if fingerprint in self.added:
                raise refusal("memory")

    def add(self, fingerprint, **what):
        self.added[fingerprint] = what

    def entries(self):
        return list(self.added)


class World:
    """`lanes` are the lanes; `lane`'s settings are those of the only one, if there is only one."""

    def __init__(self, lanes=(PLAIN,), resumes_max=2, **lane):
        if lane:
            lanes = (PLAIN.model_copy(update=lane),)
        self.lanes = {each.name: each for each in lanes}
        self.link = FalseLink()
        self.clock = FalseClock()
        self.metrics = Metrics()
        self.quarantine = FalseQuarantine()
        self.dispatcher = Dispatcher(
            self.link,
            Admission(lanes, AdmissionSettings()),
            self.quarantine,
            resumes_max=resumes_max,
            observer=Observer(self.metrics, self.clock),
            stop_ids=STOP_IDS,
            clock=self.clock,
            log=structlog.get_logger(),
        )

    def come(self, epoch=1, **changes):
        self.link.epoch = epoch
        self.dispatcher.worker_came(hello(epoch, **changes))
        self.link.ping += 1

    def die(self, cause="crash", rows=()):
        """Let the worker die; `rows` are the ManifestRows of its last step."""
        exited = Exited(self.link.epoch, cause, "", tuple(rows))
        self.link.epoch = None
        self.dispatcher.worker_went(cause)
        self.dispatcher.worker_died(exited)

    def admit(self, request_id="r", lane=None, **request):
        settings = next(iter(self.lanes.values())) if lane is None else self.lanes[lane]
        return self.dispatcher.admit(measured(lane=settings, **request), request_id)

    def sent(self):
        """Return what was sent since the last look."""
        sent, self.link.sent = self.link.sent, []
        return sent

    def step(self, *rows, prefills=(), logprobs=()):
        rows = tuple(StepRow(*row) for row in rows)
        shares = tuple(PrefillShare(*share) for share in prefills)
        row_ms = 20.0 / max(1, len(rows))
        self.dispatcher.stepped(Step(self.link.epoch, 1, 20.0, row_ms, rows, shares, tuple(logprobs)))

    def tokens(self, sequence, attempt, *tokens, index=0):
        for place, token in enumerate(tokens, index):
            self.step((sequence, attempt, place, token))

    def finish(self, sequence, attempt, index, reason="stop"):
        self.dispatcher.finished(Finished(self.link.epoch, sequence, attempt, index, reason))

    def parked(self, sequence, attempt, index):
        self.dispatcher.parked(Parked(self.link.epoch, sequence, attempt, index))

    def progress(self, *running, ping, kv_bytes=0, budget_bytes=1 << 40):
        memory = MemoryReading(0, 0, 0, 0)
        self.dispatcher.progressed(
            Progress(
                self.link.epoch, 1, "decode", 1.0, ping, running, kv_bytes, budget_bytes, 0, 0, False, memory
            )
        )


def events(admitted):
    """Return what the client's side got since the last look."""
    return [admitted.events.get_nowait() for _ in range(admitted.events.qsize())]


def name_of(admitted, answer=0):
    return admitted.sequences[answer].name


def ready_world(**settings):
    """Return a world whose worker has just come."""
    world = World(**settings)
    world.come()
    return world
