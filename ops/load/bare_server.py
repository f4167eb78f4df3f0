"""The least that a server of streams can be: the floor that a proxy's own part is measured from.

`python -m ops.load.bare_server PORT FOLDER SENT_LOG`. It answers each chat request with the bytes that the
proxy would send, at the false worker's pace, and does nothing else: no worker, no ids, no text, no JSON but
each request's body. What a token takes here is the price of the system's sockets, the interpreter and the
client. SENT_LOG is written as the false worker writes it.
"""

import argparse
import asyncio
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, cast

import uvloop

from proxy.answer import Usage
from proxy.bodies import ChatChunks
from proxy.dialects.dialect import Head
from proxy.event_blocks import DONE, TextBlocks, block
from shared import lifeline
from shared.model_folder import ModelFolder

_HEAD_END: Final = b"\r\n\r\n"
_OK: Final = b"HTTP/1.1 200 OK\r\n"
_HEALTHY: Final = _OK + b"Content-Length: 0\r\n\r\n"
_STREAM_HEAD: Final = (
    _OK + b"Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_LAST_CHUNK: Final = b"0\r\n\r\n"
_RANDOM_PART: Final = "0" * 24  # as long as the proxy's


@dataclass(frozen=True, slots=True)
class Request:
    """What one request says: whose answer it is, and how many tokens long. A GET wants none."""

    name: str
    tokens: int


def read_request(data: bytes) -> tuple[Request, bytes] | None:
    """Return the first request in the bytes and what follows it; None while it isn't whole."""
    head, found, rest = data.partition(_HEAD_END)
    if not found:
        return None
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
    headers = {name.lower(): value.strip() for name, _, value in lines}
    length = int(headers.get("content-length", 0))
    if len(rest) < length:
        return None
    tokens = json.loads(rest[:length])["max_tokens"] if length else 0
    return Request(headers.get("x-request-id", ""), tokens), rest[length:]


@dataclass(frozen=True, slots=True)
class Pieces:
    """An answer's bytes as the proxy would send them, in HTTP's chunks; `token` is sent once for each."""

    opening: bytes
    token: bytes
    ending: bytes


def pieces(model: str, fingerprint: str, text: str, tokens: int) -> Pieces:
    head = Head(f"chatcmpl-{_RANDOM_PART}", int(time.time()), model, f"fb_{fingerprint}", "default")
    chunks = ChatChunks(head, include_usage=True)
    ending = block(chunks.ending(0, "length")) + block(chunks.usage(Usage(tokens, tokens))) + DONE
    return Pieces(
        opening=_STREAM_HEAD + b"".join(chunked(block(body)) for body in chunks.opening(0)),
        token=chunked(TextBlocks(chunks.text, 0).block(text)),
        ending=chunked(ending) + _LAST_CHUNK,
    )


def chunked(data: bytes) -> bytes:
    """Return one chunk of HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(slots=True, eq=False)
class _Stream:
    """An answer under way. `group` is its place among the beats of a step."""

    name: str
    tokens: int
    group: int
    pieces: Pieces
    transport: asyncio.WriteTransport
    sent_at: list[float] = field(default_factory=list)


class BareServer:
    """All streams, and what is sent to those of one group at each beat.

    `make` returns the bytes of an answer of so many tokens.
    """

    def __init__(
        self,
        make: Callable[[int], Pieces],
        groups: int,
        sent_log: IO[str],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.streams: dict[asyncio.WriteTransport, _Stream] = {}
        self._make = make
        self._groups = groups
        self._sent_log = sent_log
        self._now = now
        self._numbers = itertools.count()
        self._beats = itertools.count()

    def begin(self, request: Request, transport: asyncio.WriteTransport) -> None:
        if not request.tokens:
            transport.write(_HEALTHY)
            return
        made = self._make(request.tokens)
        group = next(self._numbers) % self._groups
        self.streams[transport] = _Stream(request.name, request.tokens, group, made, transport)
        transport.write(made.opening)

    def beat(self) -> None:
        """Send a token to each stream of the group whose turn it is, all with the time before the first."""
        group = next(self._beats) % self._groups
        due = [stream for stream in self.streams.values() if stream.group == group]
        sent_at = self._now()
        for stream in due:
            stream.transport.write(stream.pieces.token)
            stream.sent_at.append(sent_at)
        for stream in due:
            if len(stream.sent_at) >= stream.tokens:
                stream.transport.write(stream.pieces.ending)
                self.drop(stream.transport)

    def drop(self, transport: asyncio.WriteTransport) -> None:
        """Forget a stream, if there is one, and write down when its tokens were sent."""
        stream = self.streams.pop(transport, None)
        if stream is not None:
            line = {"sequence": stream.name, "first_index": 0, "sent_at": stream.sent_at}
            self._sent_log.write(json.dumps(line) + "\n")


class _Connection(asyncio.Protocol):
    """One client's connection: requests one after the other."""

    def __init__(self, server: BareServer) -> None:
        self._server = server
        self._unread = b""
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        read = read_request(self._unread)
        if read is not None:
            request, self._unread = read
            self._server.begin(request, self._transport)

    def connection_lost(self, _problem: Exception | None) -> None:
        self._server.drop(self._transport)


async def _keep_beating(server: BareServer, between_s: float) -> None:
    """Beat in rhythm until cancelled; what is late isn't caught up."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        due = max(due + between_s, loop.time())
        await asyncio.sleep(due - loop.time())
        server.beat()


async def _serve(arguments: argparse.Namespace, sent_log: IO[str]) -> None:
    """Serve until SIGTERM."""
    folder = ModelFolder.read(arguments.folder)

    def make(tokens: int) -> Pieces:
        return pieces(folder.name, folder.fingerprint, arguments.text, tokens)

    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, told.set)
    server = BareServer(make, arguments.groups, sent_log)
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", arguments.port)
    beating = asyncio.create_task(_keep_beating(server, arguments.step_ms / 1000 / arguments.groups))
    async with listening:
        await asyncio.wait((beating, asyncio.create_task(told.wait())), return_when=asyncio.FIRST_COMPLETED)
    beating.cancel()


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.load.bare_server", description=__doc__)
    parser.add_argument("port", type=int, help="where it listens")
    parser.add_argument("folder", type=Path, help="the model's folder: its name and fingerprint")
    parser.add_argument("sent_log", type=Path, help="where the times of sending go")
    parser.add_argument("--step-ms", type=float, default=20.0, help="time between a stream's tokens")
    parser.add_argument("--groups", type=int, default=1, help="a step's beats; each has its own streams")
    parser.add_argument("--text", default="water", help="the text of every token")
    parser.add_argument("--lifeline-fd", type=int, help="a pipe; its end is the end of this process")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments: Any = _arguments(words)
    if arguments.lifeline_fd is not None:
        lifeline.watch(arguments.lifeline_fd, lifeline.exit_now)
    with (
        arguments.sent_log.open("w") as sent_log,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(arguments, sent_log))
    return 0


if __name__ == "__main__":
    sys.exit(main())
