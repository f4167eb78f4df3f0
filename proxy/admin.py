"""The operator's door: a Unix socket in the run folder, for whoever may open that folder, and no one else.

Nothing of it is reachable by HTTP from outside, so it needs no key, and no web page can call it.
"""

import asyncio
from dataclasses import asdict

from aiohttp import web

from proxy.dispatch import Dispatcher
from proxy.policy import PolicyInForce, Reloaded
from shared.errors import SettingsError


class Admin:
    """POST /admin/reload: 200 with what was read, or 409 with why nothing changed."""

    def __init__(self, policy: PolicyInForce, dispatcher: Dispatcher) -> None:
        self._policy = policy
        self._dispatcher = dispatcher
        self._reloading = asyncio.Lock()

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.post("/admin/reload", self._reload)])
        return app

    async def reload(self) -> Reloaded:
        """Read lanes and keys again; SettingsError if they can't be used. One at a time."""
        async with self._reloading:
            return await self._policy.reload(self._dispatcher.reconfigure)

    async def _reload(self, _request: web.Request) -> web.Response:
        try:
            return web.json_response(asdict(await self.reload()))
        except SettingsError as problem:
            return web.json_response({"problem": str(problem)}, status=409)
