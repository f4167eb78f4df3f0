"""The public URLs and what each does with a request, step by step."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from proxy import bodies
from proxy.admission.quota import Quotas
from proxy.admitted import Admitted
from proxy.answer_bytes import event_bytes
from proxy.authenticate import Caller, check_model
from proxy.conversations import Conversations
from proxy.described import docs, openapi, text_facts
from proxy.dialects.dialect import Dialect, Head
from proxy.dialects.messages_parse import parse_count
from proxy.dialects.table import DIALECTS
from proxy.dispatch import Dispatcher
from proxy.embeddings import no_embeddings, parse_embedding
from proxy.failures import failure_response
from proxy.health import Health
from proxy.idempotency import HEADER as IDEMPOTENCY_HEADER
from proxy.idempotency import Scope, fingerprint, idempotency_key
from proxy.keyed import KeyedAnswers
from proxy.lane_choice import LANE_HEADER, wished_deadline_s
from proxy.measure import Measurer, refuse_hopeless
from proxy.notes import NOTES, Notes
from proxy.playing import play
from proxy.policy import PolicyInForce
from proxy.prompt_use import prompt_use
from proxy.quota_use import QuotaUse, count_request
from proxy.recording import Recording
from proxy.request import Parsed, Ticket
from proxy.response_routes import ResponseRoutes
from proxy.session import HEADER as SESSION_HEADER
from proxy.session import mark_of, session_key
from proxy.stream import EventStream, Reply, WholeBody
from proxy.text_model import TextModel
from proxy.tokenize import Tokenizing, ToTokenize
from proxy.worker_link import WorkerLink
from shared.clock import Clock
from shared.errors import ModelNotFound, Refusal
from shared.lane_settings import LaneSettings
from shared.limits import BODY_BYTES_MAX, KIB

_BODY_BYTES_SMALL: Final = 256 * KIB
_REPLAY: Final = {"x-forebay-idempotent-replay": "true"}
_NOT_RECORDED: Final = {"x-forebay-idempotency": "not-recorded"}


@dataclass(frozen=True, slots=True)
class Service:
    """What the handlers need. `names` are the model's names; the first is its real one.

    `fingerprint` is the model's, the first part of each answer's system_fingerprint.
    """

    names: tuple[str, ...]
    policy: PolicyInForce
    quotas: Quotas
    text_model: TextModel
    measurer: Measurer
    dispatcher: Dispatcher
    link: WorkerLink
    health: Health
    keyed: KeyedAnswers
    conversations: Conversations
    clock: Clock
    jitter: Callable[[], float]
    seeds: Callable[[], int]
    fingerprint: str
    created: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request whose body hasn't been read yet."""

    request: web.Request
    caller: Caller
    notes: Notes
    quota: QuotaUse
    dialect: Dialect


class Routes:
    """Handlers of the public endpoints. `body_timeout_s` is what a client gets to send its body."""

    def __init__(self, service: Service, body_timeout_s: float) -> None:
        self._service = service
        self._body_timeout_s = body_timeout_s
        self._tokenizing = Tokenizing(service.measurer, service.text_model)

    def add_to(self, app: web.Application) -> None:
        health = self._service.health
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/completions", self.completions),
                web.post("/v1/responses", self.responses),
                web.post("/v1/embeddings", self.embeddings),
                web.post("/v1/messages", self.messages),
                web.post("/v1/messages/count_tokens", self.count_tokens),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.get("/openapi.json", openapi),
                web.get("/docs", docs),
                web.get("/v1/models", self.models),
                web.get("/v1/models/{id:.+}", self.model),
                web.get("/health/live", health.live),
                web.get("/health/ready", health.ready),
                web.get("/metrics", health.metrics),
            ]
        )
        stored = ResponseRoutes(self._service.conversations.store, self._service.clock, self._caller)
        stored.add_to(app)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, DIALECTS["chat"])

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, DIALECTS["completions"])

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, DIALECTS["responses"])

    async def embeddings(self, request: web.Request) -> web.Response:
        """Refuse what is asked for, once it is known to be asked for rightly."""
        _check_content(request)
        caller = self._caller(request)
        quota = QuotaUse(self._service.quotas, caller, self._service.clock)
        request[NOTES].rate_headers = quota.headers
        with quota:
            fields = parse_embedding(await self._body(request))
            raise no_embeddings(self._checked_name(caller, fields.model))

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, DIALECTS["messages"])

    async def count_tokens(self, request: web.Request) -> web.Response:
        """Say how many tokens a conversation has: it counts as a request, not in tokens."""
        caller, body = await self._counted(request)
        parsed = await self._parsed(body, parse_count)
        asked = ToTokenize(parsed, special=False, strings=False)
        counted = await self._tokenizing.tokenize(asked, self._ticket(request, caller, parsed))
        return web.json_response({"input_tokens": counted["count"]})

    async def models(self, request: web.Request) -> web.Response:
        names = self._service.names if self._allows(self._caller(request)) else ()
        return web.json_response(bodies.model_list([self._served(name) for name in names]))

    async def model(self, request: web.Request) -> web.Response:
        name = self._checked_name(self._caller(request), request.match_info["id"])
        return web.json_response(bodies.model(self._served(name)))

    async def tokenize(self, request: web.Request) -> web.Response:
        """Say what a text or a conversation comes to: it counts as a request, not in tokens."""
        caller, body = await self._counted(request)
        service = self._service
        asked = await self._tokenizing.asked(body, service.names[0], service.seeds)
        ticket = self._ticket(request, caller, asked.parsed)
        return web.json_response(await self._tokenizing.tokenize(asked, ticket))

    async def detokenize(self, request: web.Request) -> web.Response:
        caller, body = await self._counted(request)
        fields = await self._tokenizing.ids_asked(body)
        self._checked_name(caller, fields.model or self._service.names[0])
        return web.json_response(await self._tokenizing.detokenize(fields))

    async def _counted(self, request: web.Request) -> tuple[Caller, bytes]:
        """Return who asks and the body of a request that counts in its key's minute, and no more."""
        _check_content(request)
        caller = self._caller(request)
        count_request(self._service.quotas, caller, self._service.clock)
        return caller, await self._body(request)

    # --- a request's way ----------------------------------------------------------------------------------

    async def _serve(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        """Know who asks, parse, measure, admit, and stay with it until its last token."""
        _check_content(request)
        caller, notes = self._caller(request), request[NOTES]
        notes.session = mark_of(session_key(request.headers.getall(SESSION_HEADER, ())))
        key = idempotency_key(request.headers.getall(IDEMPOTENCY_HEADER, ()))
        quota = QuotaUse(self._service.quotas, caller, self._service.clock, counted=key is not None)
        notes.rate_headers = quota.headers
        asked = _Asked(request, caller, notes, quota, dialect)
        if key is not None:
            return await self._serve_once(asked, Scope(caller.key_id, request.path, key))
        with quota:
            return await self._answer(asked, await self._body(request))

    async def _serve_once(self, asked: _Asked, scope: Scope) -> web.StreamResponse:
        """Answer a request by the one run that there is for its Idempotency-Key, or begin that.

        It counts as a request either way; the run takes the place and the tokens. Where there is no room to
        record it, it is answered like one without a key.
        """
        service, notes = self._service, asked.notes
        count_request(service.quotas, asked.caller, service.clock)
        wished_deadline_s(asked.request.headers)  # It isn't part of the digest: what's wrong isn't stored.
        body = await self._body(asked.request)
        digest, rules = fingerprint(asked.request.headers.get(LANE_HEADER), body), service.policy.now
        recording = service.keyed.find(scope, digest, rules)
        if recording is not None:
            notes.extra_headers |= _REPLAY
            notes.replays = True
        else:
            recording = service.keyed.begin(
                scope, digest, rules, lambda recording: self._record(asked, body, recording)
            )
        if recording is None:
            notes.extra_headers |= _NOT_RECORDED
            with asked.quota:
                return await self._answer(asked, body)
        with service.keyed.listening(recording) as listener:
            return await play(asked.request, listener, notes, self._failed(asked))

    @contextlib.asynccontextmanager
    async def _admitted(self, asked: _Asked, body: bytes) -> AsyncIterator[Admitted]:
        """Parse, measure and admit a request; leaving gives everything back."""
        notes = asked.notes
        parsed = await self._parsed(body, asked.dialect.parse)
        notes.parsed_at = self._service.clock.now()
        notes.session = notes.session or mark_of(parsed.prompt_cache_key)
        ticket = self._ticket(asked.request, asked.caller, parsed)
        notes.lane = ticket.lane.name
        parsed = await self._service.conversations.prepared(parsed, asked.caller.key_id)
        refuse_hopeless(parsed, ticket)
        with self._service.dispatcher.arriving(parsed.answers, ticket):
            measured = await self._service.measurer.measure(parsed, ticket)
        asked.quota.charge(measured.tokens)
        with self._service.dispatcher.admit(measured, notes.request_id, notes.arrived_at) as admitted:
            notes.admitted = asked.quota.admitted = admitted
            try:
                yield admitted
            finally:
                self._service.health.prompted(prompt_use(admitted))

    async def _answer(self, asked: _Asked, body: bytes) -> web.StreamResponse:
        """Answer a request to the client that made it, and to nobody else."""
        async with self._admitted(asked, body) as admitted:
            reply, head = Reply(admitted, self._service.text_model), self._head(admitted)
            if not admitted.measured.parsed.stream:
                whole = WholeBody(reply, head, admitted)
                asked.notes.backlog_bytes = lambda: whole.held_bytes
                body = await whole.gather()
                return web.Response(body=body, content_type="application/json", charset="utf-8")
            each_bytes = event_bytes(admitted.measured.parsed)
            asked.notes.backlog_bytes = lambda: each_bytes * admitted.events.qsize()
            stream = EventStream(reply, head, admitted, self._service.jitter)
            return await stream.send(asked.request, asked.notes.headers)

    async def _record(self, asked: _Asked, body: bytes, recording: Recording) -> None:
        """Answer a request to a recording. Raises what it fails by before anything is written."""
        with asked.quota:
            async with self._admitted(asked, body) as admitted:
                reply, head = Reply(admitted, self._service.text_model), self._head(admitted)
                recording.lane = admitted.lane
                recording.streams = admitted.measured.parsed.stream
                if recording.streams:
                    await EventStream(reply, head, admitted, self._service.jitter).record(recording)
                else:
                    whole = WholeBody(reply, head, admitted)
                    recording.gathered_bytes = lambda: whole.held_bytes
                    recording.write(await whole.gather())

    def _failed(self, asked: _Asked) -> Callable[[Refusal], bytes]:
        """Return what makes the event of a stream that fails after something of it was sent."""
        jitter = self._service.jitter
        return lambda refusal: asked.dialect.failed(failure_response(refusal, jitter))

    def _caller(self, request: web.Request) -> Caller:
        caller = request[NOTES].caller = self._service.policy.now.keys.authenticate(request.headers)
        return caller

    def _ticket(self, request: web.Request, caller: Caller, parsed: Parsed) -> Ticket:
        """Return what the request may have, if it names a model, a lane and a tier that are here."""
        self._checked_name(caller, parsed.model)
        return self._service.policy.now.lanes.ticket(caller, parsed, request.headers)

    async def _body(self, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await request.read()
        except TimeoutError as problem:
            raise web.HTTPRequestTimeout from problem

    async def _parsed(self, body: bytes, parse: Callable[[bytes, Callable[[], int]], Parsed]) -> Parsed:
        """Parse a large body in a thread, so that the streams of others go on meanwhile."""
        if len(body) <= _BODY_BYTES_SMALL:
            return parse(body, self._service.seeds)
        return await asyncio.to_thread(parse, body, self._service.seeds)

    def _head(self, admitted: Admitted) -> Head:
        parsed = admitted.measured.parsed
        return Head(
            id=DIALECTS[parsed.endpoint].id_prefix + secrets.token_hex(12),
            created=int(time.time()),
            model=parsed.model,
            system_fingerprint=_system_fingerprint(self._service),
            service_tier=admitted.measured.ticket.lane.answer_tier,
        )

    # --- models -------------------------------------------------------------------------------------------

    def _checked_name(self, caller: Caller, name: str) -> str:
        """Return the name of a model that is served here and that the caller may use, or refuse it."""
        served = name in self._service.names
        if not (served and self._allows(caller)):
            check_model(caller, name)
        if not served:
            known = ", ".join(self._service.names)
            raise ModelNotFound(
                f"The model {name[:100]!r} is not served here; this is: {known}.", param="model"
            )
        return name

    def _allows(self, caller: Caller) -> bool:
        """Whether a key may use the served model, under any of its names."""
        return caller.models is None or not set(caller.models).isdisjoint(self._service.names)

    def _served(self, name: str) -> bodies.ServedModel:
        """Return a model with what the worker found out about it."""
        hello = self._service.link.state.hello
        lanes = self._service.policy.now.lanes
        written = self._service.text_model.format
        capabilities: dict[str, Any] = {
            "context_tokens": lanes.context_tokens,
            "format": {
                "name": written.name,
                "thinks": written.thinks,
                "calls_tools": written.calls_tools,
            },
            "lanes": {lane.name: _lane_facts(lane, lanes.context_tokens) for lane in lanes.lanes},
            **text_facts(self._service.text_model),
        }
        if hello is not None:
            capabilities |= {
                "family": hello.facts.family,
                "batches": hello.facts.batches,
                "rows": hello.slots,
                "one_row_because": hello.facts.why_not or None,
                "caches": hello.facts.caches,
                "kv_bits": hello.facts.kv_bits,
                "kv_bytes_per_token": hello.facts.kv_bytes_per_token,
                "reuses_prompts": hello.facts.reuse,
                "shares_from_tokens": hello.facts.shares_from or None,
                "not_shared_because": hello.facts.why_not_shared or None,
            }
        return bodies.ServedModel(name, self._service.created, capabilities)


def _system_fingerprint(service: Service) -> str:
    """Return what changes with the model, how its KV is kept, and the worker's life; 0 without one."""
    hello = service.link.state.hello
    kv_bits = hello.facts.kv_bits if hello is not None else None
    quantised = f"-kv{kv_bits}" if kv_bits else ""
    return f"{service.fingerprint}{quantised}-{service.link.epoch or 0}"


def _check_content(request: web.Request) -> None:
    """Take JSON, and bodies that don't say what they are, of a bounded length: before any of it is read."""
    if (request.content_length or 0) > BODY_BYTES_MAX:
        raise web.HTTPRequestEntityTooLarge(BODY_BYTES_MAX, request.content_length or 0)
    if "Content-Type" in request.headers and request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType


def _lane_facts(lane: LaneSettings, context_tokens: int) -> dict[str, Any]:
    return {
        "service_tiers": lane.tiers,
        "context_tokens": min(context_tokens, lane.context_tokens or context_tokens),
        "max_tokens": lane.max_tokens,
        "deadline_s": lane.deadline_s,
    }
