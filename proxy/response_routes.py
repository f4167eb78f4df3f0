"""The URLs of responses that are kept: read one again, see what it was made from, delete it."""

import json
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from proxy.authenticate import Caller
from proxy.response_store import Kept, ResponseStore
from shared.clock import Clock
from shared.errors import InvalidRequest, ResponseNotFound
from shared.limits import ITEM_ID_CHARS_MAX

_ITEMS_MAX: Final = 100
_ITEMS_DEFAULT: Final = 20


class ResponseRoutes:
    """Handlers. `caller` returns who asks; what another key has kept is not there for it."""

    def __init__(self, store: ResponseStore, clock: Clock, caller: Callable[[web.Request], Caller]) -> None:
        self._store = store
        self._clock = clock
        self._caller = caller

    def add_to(self, app: web.Application) -> None:
        app.add_routes(
            [
                web.get("/v1/responses/{id}", self.response),
                web.delete("/v1/responses/{id}", self.delete),
                web.get("/v1/responses/{id}/input_items", self.input_items),
                web.post("/v1/responses/{id}/cancel", self.cancel),
            ]
        )

    async def response(self, request: web.Request) -> web.Response:
        kept = self._found(request)
        if request.query.get("stream") == "true":
            raise InvalidRequest("'stream' isn't supported for a response that has ended.", param="stream")
        return web.Response(body=kept.body, content_type="application/json", charset="utf-8")

    async def delete(self, request: web.Request) -> web.Response:
        kept = self._found(request)
        self._store.drop(self._caller(request).key_id, kept.id)
        return web.json_response({"id": kept.id, "object": "response", "deleted": True})

    async def input_items(self, request: web.Request) -> web.Response:
        """List all items that a response was made from, the last first unless `order` is asc."""
        kept = self._found(request)
        order, limit = request.query.get("order", "desc"), _limit(request.query.get("limit"))
        if order not in ("asc", "desc"):
            raise InvalidRequest("'order' must be asc or desc.", param="order")
        items = list(kept.inputs)
        if order == "desc":
            items.reverse()
        after = request.query.get("after")
        if after is not None:
            places = [place for place, item in enumerate(items) if item.id == after]
            if not places:
                raise InvalidRequest("'after' names none of the items.", param="after")
            items = items[places[0] + 1 :]
        data: list[dict[str, Any]] = [json.loads(item.raw) for item in items[:limit]]
        first, last = (data[0]["id"], data[-1]["id"]) if data else ("", "")
        more = len(items) > limit
        return web.json_response(
            {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}
        )

    async def cancel(self, request: web.Request) -> web.Response:
        self._found(request)
        raise InvalidRequest(
            "Only a response that is made in the background can be cancelled, and none is here; "
            "to end one that runs, close its connection."
        )

    def _found(self, request: web.Request) -> Kept:
        id_ = request.match_info["id"]
        kept = self._store.find(self._caller(request).key_id, id_, self._clock.now())
        if kept is None:
            shown = id_[:ITEM_ID_CHARS_MAX]
            raise ResponseNotFound(f"A response '{shown}' isn't kept here, or not any more.")
        return kept


def _limit(given: str | None) -> int:
    if given is None:
        return _ITEMS_DEFAULT
    if not (given.isascii() and given.isdecimal() and len(given) <= 3 and 1 <= int(given) <= _ITEMS_MAX):
        raise InvalidRequest(f"'limit' must be an integer from 1 to {_ITEMS_MAX}.", param="limit")
    return int(given)
