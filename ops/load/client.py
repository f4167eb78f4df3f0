"""The client: chat requests to any OpenAI-compatible address, streamed, timed, and told no politely."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

import aiohttp

from ops.load.events import EventStream, piece_chars
from ops.load.records import Ask, Attempt, Outcome, Record
from shared.limits import KIB

_TIMEOUT_S: Final = 600.0
_WAIT_S_MAX: Final = 60.0
_CONNECT_S: Final = 30.0
_REFUSAL_BYTES_MAX: Final = 64 * KIB
_CODE_CHARS_MAX: Final = 100


class Client:
    """Any number of clients behind one session without a bound on its connections.

    It sends a request up to `attempts_max` times, and waits in between for as long as it was told to. Every
    request leaves a record in `records`, also one that is cancelled while it runs. `label` begins the
    x-request-id of all that it sends. `where` is a port of this machine, or an address that ends in /v1;
    `more` are further fields of every body.
    """

    def __init__(
        self,
        where: int | str,
        model: str,
        *,
        more: Mapping[str, Any] = MappingProxyType({}),
        label: str = "load",
        attempts_max: int = 1,
        timeout_s: float = _TIMEOUT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.records: list[Record] = []
        self.live = 0
        self._url = f"{_address(where)}/chat/completions"
        self._more = more
        self._model = model
        self._label = label
        self._attempts_max = attempts_max
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        self._sleep = sleep
        self._now = now
        self._numbers = itertools.count(1)
        self._grew = asyncio.Event()
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

    async def until_ended(self, count: int) -> None:
        """Wait until so many records are there."""
        while len(self.records) < count:
            self._grew.clear()
            await self._grew.wait()

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
                self._grew.set()
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
                self._url, json={**_body(self._model, ask), **self._more}, headers=_headers(ask, watch.name)
            ) as response:
                watch.answered(response.status, response.headers, self._now())
                if response.status != 200:
                    watch.refused(await response.content.read(_REFUSAL_BYTES_MAX))
                    return
                async for data in response.content.iter_any():
                    watch.came(data, self._now())
                watch.ended()
        except TimeoutError:
            watch.broke("timeout")
        except ValueError:
            watch.broke("unreadable")
        except (aiohttp.ClientError, OSError):
            watch.broke("connection")


def _address(where: int | str) -> str:
    return f"http://127.0.0.1:{where}/v1" if isinstance(where, int) else where


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
        self.piece_chars: list[int] = []
        self.tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish_reason = ""
        self.lane_served = ""
        self.queue_ms: float | None = None
        self._sent_at = sent_at
        self._answered_at: float | None = None
        self._status = 0
        self._retry_after_s: float | None = None
        self._events = EventStream()
        self._broken = False

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
        """Take bytes of the stream; every event that they complete came now.

        Raises ValueError if one can't be read.
        """
        for event in self._events.feed(data):
            if event is None:
                self.outcome = "failed" if self._broken else "completed"
                continue
            try:
                self._take(event, now)
            except (AttributeError, LookupError, TypeError) as problem:
                raise ValueError("an event of the stream has another shape") from problem

    def _take(self, event: dict[str, Any], now: float) -> None:
        if event.get("error"):
            self._broken = True
            self.code = _code_of(event["error"])
        if event.get("usage"):
            self._count(event["usage"])
        choices = event.get("choices") or ()
        chars = sum(piece_chars(choice.get("delta") or {}) for choice in choices)
        if chars:
            self.text_times.append(now)
            self.piece_chars.append(chars)
        for choice in choices:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _count(self, usage: dict[str, Any]) -> None:
        self.tokens = int(usage["completion_tokens"])
        if usage.get("prompt_tokens") is not None:
            self.prompt_tokens = int(usage["prompt_tokens"])
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        self.cached_tokens = self.cached_tokens if cached is None else int(cached)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return when to come back: retry-after-ms where it is said, else Retry-After; None where neither is."""
    for name, unit_s in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        with contextlib.suppress(KeyError, ValueError):
            return float(headers[name]) * unit_s
    return None


def _error_code(body: bytes) -> str:
    try:
        return _code_of(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        return ""


def _code_of(error: Any) -> str:
    """Return the shortest name of an error; not every server gives it as an object."""
    told = error.get("code") or error.get("type") or "" if isinstance(error, dict) else error
    return str(told)[:_CODE_CHARS_MAX]


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
        piece_chars=tuple(last.piece_chars),
        prompt_tokens=last.prompt_tokens,
        cached_tokens=last.cached_tokens,
        finish_reason=last.finish_reason,
    )
