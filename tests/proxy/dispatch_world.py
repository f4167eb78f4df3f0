"""A dispatcher with a false link and a clock that stands still: a test plays the worker's part."""

import structlog

from proxy.dispatch import Dispatcher
from shared.clock import FalseClock
from shared.config import ProxySettings
from shared.messages import Finished, MemoryReading, Progress, Step, StepRow
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


class World:
    def __init__(self, **settings):
        self.link = FalseLink()
        self.clock = FalseClock()
        self.dispatcher = Dispatcher(
            self.link,
            ProxySettings(**settings),
            stop_ids=STOP_IDS,
            clock=self.clock,
            log=structlog.get_logger(),
        )

    def come(self, epoch=1, **changes):
        self.link.epoch = epoch
        self.dispatcher.worker_came(hello(epoch, **changes))
        self.link.ping += 1

    def die(self, cause="crash"):
        self.link.epoch = None
        self.dispatcher.worker_went(cause)

    def admit(self, request_id="r", **request):
        return self.dispatcher.admit(measured(**request), request_id)

    def sent(self):
        """Return what was sent since the last look."""
        sent, self.link.sent = self.link.sent, []
        return sent

    def step(self, *rows):
        self.dispatcher.stepped(Step(self.link.epoch, 1, 20.0, tuple(StepRow(*row) for row in rows)))

    def tokens(self, sequence, attempt, *tokens, index=0):
        for place, token in enumerate(tokens, index):
            self.step((sequence, attempt, place, token))

    def finish(self, sequence, attempt, index, reason="stop"):
        self.dispatcher.finished(Finished(self.link.epoch, sequence, attempt, index, reason))

    def progress(self, *running, ping):
        memory = MemoryReading(0, 0, 0, 0)
        self.dispatcher.progressed(Progress(self.link.epoch, 1, "decode", 1.0, ping, running, memory))


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
