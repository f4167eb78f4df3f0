"""One client's connection: what it has still to take, whether it's idle, and errors in the house's shape."""

import secrets
from collections.abc import Callable
from typing import Any, Protocol

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from proxy.failures import failure_response
from proxy.notes import NOTES
from proxy.slow_readers import Reading


class Door(Protocol):
    """Where connections come in and go."""

    def came(self, connection: "Connection") -> bool:
        """Take a connection in; False if it was turned away instead."""

    def went(self, connection: "Connection") -> None: ...


class Connection(RequestHandler):
    """As aiohttp's, and known to the door while it's open."""

    __slots__ = ("_door", "_jitter")

    def __init__(self, manager: web.Server, door: Door, jitter: Callable[[], float], **options: Any) -> None:
        super().__init__(manager, **options)
        self._door = door
        self._jitter = jitter

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self._door.came(self):
            super().connection_made(transport)
        else:
            self.transport = None

    def connection_lost(self, exc: BaseException | None) -> None:
        self._door.went(self)
        super().connection_lost(exc)

    # --- what it is doing ---------------------------------------------------------------------------------

    @property
    def idle_since_s(self) -> float | None:
        """Since when it waits for a request's head, on the loop's clock; None if it doesn't."""
        if self._waiter is None or self._waiter.done() or self._messages:
            return None
        return self._next_keepalive_close_time - self._keepalive_timeout

    def reading(self) -> Reading:
        """Return what the client has still to take, of this request and of what waits behind it."""
        transport, request = self.transport, self._current_request
        buffered = 0 if transport is None else transport.get_write_buffer_size()
        if request is None:
            return Reading(-buffered, buffered)
        notes = request.get(NOTES)
        backlog = 0 if notes is None else notes.backlog_bytes()
        return Reading(request.writer.output_size - buffered, buffered, backlog)

    @property
    def request_id(self) -> str | None:
        """The id of the request that is being answered."""
        notes = None if self._current_request is None else self._current_request.get(NOTES)
        return None if notes is None else notes.request_id

    def abort(self) -> None:
        """End it now, with all that is still to be sent; a handler at work is cancelled."""
        if self.transport is not None:
            self.transport.abort()

    # --- errors that never reach the application ----------------------------------------------------------

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response; one that aiohttp itself refused with gets the house's shape."""
        if isinstance(resp, web.HTTPException) and not resp.prepared:
            resp = self._failed(resp)
        return await super().finish_response(request, resp, start_time)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,  # noqa: ARG002 (the interface's)
        message: str | None = None,  # noqa: ARG002 (likewise)
    ) -> web.StreamResponse:
        """Return the response to bytes that are no HTTP. What fails in a handler was logged before."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response's head is out")
        response = self._failed(web.HTTPBadRequest() if status < 500 else RuntimeError())
        response.force_close()
        return response

    def _failed(self, error: Exception) -> web.Response:
        failure = failure_response(error, self._jitter)
        headers = {**failure.headers, "x-request-id": f"req_{secrets.token_hex(12)}"}
        return web.json_response(failure.body, status=failure.status, headers=headers)
