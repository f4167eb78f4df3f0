"""The door: takes connections in while there is room, turns others away, and ends those that are stuck."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from proxy.connection import Connection
from proxy.farewell import Farewell, words
from proxy.slow_readers import SlowReaders
from proxy.sockets import Option, listening_sockets
from shared.logs import Logger

_LOOK_S: Final = 0.5
_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 64
_PAUSE_S: Final = 0.25
_IDLE_S_MIN: Final = 1.0
_SCAN_S_MIN: Final = 0.25
_FAREWELLS_MIN: Final = 4
_FAREWELLS_MAX: Final = 32


class Listening(web.BaseSite):
    """One listening address, with at most `connections_max` connections.

    For one more, the one that was idle longest goes, if that is a second or more; else the new one is told to
    come back. While the system has no descriptor left, newcomers wait in its queue. `ended` counts what was
    done to connections, by reason.

    It accepts by itself: uvloop's server closes for good when it can't accept.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        address: tuple[str, int],
        *,
        connections_max: int,
        options: tuple[Option, ...],
        slow_readers: SlowReaders[Connection],
        jitter: Callable[[], float],
        log: Logger,
        told: Callable[[str], None] = lambda _reason: None,
        **handler_options: Any,
    ) -> None:
        super().__init__(runner)
        self._address = address
        self._connections_max = connections_max
        self._farewells_max = min(_FAREWELLS_MAX, max(_FAREWELLS_MIN, connections_max // 8))
        self._options = options
        self._jitter = jitter
        self._log = log
        self._handler_options = handler_options
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []  # the longest idle last, as of the last scan
        self._scanned_s = float("-inf")
        self._farewells: set[Farewell] = set()
        self._full = False
        self._paused = False
        self._sockets: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self.slow_readers = slow_readers
        self.ended: Counter[str] = Counter()
        self._told = told

    @property
    def name(self) -> str:
        host, port = self._address
        return f"http://{host}:{port}"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    @property
    def undelivered_bytes(self) -> int:
        """What all clients together have still to take of their answers."""
        return sum(connection.reading().undelivered_bytes for connection in self._open)

    def _count(self, reason: str) -> None:
        self.ended[reason] += 1
        self._told(reason)

    async def start(self) -> None:
        """Listen; OSError if that isn't possible."""
        await super().start()
        self._sockets = await listening_sockets(*self._address, _BACKLOG)
        for each in self._sockets:
            self._wait_at(each)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        await super().stop()
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            loop.remove_reader(each)
            each.close()
        self._sockets = []
        tasks = [*self._accepting] + ([] if self._watching is None else [self._watching])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for farewell in list(self._farewells):
            farewell.end()

    # --- accepting ----------------------------------------------------------------------------------------

    def _wait_at(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept who waits, some at a time."""
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                peer, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                self._pause(listening, problem)
                return
            self._paused = False
            peer.setblocking(False)
            task = loop.create_task(self._connect(peer))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def _pause(self, listening: socket.socket, problem: OSError) -> None:
        """Accept nobody for a moment, and give up somebody who is idle: descriptors or memory are short."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(_PAUSE_S, self._wait_at, listening)
        self._make_room()
        if not self._paused:
            self._paused = True
            self._log.warning("can't accept connections for now", problem=problem.strerror)

    async def _connect(self, peer: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._connection, peer)
        except OSError:  # It has gone again.
            peer.close()

    def _connection(self) -> Connection:
        server = self._runner.server
        assert server is not None, "it was set up before this started"
        loop = asyncio.get_running_loop()
        return Connection(server, self, self._jitter, loop=loop, **self._handler_options)

    # --- coming and going ---------------------------------------------------------------------------------

    def came(self, connection: Connection) -> bool:
        """Take a connection in, in another's place if need be, or turn it away."""
        transport = connection.transport
        assert transport is not None, "it has just been made"
        if len(self._open) >= self._connections_max and not self._make_room():
            self._turn_away(transport)
            return False
        self._open.add(connection)
        peer = transport.get_extra_info("socket")
        for option in self._options:
            with contextlib.suppress(OSError):  # It may be gone already.
                peer.setsockopt(*option)
        return True

    def went(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._full and len(self._open) < self._connections_max:
            self._full = False
            self._log.info("there is room for connections again")

    def _make_room(self) -> bool:
        """Close the connection that was idle longest, if there is one that was so for long enough."""
        now_s = asyncio.get_running_loop().time()
        if not self._idle and now_s - self._scanned_s >= _SCAN_S_MIN:
            self._scanned_s = now_s
            waiting = [(each.idle_since_s, each) for each in self._open]
            found = [(since_s, each) for since_s, each in waiting if since_s is not None]
            found.sort(key=lambda pair: pair[0], reverse=True)
            self._idle = [each for _, each in found]
        while self._idle:
            connection = self._idle.pop()
            since_s = connection.idle_since_s
            if connection in self._open and since_s is not None and now_s - since_s >= _IDLE_S_MIN:
                self._open.discard(connection)
                connection.force_close()
                self._count("idle")
                return True
        return False

    def _turn_away(self, transport: asyncio.Transport) -> None:
        """Say when to come back, and no more. Logged once until there is room again."""
        if not self._full:
            self._full = True
            self._log.warning("too many connections", connections=len(self._open))
        self._count("turned away")
        if len(self._farewells) >= self._farewells_max:
            transport.abort()
            return
        farewell = Farewell(words(self._jitter), self._farewells.discard)
        self._farewells.add(farewell)
        transport.set_protocol(farewell)
        farewell.connection_made(transport)

    # --- slow readers -------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look at all connections now and then, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look(asyncio.get_running_loop().time())

    def look(self, now_s: float) -> None:
        """End the connections whose clients read too slowly."""
        self._idle = []  # Out of date, and it keeps those that have gone.
        readings = {connection: connection.reading() for connection in self._open}
        for connection, cause in self.slow_readers.look(readings, now_s).items():
            self._count(cause)
            self._log.warning(
                "connection cut off",
                cause=cause,
                request=connection.request_id,
                undelivered_bytes=readings[connection].undelivered_bytes,
            )
            connection.abort()
