"""Plays a recording to one client: from its first byte, and on as it is written."""

from collections.abc import Callable

from aiohttp import web

from proxy.event_blocks import KEEPALIVE
from proxy.notes import Notes
from proxy.recording import Listener
from proxy.stream import SSE_HEADERS
from shared.errors import Refusal
from shared.limits import KEEPALIVE_INTERVAL_S


async def play(
    request: web.Request, listener: Listener, notes: Notes, failed: Callable[[Refusal], bytes]
) -> web.StreamResponse:
    """Return the response once all of it is sent, or ready to be. Raises what the run failed by.

    `failed` returns the event that says what a stream failed by.
    """
    recording = listener.recording

    def backlog_bytes() -> int:
        # What is stored counts there.
        written = listener.behind_bytes if recording.forgotten else 0
        return written + recording.unwritten_bytes

    notes.backlog_bytes = backlog_bytes
    while not (recording.streams or recording.ended):
        await recording.news(KEEPALIVE_INTERVAL_S)
    notes.lane = notes.lane or recording.lane
    if recording.streams:
        return await _Playing(request, listener, notes, failed).run()
    listener.raise_error()
    return web.Response(body=_rest(listener), content_type="application/json", charset="utf-8")


def _rest(listener: Listener) -> bytes:
    return b"".join(iter(listener.take, b""))


class _Playing:
    """An event stream's way to one client."""

    def __init__(
        self, request: web.Request, listener: Listener, notes: Notes, failed: Callable[[Refusal], bytes]
    ) -> None:
        self._request = request
        self._listener = listener
        self._notes = notes
        self._failed = failed
        self._response: web.StreamResponse | None = None

    async def run(self) -> web.StreamResponse:
        recording = self._listener.recording
        while True:
            if blocks := self._listener.take():
                await self._write(blocks)
            elif recording.ended:
                break
            elif not await recording.news(KEEPALIVE_INTERVAL_S):
                await self._write(KEEPALIVE)
        await self._fail_if_it_did()
        assert self._response is not None, "a run that fails by nothing has written something"
        await self._response.write_eof()
        return self._response

    async def _fail_if_it_did(self) -> None:
        """Raise what the run failed by, or tell it in an event if the status is sent."""
        try:
            self._listener.raise_error()
        except Refusal as refusal:
            if self._response is None:
                raise
            await self._write(self._failed(refusal))

    async def _write(self, blocks: bytes) -> None:
        """Write some; the status goes out with the first of it."""
        if self._response is None:
            self._response = web.StreamResponse(headers={**SSE_HEADERS, **self._notes.headers()})
            await self._response.prepare(self._request)
        await self._response.write(blocks)
