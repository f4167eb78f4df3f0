"""The operator's orders, and their door: a Unix socket in the run folder, for whoever may open that folder.

That door needs no key, and no web page can call it. Most of the orders are taken on the public port as well,
from whoever shows an admin key: proxy/admin_routes.py.

| order | body | does |
|---|---|---|
| POST /admin/reload | | reads lanes and keys again |
| GET /admin/snapshot | | the gateway at this moment, as its status page shows it; here only |
| GET /admin/status | | says what the gateway and its worker are doing, and how the last restart goes |
| POST /admin/restart | `{"drain": bool, "timeout_s": number}` | begins to replace the worker; 202 |
| POST /admin/drain | `{"on": bool}` | takes nothing new, or opens again |
| POST /admin/stop | `{"at_once": bool}` | ends gateway and worker, at once or not; 202; here only |
| GET /admin/quarantine | | the requests that are refused for having killed the worker |
| POST /admin/quarantine/clear | `{"fingerprints": [...] or null}` | forgets them; null means all |

400 is a body that can't be used, 409 an order that can't be carried out now; both say why as `problem`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.dispatch import Dispatcher
from proxy.orders import BadOrder, ClearOrder, DrainOrder, RestartOrder, StopOrder, read_order
from proxy.planned_restart import PlannedRestart, Sight, why_not
from proxy.policy import PolicyInForce, Reloaded
from proxy.quarantine import Quarantine
from proxy.status.taker import SnapshotTaker
from proxy.worker_link import WorkerLink
from shared.clock import Clock
from shared.errors import SettingsError
from shared.limits import KIB
from shared.logs import Logger

ORDER_BYTES_MAX: Final = 64 * KIB
_LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Order:
    """One order: where it is sent to, and what carries it out, given its body.

    Raises BadOrder for a body that can't be used, and NotNow for what can't be done now. `from_afar` says
    whether it is taken on the public port, too.
    """

    method: Literal["GET", "POST"]
    path: str
    carry_out: Callable[[bytes], Awaitable[web.Response]]
    from_afar: bool = True

    @property
    def name(self) -> str:
        return self.path.removeprefix("/admin/")

    @property
    def changes(self) -> bool:
        """Whether it does something, and doesn't only ask."""
        return self.method == "POST"


