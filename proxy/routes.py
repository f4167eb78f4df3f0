"""The public URLs and what each does with a request, step by step."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from proxy import bodies
from proxy.admitted import Admitted
from proxy.dispatch import Dispatcher
from proxy.health import Health
from proxy.measure import Measurer
from proxy.middleware import REQUEST_ID
from proxy.parse import parse_chat, parse_completion
from proxy.request import Parsed
from proxy.stream import EventStream, Reply, gather
from proxy.text_model import TextModel
from proxy.worker_link import WorkerLink
from shared.errors import ModelNotFound
from shared.limits import BODY_BYTES_MAX, KIB

Parser = Callable[[bytes, Callable[[], int]], Parsed]

_BODY_BYTES_SMALL: Final = 256 * KIB
_ID_PREFIXES: Final = {"chat": "chatcmpl-", "completions": "cmpl-"}


@dataclass(frozen=True, slots=True)
class Service:
    """What the handlers need. `names` are the model's names; the first is its real one."""

    names: tuple[str, ...]
    text_model: TextModel
    measurer: Measurer
    dispatcher: Dispatcher
    link: WorkerLink
    health: Health
    jitter: Callable[[], float]
    seeds: Callable[[], int]
    fingerprint: str
    created: int


class Routes:
    """Handlers of the OpenAI endpoints. `body_timeout_s` is what a client gets to send its body."""

    def __init__(self, service: Service, body_timeout_s: float) -> None:
        self._service = service
        self._body_timeout_s = body_timeout_s

    def add_to(self, app: web.Application) -> None:
        health = self._service.health
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.completions),
                web.get("/v1/models", self.models),
                web.get("/v1/models/{id:.+}", self.model),
                web.get("/health/live", health.live),
                web.get("/health/ready", health.ready),
            ]
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, parse_chat)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, parse_completion)

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response(bodies.model_list([self._served(name) for name in self._service.names]))

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response(bodies.model(self._served(self._checked_name(request.match_info["id"]))))

    # --- a request's way ----------------------------------------------------------------------------------

    async def _serve(self, request: web.Request, parse: Parser) -> web.StreamResponse:
        """Parse, measure, admit, and stay with it until its last token."""
        _check_content(request)
        parsed = await self._parsed(await self._body(request), parse)
        self._checked_name(parsed.model)
        with self._service.dispatcher.arriving(parsed.answers):
            measured = await self._service.measurer.measure(parsed)
        with self._service.dispatcher.admit(measured, request[REQUEST_ID]) as admitted:
            return await self._answer(request, admitted)

    async def _body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await request.read()
        except TimeoutError as problem:
            raise web.HTTPRequestTimeout from problem

    async def _parsed(self, body: bytes, parse: Parser) -> Parsed:
        """Parse a large body in a thread, so that the streams of others go on meanwhile."""
        if len(body) <= _BODY_BYTES_SMALL:
            return parse(body, self._service.seeds)
        return await asyncio.to_thread(parse, body, self._service.seeds)

    async def _answer(self, request: web.Request, admitted: Admitted) -> web.StreamResponse:
        parsed = admitted.measured.parsed
        head = self._head(parsed)
        reply = Reply(admitted, self._service.text_model)
        if parsed.stream:
            stream = EventStream(request, reply, head, admitted, self._service.jitter)
            return await stream.run(lambda: _headers(request, admitted))
        body = await gather(reply, head, admitted)
        return web.json_response(body, headers=_headers(request, admitted))

    def _head(self, parsed: Parsed) -> bodies.Head:
        return bodies.Head(
            id=_ID_PREFIXES[parsed.endpoint] + secrets.token_hex(12),
            created=int(time.time()),
            model=parsed.model,
            system_fingerprint=self._service.fingerprint,
        )

    # --- models -------------------------------------------------------------------------------------------

    def _checked_name(self, name: str) -> str:
        if name not in self._service.names:
            known = ", ".join(self._service.names)
            raise ModelNotFound(
                f"The model {name[:100]!r} is not served here; this is: {known}.", param="model"
            )
        return name

    def _served(self, name: str) -> bodies.ServedModel:
        """Return a model with what the worker found out about it."""
        hello = self._service.link.state.hello
        capabilities: dict[str, Any] = {"context_tokens": self._service.measurer.context_tokens}
        if hello is not None:
            capabilities |= {
                "family": hello.facts.family,
                "batches": hello.facts.batches,
                "rows": hello.slots,
                "one_row_because": hello.facts.why_not or None,
                "kv_bytes_per_token": hello.facts.kv_bytes_per_token,
            }
        return bodies.ServedModel(name, self._service.created, capabilities)


def _headers(request: web.Request, admitted: Admitted) -> dict[str, str]:
    return {
        "x-request-id": request[REQUEST_ID],
        "x-forebay-queue-ms": str(admitted.queue_ms),
        "x-forebay-attempts": str(admitted.attempts),
    }


def _check_content(request: web.Request) -> None:
    """Take JSON, and bodies that don't say what they are, of a bounded length: before any of it is read."""
    if (request.content_length or 0) > BODY_BYTES_MAX:
        raise web.HTTPRequestEntityTooLarge(BODY_BYTES_MAX, request.content_length or 0)
    if "Content-Type" in request.headers and request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType
