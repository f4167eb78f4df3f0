"""The proxy's end of the wire: who is there, which life of the worker counts, and what it says.

Only the current epoch is heard. A worker becomes current by its Hello and stays so until its supervisor says
it exited, a newer one says Hello, or it can no longer be reached.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

from shared.channel import RouterChannel
from shared.clock import Clock
from shared.codec import decode, encode
from shared.errors import FrameError
from shared.limits import PING_INTERVAL_S
from shared.logs import Logger
from shared.messages import (
    CALM,
    BackingOff,
    Care,
    Exited,
    Failed,
    Finished,
    Hello,
    Message,
    Parked,
    Ping,
    Prefixes,
    Progress,
    Restart,
    Starting,
    Step,
    Stop,
)

Status = Literal["absent", "loading", "ready", "restarting"]

_RETIRED_KEPT: Final = 64


class LinkEvents(Protocol):
    """Who hears what the worker says; the dispatcher."""

    def worker_came(self, hello: Hello) -> None: ...
    def worker_went(self, cause: str) -> None: ...
    def worker_died(self, exited: Exited) -> None: ...
    def cautioned(self, care: Care) -> None: ...
    def worker_delayed(self, starts_at: float) -> None: ...
    def stepped(self, step: Step) -> None: ...
    def finished(self, finished: Finished) -> None: ...
    def failed(self, failed: Failed) -> None: ...
    def parked(self, parked: Parked) -> None: ...
    def progressed(self, progress: Progress) -> None: ...
    def keeps(self, news: Prefixes) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What is known of the worker. `since` is when this status began, `retry_at` when a start is due.

    `care` is how cautious its supervisor is.
    """

    status: Status
    since: float
    hello: Hello | None = None
    progress: Progress | None = None
    last_cause: str | None = None
    last_detail: str = ""
    retry_at: float | None = None
    deaths: int = 0
    care: Care = CALM


