"""How a stream shows that it lives: a comment each time that its client has heard nothing for long."""

import asyncio
from types import TracebackType
from typing import Self

from proxy.admitted import Event, NothingCame
from proxy.event_blocks import KEEPALIVE


class Silence:
    """Puts NothingCame among a request's events when nothing was sent for `longest_s`.

    Its timer is set again once in that time instead of with every token.
    """

    def __init__(
        self, events: asyncio.Queue[Event], longest_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._events = events
        self._longest_s = longest_s
        self._loop = loop
        self._since = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._look_at(self._since + self._longest_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._timer is not None
        self._timer.cancel()

    def ended(self) -> None:
        """Take note that something is sent now."""
        self._since = self._loop.time()

    def comment(self) -> bytes:
        """Return what is to be sent where nothing else is: a comment if it was silent for so long."""
        return KEEPALIVE if self._loop.time() >= self._since + self._longest_s else b""

    def _look_at(self, moment: float) -> None:
        self._timer = self._loop.call_at(moment, self._look)

    def _look(self) -> None:
        now, due = self._loop.time(), self._since + self._longest_s
        if now < due:
            self._look_at(due)
            return
        # Whoever hasn't read the last ones isn't waiting.
        if self._events.empty():
            self._events.put_nowait(NothingCame())
        self._look_at(now + self._longest_s)
