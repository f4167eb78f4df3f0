"""The only table from error to HTTP: status, body in OpenAI's shape, and when to come back.

`code` in the body is the error's own, and null where it would only repeat `type`, as OpenAI's is. The same
word stands in x-forebay-dropped-reason, where it is never null.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from shared.errors import (
    ContextTooLong,
    IdempotencyKeyReused,
    InvalidKey,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    Quarantined,
    RateLimited,
    Refusal,
    ResponseNotFound,
    Unavailable,
)
from shared.limits import BODY_BYTES_MAX

_INVALID: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_RATE: Final = "rate_limit_error"
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 60.0

# The nearest class of an error's ancestors counts.
_REFUSALS: Final[Mapping[type[Refusal], tuple[int, str]]] = {
    InvalidRequest: (400, _INVALID),
    ContextTooLong: (400, _INVALID),
    IdempotencyKeyReused: (422, _INVALID),
    Quarantined: (422, _INVALID),
    ModelNotFound: (404, _INVALID),
    ResponseNotFound: (404, _INVALID),
    InvalidKey: (401, _INVALID),
    PermissionDenied: (403, _INVALID),
    RateLimited: (429, _RATE),
    Unavailable: (503, _SERVER),
}
# What aiohttp itself refuses: status → (code, message).
_ROUTE_FAILURES: Final[Mapping[int, tuple[str, str]]] = {
    404: ("route_not_found", "There is no such URL here."),
    405: ("method_not_allowed", "This URL doesn't take this method."),
    408: ("request_timeout", "The request's body took too long to come."),
    413: ("request_too_large", f"The body has more than the {BODY_BYTES_MAX} bytes allowed."),
    415: ("unsupported_media_type", "The body must be JSON: content-type application/json."),
    417: ("expectation_failed", "The only expectation that can be met is 100-continue."),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that is an error; `body` is to be sent as JSON."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        """The error's code, in full."""
        return self.headers.get("x-forebay-dropped-reason", _SERVER)

    @property
    def event(self) -> dict[str, Any]:
        """The body for a stream whose headers are out: the time to come back stands in it."""
        if "retry-after-ms" not in self.headers:
            return self.body
        return {"error": {**self.body["error"], "retry_after_ms": int(self.headers["retry-after-ms"])}}


def failure_response(error: BaseException, jitter: Callable[[], float]) -> Failure:
    """Return the answer for any error.

    `jitter` returns a random factor in [0.8, 1.2] for the time to come back: equal times would bring all
    refused clients back at once. What nobody foresaw is a 500 that says nothing of the inside.
    """
    if isinstance(error, Refusal):
        return _refused(error, jitter)
    if isinstance(error, web.HTTPException) and 400 <= error.status < 500:
        return _route_failure(error)
    message = "The server failed on this request; its log says why."
    return Failure(500, _body(message, _SERVER, _SERVER, None), {})


def _refused(error: Refusal, jitter: Callable[[], float]) -> Failure:
    known = (_REFUSALS[ancestor] for ancestor in type(error).__mro__ if ancestor in _REFUSALS)
    status, kind = next(known, (400, _INVALID))
    if isinstance(error, Unavailable):
        # A key's own bounds are exact: whoever comes back before that is refused again.
        factor = max(1.0, jitter()) if isinstance(error, RateLimited) else jitter()
        headers = _come_back(error.retry_after_s * factor)
    else:
        headers = {"x-should-retry": "false"}
    if isinstance(error, InvalidKey):
        headers["WWW-Authenticate"] = "Bearer"
    headers["x-forebay-dropped-reason"] = error.code
    return Failure(status, _body(error.message, kind, error.code, error.param), headers)


def _come_back(seconds: float) -> dict[str, str]:
    seconds = min(_RETRY_S_MAX, max(_RETRY_S_MIN, seconds))
    return {"Retry-After": str(math.ceil(seconds)), "retry-after-ms": str(math.ceil(1000 * seconds))}


def _route_failure(error: web.HTTPException) -> Failure:
    code, message = _ROUTE_FAILURES.get(error.status, (_INVALID, "The request can't be understood."))
    headers = {"x-should-retry": "false", "x-forebay-dropped-reason": code}
    if "Allow" in error.headers:
        headers["Allow"] = error.headers["Allow"]
    return Failure(error.status, _body(message, _INVALID, code, None), headers)


def _body(message: str, kind: str, code: str, param: str | None) -> dict[str, Any]:
    shown_code = None if code == kind else code
    return {"error": {"message": message, "type": kind, "param": param, "code": shown_code}}
