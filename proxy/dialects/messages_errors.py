"""Errors in Anthropic's words: the same refusals under other types, and 529 for whatever is too much now."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from proxy.failures import Failure
from shared.errors import ContextTooLong

PATH: Final = "/v1/messages"
REQUEST_ID_HEADER: Final = "request-id"
_OVERLOADED: Final = 529
_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_OTHERS: Final = "invalid_request_error"
# Clients look for these words, and make their conversation shorter.
_TOO_LONG: Final = "prompt is too long: "


def speaks_anthropic(path: str) -> bool:
    """Whether a URL is one of Anthropic's, known here or not."""
    return path == PATH or path.startswith(f"{PATH}/")


def error_of(failure: Failure) -> dict[str, Any]:
    """Return what an event says of a stream that fails."""
    kind, message = _TYPES.get(failure.status, _OTHERS), failure.body["error"]["message"]
    if failure.reason == ContextTooLong.code:
        message = _TOO_LONG + message
    return {"type": "error", "error": {"type": kind, "message": message}}


def anthropic_failure(failure: Failure, request_id: str) -> Failure:
    """Return a failure as Anthropic's clients read it. Its code is in x-forebay-dropped-reason only."""
    status = _OVERLOADED if failure.status == 503 else failure.status
    return replace(failure, status=status, body={**error_of(failure), "request_id": request_id})
