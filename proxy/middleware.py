"""Around every request: an id, one log line, its trace, and the one place where errors become responses."""

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from proxy.admin_routes import gives_orders
from proxy.dialects.messages_errors import REQUEST_ID_HEADER, anthropic_failure, speaks_anthropic
from proxy.failures import Failure, failure_response
from proxy.notes import NOTES, Notes
from proxy.open_door import OpenDoor
from proxy.request_line import Ending, is_polled, line_of
from proxy.tracing import Traces
from shared.clock import Clock
from shared.errors import Refusal
from shared.logs import Logger

_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is told of requests: `refused` of each refusal at arrival, by lane, code and key class.

    Lane and key class are "" where they aren't known. With `prompts` a line has the beginning of its prompt.
    """

    clock: Clock
    jitter: Callable[[], float]
    refused: Callable[[str, str, str], None]
    log: Logger
    prompts: bool = False
    traces: Traces | None = None
    door: OpenDoor | None = None


def request_boundary(around: Surroundings) -> Middleware:
    """Return the middleware. A client's own x-request-id is echoed if it is short and plain."""

    @web.middleware
    async def boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
        notes = request[NOTES] = Notes(_request_id(request), around.clock.now())
        if speaks_anthropic(request.path):
            notes.extra_headers[REQUEST_ID_HEADER] = notes.request_id
        ending = Ending()
        try:
            response = await _answered(request, handler, ending, around)
            ending.status = response.status
        finally:
            _say(request, notes, ending, around)
        if not response.prepared:
            response.headers.update(notes.headers())
        return response

    return boundary


def _say(request: web.Request, notes: Notes, ending: Ending, around: Surroundings) -> None:
    line = line_of(notes, request.method, request.path, ending, around.clock, prompts=around.prompts)
    tell = around.log.debug if is_polled(request.method, request.path) else around.log.info
    tell("request", **line.facts())
    if around.traces is not None:
        around.traces.ended(request.headers, request.method, request.path, notes, ending)


async def _answered(
    request: web.Request, handler: Handler, ending: Ending, around: Surroundings
) -> web.StreamResponse:
    try:
        if around.door is not None:
            around.door.check(request.headers)
        return await handler(request)
    except asyncio.CancelledError:
        raise
    except (Refusal, web.HTTPException) as refusal:
        failure = failure_response(refusal, around.jitter)
        notes = request[NOTES]
        if notes.admitted is None and not gives_orders(request.path):
            around.refused(notes.lane, failure.reason, notes.caller.key_class)
    except Exception as error:
        failure = failure_response(error, around.jitter)
        if not _has_left(request, error):
            around.log.exception("request failed", id=request[NOTES].request_id, path=request.path)
            ending.failure = failure
        if request.writer.output_size:
            raise  # Its head is out: all that's honest now is to close the connection.
    ending.failure = failure
    return _told(request, failure)


def _has_left(request: web.Request, error: Exception) -> bool:
    """Whether all that went wrong is that the client is gone."""
    gone = request.transport is None or request.transport.is_closing()
    return gone and isinstance(error, ConnectionError)


def _told(request: web.Request, failure: Failure) -> web.Response:
    """Return an error in the shape of the URL's dialect."""
    if gives_orders(request.path):
        body = {"problem": failure.body["error"]["message"]}
        return web.json_response(body, status=failure.status, headers=failure.headers)
    if speaks_anthropic(request.path):
        failure = anthropic_failure(failure, request[NOTES].request_id)
    return web.json_response(failure.body, status=failure.status, headers=failure.headers)


def _request_id(request: web.Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _CLIENT_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