class WorkerLink:
    """Hears frames, keeps WorkerState, and sends what it is given, in order."""

    def __init__(self, channel: RouterChannel, fingerprint: str, clock: Clock, log: Logger) -> None:
        self._channel = channel
        self._fingerprint = fingerprint
        self._clock = clock
        self._log = log
        self._events: LinkEvents | None = None
        self._identity = b""
        self._supervisor = b""
        self._retired: deque[int] = deque(maxlen=_RETIRED_KEPT)
        self._outgoing: deque[Message] = deque()
        self._orders: deque[Message] = deque()
        self._has_outgoing = asyncio.Event()
        self.state = WorkerState("absent", clock.now())
        # Above any number of a proxy before this one, which the worker may still echo.
        self.ping = int(1000 * clock.now())
        self.dropped_frames = 0

    def attach(self, events: LinkEvents) -> None:
        self._events = events

    @property
    def epoch(self) -> int | None:
        """The life of the worker that is heard now, or None."""
        hello = self.state.hello
        return hello.epoch if hello is not None and self.state.status == "ready" else None

    def send(self, message: Message) -> None:
        """Hand a message for the current worker over; it goes out in order, or the worker is lost."""
        self._outgoing.append(message)
        self._has_outgoing.set()

    def restart_worker(self) -> int | None:
        """Have the supervisor replace the worker; return the epoch that is to go, None if there is none."""
        if self.epoch is None or not self._supervisor:
            return None
        self._order(Restart(self.epoch))
        return self.epoch

    def stop_supervisor(self) -> None:
        """Have the supervisor end its worker and itself; without one nothing happens."""
        self._order(Stop(self.epoch or 0))

    def _order(self, order: Restart | Stop) -> None:
        self._orders.append(order)
        self._has_outgoing.set()

    async def run(self) -> None:
        """Hear, send and ping, until cancelled. An error in any of the three ends all."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear())
            group.create_task(self._send())
            group.create_task(self._ping())

    # --- hearing ------------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        while True:
            identity, frame = await self._channel.receive()
            self.take(identity, frame)

    def take(self, identity: bytes, frame: bytes) -> None:
        """Take one frame from a peer; what can't be read or isn't current changes nothing."""
        try:
            message = decode(frame)
        except FrameError as problem:
            self.dropped_frames += 1
            self._log.warning("dropped a frame", problem=str(problem), dropped=self.dropped_frames)
            return
        if identity.startswith(b"s-"):
            self._supervisor = identity
            self._take_supervisor(message)
        elif identity.startswith(b"w-"):
            self._take_worker(identity, message)

    def _take_worker(self, identity: bytes, message: Message) -> None:
        assert self._events is not None
        if isinstance(message, Hello):
            self._take_hello(identity, message)
        elif message.epoch == self.epoch:
            match message:
                case Step():
                    self._events.stepped(message)
                case Finished():
                    self._events.finished(message)
                case Failed():
                    self._events.failed(message)
                case Parked():
                    self._events.parked(message)
                case Progress():
                    self.state = replace(self.state, progress=message)
                    self._events.progressed(message)
                case Prefixes():
                    self._events.keeps(message)
                case _:
                    self.dropped_frames += 1

    def _take_hello(self, identity: bytes, hello: Hello) -> None:
        """Take a worker as the current one; it runs nothing, whatever was submitted to it before."""
        assert self._events is not None
        if hello.epoch in self._retired or self._is_older(hello.epoch):
            return
        if hello.facts.fingerprint != self._fingerprint:
            self._log.error("a worker serves another model; it is ignored", epoch=hello.epoch)
            return
        if self.epoch is not None:
            self._lose("restarted", retire=hello.epoch != self.epoch)
        self._identity = identity
        self._set_status("ready", hello=hello)
        self._log.info("worker ready", epoch=hello.epoch, slots=hello.slots)
        self._events.worker_came(hello)
        self._ping_now()

    def _take_supervisor(self, message: Message) -> None:
        if isinstance(message, (Starting, BackingOff)):
            self._take_care(message.care)
        if message.epoch in self._retired and not isinstance(message, BackingOff):
            return
        match message:
            case Starting() if message.epoch != self.epoch and not self._is_older(message.epoch):
                if self.epoch is not None:
                    self._lose("replaced", retire=True)
                self._set_status("loading")
            case Exited():
                self._take_exit(message)
            case BackingOff() if self.state.status != "ready":
                self._take_delay(self._clock.now() + message.delay_s)
            case _:
                pass

    def _take_care(self, care: Care) -> None:
        assert self._events is not None
        if care != self.state.care:
            self._log.warning("the supervisor's care", rung=care.rung, breaker=care.breaker)
            self.state = replace(self.state, care=care)
            self._events.cautioned(care)

    def _take_delay(self, starts_at: float) -> None:
        assert self._events is not None
        self.state = replace(self.state, retry_at=starts_at)
        self._events.worker_delayed(starts_at)

    def _is_older(self, epoch: int) -> bool:
        """Epochs grow, so this one's word came late: it must not take the place of the life after it."""
        return self.epoch is not None and epoch < self.epoch

    def _take_exit(self, exited: Exited) -> None:
        assert self._events is not None
        was_current = exited.epoch == self.epoch
        self._retired.append(exited.epoch)
        self._log.warning("worker exited", epoch=exited.epoch, cause=exited.cause, detail=exited.detail)
        self.state = replace(
            self.state,
            # It may have been out of reach before: that was no cause.
            last_cause=exited.cause,
            last_detail=exited.detail,
            deaths=self.state.deaths + (exited.cause != "planned"),
        )
        if was_current:
            self._lose(exited.cause, retire=False)
        elif self.state.status != "ready":
            self._set_status("restarting")
        self._events.worker_died(exited)

    def _lose(self, cause: str, *, retire: bool) -> None:
        """Go on without the current worker: what it ran is interrupted."""
        assert self._events is not None
        if retire and self.epoch is not None:
            self._retired.append(self.epoch)
        self._outgoing.clear()
        self._identity = b""
        self._set_status("restarting", last_cause=cause)
        self._events.worker_went(cause)

    def _set_status(self, status: Status, **changes: Any) -> None:
        """Enter a status; what isn't named is kept, but for what only holds while a worker is ready."""
        if status == self.state.status and "hello" not in changes:
            return
        fresh: dict[str, Any] = {
            "since": self._clock.now(),
            "hello": None,
            "progress": None,
            "retry_at": None,
        }
        self.state = replace(self.state, status=status, **{**fresh, **changes})

    # --- sending ------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        while True:
            await self._has_outgoing.wait()
            self._has_outgoing.clear()
            while self._orders:
                await self._channel.send(self._supervisor, encode(self._orders.popleft()))
            while self._outgoing:
                await self._send_one(self._outgoing.popleft())

    async def _send_one(self, message: Message) -> None:
        if message.epoch == self.epoch and not await self._channel.send(self._identity, encode(message)):
            self._lose("unreachable", retire=False)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            if self.epoch is not None:
                self._ping_now()

    def _ping_now(self) -> None:
        assert self.epoch is not None
        self.ping += 1
        self.send(Ping(self.epoch, self.ping))
