"""A server in a thread of its own that answers at once, as scripted, and keeps what it was asked."""

import asyncio
import contextlib
import json
import threading

from aiohttp import web

DONE = b"data: [DONE]\n\n"


def event(**body):
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class FalseServer:
    """Answers with max_tokens pieces of text, and counts a prompt's words as its tokens, and ten more.

    `refuse(number)` returns a status for some requests; from `hold_from` on requests get one token and stand
    until the client goes, after which `on_held` is called once. Handlers run in the server's thread.
    """

    def __init__(self, *, refuse=None, hold_from=None, on_held=None, lanes=True, counts=True, ready=None):
        self.bodies = []
        self.headers = []
        self.port = 0
        self._refuse = refuse or (lambda _number: None)
        self._hold_from = hold_from
        self._on_held = on_held
        self._lanes = lanes
        self._counts = counts
        self._ready = ready
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self):
        self._thread.start()
        assert self._up.wait(20)
        return self

    def __exit__(self, *_error):
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)
        self._loop.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self):
        self._over = asyncio.Event()
        app = web.Application()
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._answer),
                web.get("/v1/models", self._models),
                web.get("/health/ready", self._health),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self._up.set()
        await self._over.wait()
        await runner.cleanup()

    async def _models(self, request):
        self.headers.append(request.headers)
        return web.json_response({"data": [{"id": "small"}]})

    async def _health(self, _request):
        return web.json_response({} if self._ready is None else self._ready)

    async def _answer(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        number = len(self.bodies)
        status = self._refuse(number)
        if status is not None:
            error = {"error": {"code": "server_is_overloaded"}}
            return web.json_response(error, status=status, headers={"Retry-After": "1"})
        lanes = {"x-forebay-lane": "interactive", "x-forebay-queue-ms": "3"} if self._lanes else {}
        response = web.StreamResponse(headers=lanes)
        await response.prepare(request)
        await self._tell(response, body, held=self._hold_from is not None and number >= self._hold_from)
        return response

    async def _tell(self, response, body, *, held):
        text = event(choices=[{"index": 0, "delta": {"content": "word "}}])
        await response.write(text)
        if held:
            on_held, self._on_held = self._on_held, None
            if on_held is not None:
                on_held()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), 20)
            return
        await response.write(text * (body["max_tokens"] - 1))
        words = len(body["messages"][0]["content"].split())
        usage = {"prompt_tokens": words + 10, "completion_tokens": body["max_tokens"]}
        ending = event(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
        await response.write(ending + (event(choices=[], usage=usage) if self._counts else b"") + DONE)
