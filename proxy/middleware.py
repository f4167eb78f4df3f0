"""Around every request: an id, one log line, and the one place where errors become responses."""

import asyncio
import re
import secrets
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from proxy.dialects.messages_errors import REQUEST_ID_HEADER, anthropic_failure, speaks_anthropic
from proxy.failures import failure_response
from proxy.notes import NOTES, Notes
from shared.clock import Clock
from shared.errors import Refusal
from shared.logs import Logger

_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def request_boundary(
    clock: Clock, jitter: Callable[[], float], refused: Callable[[str, str], None], log: Logger
) -> Middleware:
    """Return the middleware. A client's own x-request-id is echoed if it is short and plain.

    `refused` is told of each refusal at arrival: its lane, "" where that isn't known, and its code.
    """

    @web.middleware
    async def boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
        notes = request[NOTES] = Notes(_request_id(request), clock.now())
        if speaks_anthropic(request.path):
            notes.extra_headers[REQUEST_ID_HEADER] = notes.request_id
        status = 499
        try:
            response = await _answered(request, handler, jitter, refused, log)
            status = response.status
        finally:
            ms = round(1000 * (clock.now() - notes.arrived_at))
            tell = log.debug if request.path.startswith("/health/") else log.info
            tell(
                "request",
                id=notes.request_id,
                path=request.path,
                lane=notes.served_by or None,
                status=status,
                ms=ms,
                **_extras(notes),
            )
        if not response.prepared:
            response.headers.update(notes.headers())
        return response

    return boundary


def _extras(notes: Notes) -> dict[str, Any]:
    """Return what only some requests' lines say: what prompts took, and what they belong to."""
    prompts = notes.prompts
    tokens = {"prompt_tokens": prompts.tokens, "cached_tokens": prompts.cached} if prompts.tokens else {}
    return tokens | ({"session": notes.session} if notes.session else {})


async def _answered(
    request: web.Request,
    handler: Handler,
    jitter: Callable[[], float],
    refused: Callable[[str, str], None],
    log: Logger,
) -> web.StreamResponse:
    try:
        return await handler(request)
    except asyncio.CancelledError:
        raise
    except (Refusal, web.HTTPException) as refusal:
        failure = failure_response(refusal, jitter)
        if request[NOTES].admitted is None:
            refused(request[NOTES].lane, failure.reason)
    except Exception as error:
        log.exception("request failed", id=request[NOTES].request_id, path=request.path)
        if request.writer.output_size:
            raise  # Its head is out: all that's honest now is to close the connection.
        failure = failure_response(error, jitter)
    if speaks_anthropic(request.path):
        failure = anthropic_failure(failure, request[NOTES].request_id)
    return web.json_response(failure.body, status=failure.status, headers=failure.headers)


def _request_id(request: web.Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _CLIENT_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
