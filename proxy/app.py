"""Puts the proxy together: from settings and a model folder to an application, and its running."""

import asyncio
import contextlib
import random
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from proxy.admin import Admin
from proxy.admin_routes import AdminRoutes
from proxy.admission.core import Admission
from proxy.admission.quota import Quotas
from proxy.conversations import Conversations
from proxy.dispatch import Dispatcher
from proxy.health import Health
from proxy.idempotency import IdempotencyStore
from proxy.keyed import KeyedAnswers
from proxy.keys import KEY_FILE_NAME, KeyFile
from proxy.listening import Listening
from proxy.measure import Measurer
from proxy.middleware import Surroundings, request_boundary
from proxy.observer import Observer
from proxy.open_door import OpenDoor
from proxy.policy import PolicyInForce
from proxy.quarantine import Quarantine
from proxy.response_store import ResponseStore
from proxy.routes import Routes, Service
from proxy.slow_readers import SlowReaders
from proxy.sockets import connection_options, connections_allowed, raised_descriptor_limit
from proxy.status.pages import StatusPages
from proxy.status.taker import SnapshotTaker
from proxy.text_model import TextModel
from proxy.tracing import Traces
from proxy.worker_link import WorkerLink
from shared.channel import RouterChannel
from shared.clock import Clock, SystemClock
from shared.config import Settings
from shared.errors import Draining, SettingsError
from shared.limits import BODY_BYTES_MAX, HEADER_BYTES_MAX, HEADER_LINE_BYTES_MAX, MIB
from shared.logs import Logger
from shared.metrics import Metrics
from shared.model_folder import DEMO_MODEL_NAME, DEMO_NAME, ModelFolder

_SHUTDOWN_S: Final = 2.0
_TICK_S: Final = 0.25
_DELIVERY_LOOK_S: Final = 0.05
_DRAINED_RETRY_S: Final = 5.0
# The channel closes without lingering; its thread gets this long to write out the last word.
_LAST_WORD_S: Final = 0.1
_SEED_BITS: Final = 63


