"""A client that looks closely: it keeps every word, notes each claim to be the end, and retries as told."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from ops.chaos.said import Ask, Refused, Said
from ops.load.client import retry_after_s

_TIMEOUT_S: Final = 300.0
_CONNECT_S: Final = 10.0
_WAIT_S_MAX: Final = 20.0
_NO_ANSWER_WAIT_S: Final = 0.5
_RETRIED: Final = (408, 409, 429)


class Client:
    """Asks, and sends again up to `attempts_max` times what OpenAI's clients would, as `x-should-retry` says.

    A connection that breaks before the status line is tried again as well. Every request leaves a Said in
    `said`, one that is cancelled too. `pieces` counts the text that came, of all of
    them, and `speaking` the answers that have had any.
    """

    def __init__(self, port: int, model: str, *, label: str, attempts_max: int = 60) -> None:
        self.said: list[Said] = []
        self.live = 0
        self.pieces = 0
        self.speaking = 0
        self._base = f"http://127.0.0.1:{port}"
        self._model = model
        self._label = label
        self._attempts_max = attempts_max
        self._numbers = itertools.count(1)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=_CONNECT_S)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    def told(self) -> str:
        """Say how far things are, for the one who waits."""
        return f"{self.live} under way, {len(self.said)} ended"

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON body of a GET; status 0 if nobody answers in time."""
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=5.0)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
            async with self._session.get(self._base + path, timeout=timeout) as response:
                return response.status, json.loads(await response.read())
        return 0, {}

    async def ask(self, ask: Ask) -> Said:
        """Send until an answer or the last attempt has ended, and return what was said."""
        sent_at = time.time()
        refusals: list[Refused] = []
        hearing = _Hearing(ask, self._note_piece)
        self.live += 1
        try:
            while True:
                hearing = _Hearing(ask, self._note_piece)
                wait_s = await self._send(ask, hearing, refusals)
                if wait_s is None or len(refusals) >= self._attempts_max:
                    break
                await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            hearing.endings.append("given up waiting for")
            raise
        finally:
            self.live -= 1
            self.said.append(hearing.said(sent_at, tuple(refusals)))
        return self.said[-1]

    def _note_piece(self, number: int) -> None:
        self.pieces += 1
        self.speaking += number == 1

    async def _send(self, ask: Ask, hearing: "_Hearing", refusals: list[Refused]) -> float | None:
        """Send once; return how long to wait before it is sent again, None if it isn't."""
        assert self._session is not None, "the client is used outside its `async with`"
        headers = {"x-request-id": f"{self._label}-{next(self._numbers)}"}
        began, status = time.monotonic(), 0
        try:
            url, body = f"{self._base}/v1/chat/completions", _body(self._model, ask)
            async with self._session.post(url, json=body, headers=headers) as response:
                status, took_s = response.status, time.monotonic() - began
                if status == 200:
                    await hearing.hear(response)
                    return None
                code = _code(await response.read())
                refused = Refused(status, code, took_s, retry_after_s(response.headers))
        except (aiohttp.ClientError, OSError) as problem:
            # TimeoutError is an OSError.
            kind = type(problem).__name__
            if status == 200:
                hearing.endings.append(f"broken {kind}")
                return None
            refusals.append(Refused(0, kind, time.monotonic() - began, None))
            hearing.endings.append(f"broken {kind}")
            return _NO_ANSWER_WAIT_S
        refusals.append(refused)
        hearing.endings.append(f"refused {status} {code}")
        return _wait_s(refused, response.headers)


def _wait_s(refused: Refused, headers: Mapping[str, str]) -> float | None:
    advised = headers.get("x-should-retry")
    retried = refused.status in _RETRIED or refused.status >= 500
    if advised == "false" or (advised != "true" and not retried):
        return None
    return min(_WAIT_S_MAX, _NO_ANSWER_WAIT_S if refused.retry_after_s is None else refused.retry_after_s)


def _body(model: str, ask: Ask) -> dict[str, Any]:
    drawn = {"temperature": 0} if ask.seed is None else {"temperature": 0.8, "seed": ask.seed}
    streamed = {"stream": True, "stream_options": {"include_usage": True}} if ask.stream else {}
    tier = {"service_tier": "flex"} if ask.lane == "batch" else {}
    messages = [{"role": "user", "content": ask.prompt}]
    return {"model": model, "messages": messages, "max_tokens": ask.max_tokens, **drawn, **streamed, **tier}


def _code(body: bytes) -> str:
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        error = json.loads(body)["error"]
        return str(error.get("code") or error.get("type") or "")
    return ""


class _Hearing:
    """One answer while it comes."""

    def __init__(self, ask: Ask, on_piece: Callable[[int], object] = lambda _number: None) -> None:
        self._on_piece = on_piece
        self.endings: list[str] = []
        self._ask = ask
        self._pieces: list[str] = []
        self._piece_times: list[float] = []
        self._reasons: list[str] = []
        self._tokens: int | None = None

    def said(self, sent_at: float, refusals: tuple[Refused, ...]) -> Said:
        return Said(
            ask=self._ask,
            sent_at=sent_at,
            ended_at=time.time(),
            text="".join(self._pieces),
            endings=tuple(self.endings) or ("broken without an end",),
            reasons=tuple(self._reasons),
            piece_times=tuple(self._piece_times),
            tokens=self._tokens,
            refusals=refusals,
        )

    async def hear(self, response: aiohttp.ClientResponse) -> None:
        """Take a whole body, or a stream until its end or until this client has had enough."""
        if not self._ask.stream:
            self._take_body(json.loads(await response.read()))
            return
        unread = b""
        async for data in response.content.iter_any():
            *events, unread = (unread + data).split(b"\n\n")
            for event in events:
                self.take_event(event)
            if self._ask.leaves_after is not None and len(self._pieces) >= self._ask.leaves_after:
                self.endings.append("left")
                response.close()
                return

    def take_event(self, event: bytes) -> None:
        if not event.startswith(b"data: "):
            return
        if self.endings:
            self.endings.append("more")
        elif event == b"data: [DONE]":
            self.endings.append("done")
        else:
            self._take_chunk(json.loads(event[6:]))

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.endings.append(f"error {chunk['error'].get('code') or chunk['error'].get('type')}")
            return
        if chunk.get("usage"):
            self._tokens = int(chunk["usage"]["completion_tokens"])
        for choice in chunk.get("choices", ()):
            self._take_choice(choice["delta"].get("content"), choice.get("finish_reason"))

    def _take_body(self, body: dict[str, Any]) -> None:
        (choice,) = body["choices"]
        self._tokens = int(body["usage"]["completion_tokens"])
        self._take_choice(choice["message"]["content"], choice["finish_reason"])
        self.endings.append("body")

    def _take_choice(self, text: str | None, reason: str | None) -> None:
        if text:
            self._pieces.append(text)
            self._piece_times.append(time.time())
            self._on_piece(len(self._pieces))
        if reason:
            self._reasons.append(reason)
