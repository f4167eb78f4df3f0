"""What a connection is told for which there is no room, and how it ends."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from proxy.failures import failure_response
from shared.errors import Overloaded

_RETRY_S: Final = 5.0
_FAREWELL_S: Final = 1.0


def words(jitter: Callable[[], float]) -> bytes:
    """Return a whole response that says when to come back."""
    message = "the server has as many connections as it can have"
    failure = failure_response(Overloaded(message, retry_after_s=_RETRY_S), jitter)
    body = json.dumps(failure.body).encode()
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **failure.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    status = HTTPStatus(failure.status)
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{lines}\r\n".encode() + body


class Farewell(asyncio.Protocol):
    """Says its words to a client that is turned away, and hears it out for a second; `ended` is told then.

    Closing at once, with its request unread, would make the system throw the words away, too.
    """

    def __init__(self, said: bytes, ended: Callable[["Farewell"], None]) -> None:
        self._said = said
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it has both ways
        self._transport = transport
        transport.write(self._said)
        if transport.can_write_eof():
            transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(_FAREWELL_S, self.end)

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the interface's)
        self._ended(self)
        if self._timer is not None:
            self._timer.cancel()
