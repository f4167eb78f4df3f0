"""A chat server that a test plays: streams the answers it is given, and keeps what was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What is streamed; `tokens` are (prompt, answer, cached) as usage tells them."""

    texts: tuple[str, ...] = ("one", " two")
    tokens: tuple[int, int, int] = (10, 2, 0)
    status: int = 200
    error: str = ""


@dataclass
class Chats:
    """`reply` gets a request's body."""

    reply: Callable[[dict[str, Any]], Answer]
    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)


def events(answer: Answer) -> list[dict[str, Any]]:
    texts = [{"choices": [{"delta": {"content": text}}]} for text in answer.texts]
    if answer.error:
        return [*texts, {"error": {"message": answer.error}}]
    prompt, said, cached = answer.tokens
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    usage = {"prompt_tokens": prompt, "completion_tokens": said, **details}
    opening = {"choices": [{"delta": {"role": "assistant"}}]}
    ending = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    return [opening, *texts, ending, {"choices": [], "usage": usage}]


@contextmanager
def played(reply: Callable[[dict[str, Any]], Answer]) -> Iterator[Chats]:
    chats = Chats(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            chats.asked.append(body)
            answer = chats.reply(body)
            self.send_response(answer.status)
            self.end_headers()
            for event in events(answer):
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_words: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        chats.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield chats
        finally:
            server.shutdown()
            thread.join()
