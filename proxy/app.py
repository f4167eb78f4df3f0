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
from proxy.admission.core import Admission
from proxy.admission.quota import Quotas
from proxy.dispatch import Dispatcher
from proxy.health import Health
from proxy.keys import KEY_FILE_NAME, KeyFile
from proxy.measure import Measurer
from proxy.middleware import request_boundary
from proxy.policy import PolicyInForce
from proxy.routes import Routes, Service
from proxy.text_model import TextModel
from proxy.worker_link import WorkerLink
from shared.channel import RouterChannel
from shared.clock import Clock, SystemClock
from shared.config import Settings
from shared.errors import SettingsError
from shared.limits import BODY_BYTES_MAX, HEADER_BYTES_MAX, HEADER_LINE_BYTES_MAX
from shared.logs import Logger
from shared.metrics import Metrics
from shared.model_folder import DEMO_MODEL_NAME, DEMO_NAME, ModelFolder

_SHUTDOWN_S: Final = 2.0
_TICK_S: Final = 0.25
_SEED_BITS: Final = 63


class StopRequest:
    """Asks the proxy to end: after what runs has finished, or without waiting for it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = False

    def ask(self, *, at_once: bool) -> None:
        self.at_once = self.at_once or at_once
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
        text_model = TextModel.load(folder)
        metrics = Metrics()
        context = min(folder.context_tokens, settings.worker.context_tokens or folder.context_tokens)
        self._settings = settings
        self._log = log
        self._admin_socket = admin_socket
        self._reloads: set[asyncio.Task[None]] = set()
        self.policy = PolicyInForce(
            settings, KeyFile(settings.home_folder / KEY_FILE_NAME), context, reading, log
        )
        self.link = WorkerLink(channel, folder.fingerprint, clock, log)
        self.measurer = Measurer(text_model, folder, settings.proxy)
        self.dispatcher = Dispatcher(
            self.link,
            Admission(settings.lanes, settings.admission),
            resumes_max=settings.proxy.resumes_max,
            stop_ids=text_model.stop_ids,
            clock=clock,
            metrics=metrics,
            log=log,
        )
        self.link.attach(self.dispatcher)
        self.admin = Admin(self.policy, self.dispatcher)
        self.quotas = Quotas()
        service = Service(
            names=served_names(folder),
            policy=self.policy,
            quotas=self.quotas,
            text_model=text_model,
            measurer=self.measurer,
            dispatcher=self.dispatcher,
            link=self.link,
            health=Health(self.link, self.dispatcher, metrics, clock),
            clock=clock,
            jitter=_jitter,
            seeds=lambda: secrets.randbits(_SEED_BITS),
            fingerprint=f"fb_{folder.fingerprint}",
            created=int(time.time()),
        )
        boundary = request_boundary(
            clock, _jitter, lambda lane, code: metrics.refused.labels(lane, code).inc(), log
        )
        self.app = web.Application(middlewares=[boundary], client_max_size=BODY_BYTES_MAX)
        Routes(service, settings.proxy.request_timeout_s).add_to(self.app)

    async def serve(self, stop: StopRequest) -> None:
        """Serve until told to stop; then finish what runs, within the settings' time, and close."""
        runner = web.AppRunner(
            self.app,
            access_log=None,
            handler_cancellation=True,
            # Counts from the connection's beginning, too: whoever sends headers by drops is cut off.
            keepalive_timeout=self._settings.proxy.request_timeout_s,
            max_line_size=HEADER_LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            shutdown_timeout=_SHUTDOWN_S,
        )
        operator = web.AppRunner(self.admin.application(), access_log=None)
        await runner.setup()
        await operator.setup()
        try:
            await self._listen(runner)
            await self._listen_to_operator(operator)
            await self._until_stopped(stop)
        finally:
            await operator.cleanup()
            await runner.cleanup()
            self.measurer.close()

    async def _listen(self, runner: web.AppRunner) -> None:
        host, port = self._settings.host, self._settings.port
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as problem:
            raise SettingsError(f"can't listen on {host}:{port}: {problem.strerror}") from problem
        self._log.info("listening", host=host, port=port)

    async def _listen_to_operator(self, operator: web.AppRunner) -> None:
        """Take orders on the Unix socket, and a reload by SIGHUP."""
        if self._admin_socket is None:
            return
        self._admin_socket.unlink(missing_ok=True)
        await web.UnixSite(operator, self._admin_socket).start()
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
        while True:
            await asyncio.sleep(_TICK_S)
            self.dispatcher.tick()

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
        if not stop.at_once:
            await self._drain(link)
        link.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await link

    async def _drain(self, link: asyncio.Task[None]) -> None:
        """Wait until nothing is live any more, the time is over, or the link has failed."""
        self._log.info("draining", live=self.dispatcher.live)
        emptied = asyncio.create_task(self.dispatcher.emptied.wait())
        patience_s = self._settings.proxy.drain_s
        await asyncio.wait((emptied, link), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        emptied.cancel()


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
