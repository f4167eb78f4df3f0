"""A gateway's Unix socket that a test plays: answers to each order in turn, and what was asked."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

from shared.config import Settings
from shared.run_folder import RunFolder

Reply = tuple[int, Any]


def told(**changes: Any) -> dict[str, Any]:
    """Return a status as the gateway tells it."""
    worker = {"status": "ready", "epoch": 7, "breaker": "closed"}
    usual = {"going_down": False, "draining": False, "held": False, "live": 0, "running": 0}
    return {**usual, "worker": worker, "restart": None, **changes}


def restarting(phase: str, **changes: Any) -> dict[str, Any]:
    """Return what is told of a restart."""
    fresh = {"number": 1, "drain": False, "old_epoch": 7, "new_epoch": None, "live": 2}
    return {**fresh, "phase": phase, "took_s": None, "problem": None, **changes}


@dataclass
class Played:
    """Answers by order, such as `POST /admin/drain`; the last one of a list stays. `asked` is what came."""

    replies: dict[str, list[Reply]]
    asked: list[tuple[str, Any]] = field(default_factory=list)
    before: Callable[[str], None] = lambda _order: None

    def reply(self, order: str, body: Any) -> Reply:
        self.before(order)
        self.asked.append((order, body))
        replies = self.replies.get(order, [(404, {"problem": "Not Found"})])
        return replies.pop(0) if len(replies) > 1 else replies[0]

    @property
    def orders(self) -> list[tuple[str, Any]]:
        """What was asked for but a look at the status."""
        return [each for each in self.asked if each[0] != "GET /admin/status"]


@contextmanager
def played(settings: Settings, replies: Mapping[str, list[Reply]]) -> Iterator[Played]:
    """Play the gateway of these settings until the block ends."""
    folder = RunFolder(settings.home_folder, settings.port)
    folder.create()
    gateway = Played(dict(replies))
    with UnixStreamServer(str(folder.admin_socket), _handler(gateway)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield gateway
        finally:
            server.shutdown()
            thread.join()
            Path(folder.admin_socket).unlink()


def _handler(gateway: Played) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = gateway.reply(f"{self.command} {self.path}", json.loads(body) if body else None)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def log_message(self, *_: object) -> None:
            pass

    return Handler