class StopRequest:
    """Asks the proxy to end: after what runs has finished, or without waiting for it.

    `with_worker` is whether its worker and that one's supervisor are to end, too.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = False
        self.hurried = asyncio.Event()
        self.with_worker = False

    def ask(self, *, at_once: bool) -> None:
        self.at_once = self.at_once or at_once
        if self.at_once:
            self.hurried.set()
        self.asked.set()


class Proxy:
    """One gateway: its wire, its dispatcher and its HTTP application."""

    def __init__(
        self,
        settings: Settings,
        folder: ModelFolder,
        channel: RouterChannel,
        log: Logger,
        *,
        reading: Callable[[], Settings],
        admin_socket: Path | None = None,
    ) -> None:
        clock: Clock = SystemClock()
        text_model = TextModel.load(folder, answer_format=settings.proxy.answer_format)
        self.observer = Observer(Metrics(), clock)
        self.traces = Traces.of(settings.trace, clock, log)
        context = min(folder.context_tokens, settings.worker.context_tokens or folder.context_tokens)
        self._settings = settings
        self._channel = channel
        self._log = log
        self._admin_socket = admin_socket
        self._stop = StopRequest()
        self._reloads: set[asyncio.Task[None]] = set()
        self.policy = PolicyInForce(
            settings, KeyFile(settings.home_folder / KEY_FILE_NAME), context, reading, log
        )
        self.link = WorkerLink(channel, folder.fingerprint, clock, log)
        self.measurer = Measurer(text_model, folder, settings.proxy, lambda: self.dispatcher.facts)
        self.quarantine = Quarantine.of(settings, log)
        self.dispatcher = Dispatcher(
            self.link,
            Admission(settings.lanes, settings.admission),
            self.quarantine,
            resumes_max=settings.proxy.resumes_max,
            stop_ids=text_model.stop_ids,
            clock=clock,
            observer=self.observer,
            log=log,
        )
        self.link.attach(self.dispatcher)
        names = served_names(folder)
        health = self._health = Health(self.link, self.dispatcher, self.observer, clock, names[0])
        self.status = SnapshotTaker(
            names[0], self.link, self.dispatcher, self.observer, lambda: health.prompts, clock=clock
        )
        self.admin = Admin(
            self.policy,
            self.dispatcher,
            self.link,
            self.quarantine,
            self.status,
            clock=clock,
            stop=self._end_with_worker,
            log=log,
        )
        self.quotas = Quotas()
        self.listening: Listening | None = None
        bounds = settings.proxy
        store = IdempotencyStore(bounds.idempotency_mb * MIB, 3600 * bounds.idempotency_hours)
        self.keyed = KeyedAnswers(store, bounds.detached_s, clock, log)
        self.responses = ResponseStore(bounds.responses_mb * MIB, 3600 * bounds.responses_hours)
        self.app = self._application(self._service(text_model, folder, health, clock))

    def _service(self, text_model: TextModel, folder: ModelFolder, health: Health, clock: Clock) -> Service:
        return Service(
            names=served_names(folder),
            policy=self.policy,
            quotas=self.quotas,
            text_model=text_model,
            measurer=self.measurer,
            dispatcher=self.dispatcher,
            link=self.link,
            health=health,
            keyed=self.keyed,
            conversations=Conversations(
                self.responses, clock, lambda: text_model.format.call_rule is not None
            ),
            clock=clock,
            jitter=_jitter,
            seeds=lambda: secrets.randbits(_SEED_BITS),
            fingerprint=f"fb_{folder.fingerprint}",
            created=int(time.time()),
        )

    def _application(self, service: Service) -> web.Application:
        settings = self._settings
        names = (settings.host, *settings.proxy.host_names)
        around = Surroundings(
            service.clock,
            _jitter,
            self.observer.refused,
            self._log,
            prompts=settings.log.prompts,
            traces=self.traces,
            door=OpenDoor(names, lambda: self.policy.now.keys.is_open),
        )
        boundary = request_boundary(around)
        app = web.Application(middlewares=[boundary], client_max_size=BODY_BYTES_MAX)
        patience_s = settings.proxy.request_timeout_s
        Routes(service, patience_s).add_to(app)
        StatusPages(self.status).add_to(app)
        AdminRoutes(self.admin, lambda: self.policy.now.keys, patience_s, self._log).add_to(app)
        return app

    def _end_with_worker(self, at_once: bool) -> None:
        self._stop.with_worker = True
        self._stop.ask(at_once=at_once)

    async def serve(self, stop: StopRequest) -> None:
        """Serve until told to stop; then finish what runs, within the settings' time, and close."""
        self._stop = stop
        runner = web.AppRunner(self.app, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S)
        operator = web.AppRunner(self.admin.application(), access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        await operator.setup()
        try:
            await self._listen(runner)
            await self._listen_to_operator(operator)
            await self._until_stopped(stop)
        finally:
            # At one time: `forebay up` waits for little more than one of them may take.
            await asyncio.gather(operator.cleanup(), runner.cleanup())
            await self.keyed.close()
            if self.traces is not None:
                await self.traces.close()
            self.measurer.close()
            self.quarantine.close()

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port, bounds = self._settings.host, self._settings.port, self._settings.proxy
        self.listening = Listening(
            runner,
            (host, port),
            connections_max=connections_allowed(bounds.connections_max, raised_descriptor_limit(), self._log),
            options=connection_options(bounds.slow_reader_s),
            slow_readers=SlowReaders(bounds.slow_reader_s, bounds.undelivered_mb * MIB),
            jitter=_jitter,
            log=self._log,
            told=self.observer.cut_off,
            access_log=None,
            # Counts from the connection's beginning, too: whoever sends headers by drops is cut off.
            keepalive_timeout=bounds.request_timeout_s,
            max_line_size=HEADER_LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
        )
        self._health.door = self.listening
        try:
            await self.listening.start()
        except OSError as problem:
            raise SettingsError(f"can't listen on {host}:{port}: {problem.strerror}") from problem
        self._log.info("listening", host=host, port=port)
        if self._settings.log.prompts:
            self._log.warning("this log has what clients ask: log.prompts is true")

    async def _listen_to_operator(self, operator: web.AppRunner) -> None:
        """Take orders on the Unix socket, and a reload by SIGHUP."""
        if self._admin_socket is None:
            return
        self._admin_socket.unlink(missing_ok=True)
        await web.UnixSite(operator, self._admin_socket).start()
        self._admin_socket.chmod(0o600)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload_soon)

    def _reload_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload_if_possible())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_if_possible(self) -> None:
        with contextlib.suppress(SettingsError):  # The log has said why.
            await self.admin.reload()

    async def _tick(self) -> None:
        """Let deadlines pass and lanes age, while nothing else happens."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.observer.ticked(loop.time() - due)
            if self._channel.bind_again():
                self._log.warning("the wire's socket had been removed; workers to come find it again")
            self.dispatcher.tick()
            self.status.tick()

    async def _run_link(self) -> None:
        """Run the link, and the clock beside it, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.link.run())
            group.create_task(self._tick())

    async def _until_stopped(self, stop: StopRequest) -> None:
        """Run the link beside the application. If it fails, so does the proxy: it can't answer any more."""
        link = asyncio.create_task(self._run_link())
        stopping = asyncio.create_task(stop.asked.wait())
        await asyncio.wait((link, stopping), return_when=asyncio.FIRST_COMPLETED)
        if link.done():
            stopping.cancel()
            link.result()
        self.dispatcher.draining = True
        self.admin.going_down()
        if not stop.at_once:
            await self._drain(link)
        # Whoever is still served is told; closing the runner gives the handlers a moment to write it.
        self.dispatcher.fail_all(Draining("the server is going down", retry_after_s=_DRAINED_RETRY_S))
        if stop.with_worker:
            self.link.stop_supervisor()
            await asyncio.sleep(_LAST_WORD_S)
        link.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await link

    async def _drain(self, link: asyncio.Task[None]) -> None:
        """Wait until all answers are made and taken, the time is over, one hurries, or the link failed."""
        self._log.info("draining", live=self.dispatcher.live)
        delivered = asyncio.create_task(self._all_delivered())
        hurried = asyncio.create_task(self._stop.hurried.wait())
        ends, patience_s = (delivered, hurried, link), self._settings.proxy.drain_s
        await asyncio.wait(ends, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        delivered.cancel()
        hurried.cancel()

    async def _all_delivered(self) -> None:
        await self.dispatcher.emptied.wait()
        assert self.listening is not None, "it drains after it served"
        while self.listening.undelivered_bytes:  # noqa: ASYNC110 (the system tells nobody what it has sent)
            await asyncio.sleep(_DELIVERY_LOOK_S)


def served_names(folder: ModelFolder) -> tuple[str, ...]:
    """Return the names that requests may use: the model's own, and `demo` for the demo model."""
    return (folder.name, DEMO_NAME) if folder.name == DEMO_MODEL_NAME else (folder.name,)


def stop_on_signals(stop: StopRequest, exit_now: Callable[[], None]) -> None:
    """Drain on the first SIGTERM or SIGINT; exit at the second."""
    loop = asyncio.get_running_loop()

    def told() -> None:
        if stop.asked.is_set():
            exit_now()
        stop.ask(at_once=False)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    # Until there is something to reload; by default it would end the process.
    loop.add_signal_handler(signal.SIGHUP, lambda: None)


def _jitter() -> float:
    return random.uniform(0.8, 1.2)  # noqa: S311 (spreads clients, guards nothing)
