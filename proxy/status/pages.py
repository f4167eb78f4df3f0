"""The status page's addresses: the page itself, what it draws from, and the files it is made of.

None of them asks for a key: they have no words of prompts or answers, and no keys.
"""

import hashlib
import json
from collections.abc import Callable
from importlib import resources
from typing import Any, Final

from aiohttp import web

from proxy.status.history import Interval
from proxy.status.taker import SnapshotTaker

# What the page is made of: its files in proxy/status/assets, and what they are.
_KINDS: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_ASSETS: Final = "/status/assets/"
# Nothing but this server's own files may run, and they may ask nobody else.
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
# What is told changes all the time, and is nothing but JSON.
_TOLD_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class StatusPages:
    """Handlers of /, /status and /status/…. All files are read once, when the gateway starts."""

    def __init__(self, taker: SnapshotTaker) -> None:
        self._taker = taker
        self._files = {name: (kind, body) for name, kind, body in _files()}
        self._tags = {name: f'"{_digest(body)}"' for name, (_, body) in self._files.items()}
        self._history: bytes | None = None
        self._history_until: Interval | None = None

    def add_to(self, app: web.Application) -> None:
        app.add_routes(
            [
                web.get("/", self._file("index.html")),
                web.get("/status", self.snapshot),
                web.get("/status/history", self.history),
                *(web.get(_ASSETS + name, self._file(name)) for name in self._files if name != "index.html"),
            ]
        )

    async def snapshot(self, _request: web.Request) -> web.Response:
        return self._told(_as_json(self._taker.snapshot()))

    async def history(self, _request: web.Request) -> web.Response:
        """Tell the history, which is put together once for each of its intervals."""
        newest = self._taker.newest
        if self._history is None or self._history_until is not newest:
            self._history, self._history_until = _as_json(self._taker.history()), newest
        return self._told(self._history)

    def _told(self, body: bytes) -> web.Response:
        response = web.Response(
            body=body, content_type="application/json", charset="utf-8", headers=_TOLD_HEADERS
        )
        response.enable_compression()
        return response

    def _file(self, name: str) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.Response:
            kind, body = self._files[name]
            headers = {**_HEADERS, "ETag": f"W/{self._tags[name]}"}
            if _knows(request.headers.get("If-None-Match", ""), self._tags[name]):
                return web.Response(status=304, headers=headers)
            response = web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)
            response.enable_compression()
            return response

        return answer


def _files() -> list[tuple[str, str, bytes]]:
    """Return name, kind and content of each file under assets; names of those in folders have slashes."""
    found: list[tuple[str, str, bytes]] = []

    def look(folder: Any, prefix: str) -> None:
        for each in folder.iterdir():
            if each.is_dir():
                look(each, f"{prefix}{each.name}/")
            elif kind := _KINDS.get(each.name[each.name.rfind(".") :]):
                found.append((prefix + each.name, kind, each.read_bytes()))

    look(resources.files("proxy.status") / "assets", "")
    return found


def _knows(given: str, tag: str) -> bool:
    """Whether a client's If-None-Match names this tag; what lies between may have weakened it."""
    return given.strip() == "*" or tag in (each.strip().removeprefix("W/") for each in given.split(","))


def _as_json(view: Any) -> bytes:
    """Return what `asdict` makes of a view, as JSON, without the copies of all its lists."""
    return json.dumps(
        view, default=lambda each: {name: getattr(each, name) for name in each.__slots__}
    ).encode()


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]