class Admin:
    """Takes orders. `stop(at_once)` ends the gateway, and its worker with it, once what runs has finished.

    The gateway calls `going_down` when it begins to end, however it was told to: then only a stop counts, for
    it may still ask to end at once.
    """

    def __init__(
        self,
        policy: PolicyInForce,
        dispatcher: Dispatcher,
        link: WorkerLink,
        quarantine: Quarantine,
        status: SnapshotTaker,
        *,
        clock: Clock,
        stop: Callable[[bool], None],
        log: Logger,
    ) -> None:
        self._policy = policy
        self._dispatcher = dispatcher
        self._link = link
        self._quarantine = quarantine
        self._taker = status
        self._clock = clock
        self._stop = stop
        self._log = log
        self._reloading = asyncio.Lock()
        self._restart: PlannedRestart | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._ends = False

    @property
    def orders(self) -> tuple[Order, ...]:
        """All that can be ordered or asked here."""
        return (
            Order("POST", "/admin/reload", self._reload),
            Order("GET", "/admin/status", self._status),
            Order("GET", "/admin/snapshot", self._snapshot, from_afar=False),
            Order("POST", "/admin/restart", self._begin_restart),
            Order("POST", "/admin/drain", self._drain),
            Order("POST", "/admin/stop", self._end, from_afar=False),
            Order("GET", "/admin/quarantine", self._list_quarantine),
            Order("POST", "/admin/quarantine/clear", self._clear_quarantine),
        )

    def application(self) -> web.Application:
        """Return what answers on the Unix socket."""
        app = web.Application(client_max_size=ORDER_BYTES_MAX, middlewares=[_problems_as_json])
        for order in self.orders:
            app.router.add_route(order.method, order.path, self._by_socket(order))
        return app

    def _by_socket(self, order: Order) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            response = await order.carry_out(await request.read())
            if order.changes:
                self._log.info("order", order=order.name, by="socket")
            return response

        return handle

    async def reload(self) -> Reloaded:
        """Read lanes and keys again; SettingsError if they can't be used. One at a time."""
        async with self._reloading:
            return await self._policy.reload(self._dispatcher.reconfigure)

    def going_down(self) -> None:
        """Take no order any more. A restart that has begun is given up, so that nothing is held."""
        self._ends = True
        if self._restart is not None:
            self._restart.abandon("the gateway is going down")
            self._hold(held=False)

    # --- restarts -----------------------------------------------------------------------------------------

    async def _begin_restart(self, body: bytes) -> web.Response:
        order = read_order(RestartOrder, body)
        self._check_open()
        if self._restart is not None and not self._restart.over:
            raise NotNow("a restart is under way already")
        sight = self._sight()
        if (problem := why_not(sight)) is not None:
            raise NotNow(problem)
        number = 1 if self._restart is None else self._restart.number + 1
        self._restart = PlannedRestart(number, sight, drain=order.drain, timeout_s=order.timeout_s)
        self._restarting = asyncio.create_task(self._carry_out(self._restart))
        return web.json_response(self._told(), status=202)

    async def _carry_out(self, restart: PlannedRestart) -> None:
        """Look and act until it is over. Whatever ends this, nothing stays held or in the next one's way."""
        try:
            while not restart.over:
                if restart.observe(self._sight()) and self._link.restart_worker() is None:
                    restart.unreachable()
                self._hold(held=restart.holds)
                await asyncio.sleep(_LOOK_S)
        finally:
            restart.abandon("it broke off; the gateway's log says why")
            self._hold(held=False)

    def _hold(self, *, held: bool) -> None:
        if self._dispatcher.held != held:
            self._dispatcher.held = held
            self._dispatcher.tick()

    def _sight(self) -> Sight:
        state = self._link.state
        return Sight(
            now_s=self._clock.now(),
            epoch=self._link.epoch,
            status=state.status,
            breaker=state.care.breaker,
            trouble="" if state.last_cause == "planned" else state.last_detail,
            running=self._dispatcher.admission.running,
            live=self._dispatcher.live,
        )

    # --- the others ---------------------------------------------------------------------------------------

    async def _reload(self, _body: bytes) -> web.Response:
        try:
            return web.json_response(asdict(await self.reload()))
        except SettingsError as problem:
            raise NotNow(str(problem)) from problem

    async def _status(self, _body: bytes) -> web.Response:
        return web.json_response(self._told())

    async def _snapshot(self, _body: bytes) -> web.Response:
        return web.json_response(asdict(self._taker.snapshot()))

    async def _drain(self, body: bytes) -> web.Response:
        order = read_order(DrainOrder, body)
        self._check_open()
        self._dispatcher.draining = order.on
        return web.json_response(self._told())

    async def _end(self, body: bytes) -> web.Response:
        """Begin to end. One that ends already can still be told to do it at once."""
        order = read_order(StopOrder, body)
        self._stop(order.at_once)
        return web.json_response(self._told(), status=202)

    async def _list_quarantine(self, _body: bytes) -> web.Response:
        return web.json_response({"entries": [asdict(entry) for entry in self._quarantine.entries()]})

    async def _clear_quarantine(self, body: bytes) -> web.Response:
        order = read_order(ClearOrder, body)
        cleared = self._quarantine.clear(order.fingerprints)
        unknown = [each for each in dict.fromkeys(order.fingerprints or ()) if each not in cleared]
        return web.json_response({"cleared": len(cleared), "unknown": unknown})

    def _check_open(self) -> None:
        if self._ends:
            raise NotNow("the gateway is going down")

    def _told(self) -> dict[str, Any]:
        sight = self._sight()
        return {
            "going_down": self._ends,
            "draining": self._dispatcher.draining,
            "held": self._dispatcher.held,
            "live": sight.live,
            "running": sight.running,
            "worker": {"status": sight.status, "epoch": sight.epoch, "breaker": sight.breaker},
            "restart": None if self._restart is None else self._restart.told(),
        }


class NotNow(Exception):
    """An order that can't be carried out now."""


@web.middleware
async def _problems_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer what is refused here as JSON with a `problem`, as every answer of this door is."""
    try:
        return await handler(request)
    except BadOrder as problem:
        return web.json_response({"problem": str(problem)}, status=400)
    except NotNow as problem:
        return web.json_response({"problem": str(problem)}, status=409)
    except web.HTTPException as problem:
        return web.json_response({"problem": problem.reason}, status=problem.status)
