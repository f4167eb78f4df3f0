"""The client: chat requests to any OpenAI-compatible address, streamed, timed, and told no politely."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from ops.load.records import Ask, Attempt, Outcome, Record

_TIMEOUT_S: Final = 600.0
_WAIT_S_MAX: Final = 60.0
_CONNECT_S: Final = 30.0


class Client:
    """Any number of clients behind one session without a bound on its connections.

    It sends a request up to `attempts_max` times, and waits in between for as long as it was told to. Every
    request leaves a record in `records`, also one that is cancelled while it runs. `label` begins the
    x-request-id of all that it sends.
    """

    def __init__(
        self,
        port: int,
        model: str,
        *,
        label: str = "load",
        attempts_max: int = 1,
        timeout_s: float = _TIMEOUT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records: list[Record] = []
        self.live = 0
        self._url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self._model = model
        self._label = label
        self._attempts_max = attempts_max
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        self._sleep = sleep
        self._now = now
        self._numbers = itertools.count(1)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    def take(self) -> list[Record]:
        """Return the records since the last take."""
        taken, self.records = self.records, []
        return taken

    def told(self) -> str:
        """Say how far things are, for the one who waits."""
        return f"{self.live} under way, {len(self.records)} ended"

    async def ask(self, ask: Ask) -> Record:
        """Send until an answer or the last attempt has ended, and return what became of it."""
        watches: list[_Watch] = []
        self.live += 1
        try:
            await self._insist(ask, watches)
        except asyncio.CancelledError:
            watches[-1].outcome = "cut"
            raise
        finally:
            self.live -= 1
            if watches:
                self.records.append(_record(ask, watches, self._now()))
        return self.records[-1]

    async def _insist(self, ask: Ask, watches: "list[_Watch]") -> None:
        while True:
            watches.append(_Watch(f"{self._label}-{next(self._numbers)}", self._now()))
            await self._send(ask, watches[-1])
            wait_s = watches[-1].wait_s
            if wait_s is None or len(watches) >= self._attempts_max:
                return
            await self._sleep(wait_s)

    async def _send(self, ask: Ask, watch: "_Watch") -> None:
        assert self._session is not None, "the client is used outside its `async with`"
        try:
            async with self._session.post(
                self._url, json=_body(self._model, ask), headers=_headers(ask, watch.name)
            ) as response:
                watch.answered(response.status, response.headers, self._now())
                if response.status != 200:
                    watch.refused(await response.read())
                    return
                async for data in response.content.iter_any():
                    watch.came(data, self._now())
                watch.ended()
        except TimeoutError:
            watch.broke("timeout")
        except (aiohttp.ClientError, OSError):
            watch.broke("connection")


def _body(model: str, ask: Ask) -> dict[str, Any]:
    tier = {"service_tier": "flex"} if ask.lane == "batch" else {}
    return {
        "model": model,
        "messages": [{"role": "user", "content": ask.prompt}],
        "temperature": 0,
        "max_tokens": ask.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **tier,
    }


def _headers(ask: Ask, name: str) -> dict[str, str]:
    """Lanes that no service tier stands for are asked for by name."""
    headers = {"x-request-id": name}
    if ask.key is not None:
        headers["Authorization"] = f"Bearer {ask.key}"
    if ask.lane not in ("interactive", "batch"):
        headers["x-forebay-lane"] = ask.lane
    return headers


class _Watch:
    """One sending while it lasts."""

    def __init__(self, name: str, sent_at: float) -> None:
        self.name = name
        self.outcome: Outcome = "failed"
        self.code = ""
        self.text_times: list[float] = []
        self.tokens: int | None = None
        self.lane_served = ""
        self.queue_ms: float | None = None
        self._sent_at = sent_at
        self._answered_at: float | None = None
        self._status = 0
        self._retry_after_s: float | None = None
        self._unread = b""

    @property
    def wait_s(self) -> float | None:
        """How long it was told to wait before it comes again; None if it wasn't."""
        if self._status not in (429, 503) or self._retry_after_s is None:
            return None
        return min(_WAIT_S_MAX, self._retry_after_s)

    def attempt(self) -> Attempt:
        return Attempt(
            self.name, self._sent_at, self._answered_at, self._status, self._retry_after_s, self.code
        )

    def answered(self, status: int, headers: Mapping[str, str], now: float) -> None:
        self._answered_at = now
        self._status = status
        self._retry_after_s = retry_after_s(headers)
        self.code = headers.get("x-forebay-dropped-reason", "")
        self.lane_served = headers.get("x-forebay-lane", "")
        with contextlib.suppress(KeyError, ValueError):
            self.queue_ms = float(headers["x-forebay-queue-ms"])

    def refused(self, body: bytes) -> None:
        self.outcome = "refused" if self._status in (429, 503) else "failed"
        self.code = self.code or _error_code(body) or str(self._status)

    def broke(self, code: str) -> None:
        """Take note of a connection's end before the answer's; what had come is kept."""
        self.outcome, self.code = "failed", code

    def ended(self) -> None:
        """Take note of the stream's end, which without [DONE] is no answer's."""
        if self.outcome != "completed":
            self.code = self.code or "incomplete"

    def came(self, data: bytes, now: float) -> None:
        """Take bytes of the stream; every event that they complete came now."""
        *events, self._unread = (self._unread + data).split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                self.outcome = "completed"
            elif event.startswith(b"data: {"):
                self._take(json.loads(event[6:]), now)

    def _take(self, event: dict[str, Any], now: float) -> None:
        if "error" in event:
            self.code = str(event["error"].get("code") or event["error"].get("type"))
        if event.get("usage"):
            self.tokens = int(event["usage"]["completion_tokens"])
        if any(choice["delta"].get("content") for choice in event.get("choices", ())):
            self.text_times.append(now)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return when to come back: retry-after-ms where it is said, else Retry-After; None where neither is."""
    for name, unit_s in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        with contextlib.suppress(KeyError, ValueError):
            return float(headers[name]) * unit_s
    return None


def _error_code(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def _record(ask: Ask, watches: list[_Watch], now: float) -> Record:
    last = watches[-1]
    return Record(
        ask=ask,
        attempts=tuple(watch.attempt() for watch in watches),
        text_times=tuple(last.text_times),
        ended_at=now,
        tokens=len(last.text_times) if last.tokens is None else last.tokens,
        outcome=last.outcome,
        code=last.code,
        lane_served=last.lane_served,
        queue_ms=last.queue_ms,
    )
