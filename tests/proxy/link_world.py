"""A worker link with a false channel, a clock that stands still, and an ear in the dispatcher's place."""

import asyncio

import structlog

from proxy.worker_link import WorkerLink
from shared.clock import FalseClock
from shared.codec import decode, encode
from tests.proxy.small_worlds import FINGERPRINT

STARTED_S = 5.0


class FalseChannel:
    """Frames come from `incoming`; what is sent lies in `sent`, unless nobody can be reached."""

    def __init__(self):
        self.incoming = asyncio.Queue()
        self.sent = asyncio.Queue()
        self.reachable = True

    async def receive(self):
        return await self.incoming.get()

    async def send(self, identity, frame):
        if self.reachable:
            self.sent.put_nowait((identity, decode(frame)))
        return self.reachable


class Heard:
    """Writes down what the dispatcher would be told."""

    def __init__(self):
        self.words = []

    def worker_came(self, came):
        self.words.append(("came", came.epoch))

    def worker_went(self, cause):
        self.words.append(("went", cause))

    def worker_died(self, exited):
        self.words.append(("died", exited.epoch, exited.cause))

    def cautioned(self, care):
        self.words.append(("care", care.rung, care.breaker))

    def worker_delayed(self, starts_at):
        self.words.append(("delayed", starts_at))

    def hear(self, message):
        self.words.append(message)

    stepped = finished = failed = parked = progressed = keeps = hear


class World:
    def __init__(self):
        self.clock = FalseClock(STARTED_S)
        self.channel = FalseChannel()
        self.heard = Heard()
        self.link = WorkerLink(self.channel, FINGERPRINT, self.clock, structlog.get_logger())
        self.link.attach(self.heard)

    def worker_says(self, message):
        self.link.take(f"w-0-{message.epoch}".encode(), encode(message))

    def supervisor_says(self, message):
        self.link.take(b"s-0", encode(message))

    @property
    def status(self):
        return self.link.state.status

    def news(self):
        """Return what was heard since the last look."""
        words, self.heard.words = self.heard.words, []
        return words
