"""The operator's orders on the public port, for whoever shows an admin key.

The same orders with the same answers as on the Unix socket (proxy/admin.py), but for two. There is no stop: a
gateway that was stopped over the network can't be started again over it, so whoever stops it sits at the
machine. And there is no snapshot, which is at /status for everybody.

No page of another origin can give orders: they need the header Authorization and, to do something, JSON,
which a browser sends elsewhere only where it is allowed to; nothing here allows it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.admin import ORDER_BYTES_MAX, Admin, NotNow, Order
from proxy.authenticate import KeyRing
from proxy.notes import NOTES
from proxy.orders import BadOrder
from shared.errors import PermissionDenied
from shared.logs import Logger

_STOP: Final = "/admin/stop"
_NO_STOP: Final = (
    "A stop isn't taken over the network, because nothing over the network could undo it; `forebay stop` on "
    "the gateway's machine stops it."
)


class AdminRoutes:
    """Handlers of /admin/… on the public port. `body_timeout_s` is what an order gets to come in."""

    def __init__(self, admin: Admin, keys: Callable[[], KeyRing], body_timeout_s: float, log: Logger) -> None:
        self._admin = admin
        self._keys = keys
        self._body_timeout_s = body_timeout_s
        self._log = log

    def add_to(self, app: web.Application) -> None:
        for order in self._admin.orders:
            if order.from_afar:
                app.router.add_route(order.method, order.path, self._taking(order))
        app.router.add_route("POST", _STOP, self._no_stop)

    def _taking(self, order: Order) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            giver = self._keys().order_giver(request.headers)
            request[NOTES].caller = giver
            body = await self._body(request) if order.changes else b""
            try:
                response = await order.carry_out(body)
            except BadOrder as problem:
                response = web.json_response({"problem": str(problem)}, status=400)
            except NotNow as problem:
                response = web.json_response({"problem": str(problem)}, status=409)
            if order.changes:
                self._log.info("order", order=order.name, by=giver.name, status=response.status)
            response.headers["Cache-Control"] = "no-store"
            return response

        return handle

    async def _no_stop(self, request: web.Request) -> web.StreamResponse:
        self._keys().order_giver(request.headers)
        raise PermissionDenied(_NO_STOP)

    async def _body(self, request: web.Request) -> bytes:
        """Read an order's body, which is JSON and small."""
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType
        if (request.content_length or 0) > ORDER_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(ORDER_BYTES_MAX, request.content_length or 0)
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await request.clone(client_max_size=ORDER_BYTES_MAX).read()
        except TimeoutError as problem:
            raise web.HTTPRequestTimeout from problem


def gives_orders(path: str) -> bool:
    """Whether a path of the public port is the operator's: errors there are told as orders' are."""
    return path.startswith("/admin/")
