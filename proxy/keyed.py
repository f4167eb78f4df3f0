"""Answers with an Idempotency-Key: run once each, apart from any connection, for whoever asks for them."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from proxy.idempotency import Entry, IdempotencyStore, Scope
from proxy.recording import Listener, Recording, afresh
from shared.clock import Clock
from shared.errors import ContextTooLong, Draining, InvalidRequest, Refusal
from shared.logs import Logger

_RETRY_S = 5.0

Run = Callable[[Recording], Coroutine[Any, Any, None]]


@dataclass(slots=True, eq=False)
class _Running:
    """An answer that is being made. `timer` ends it, while nobody listens."""

    entry: Entry
    task: asyncio.Task[None]
    timer: asyncio.TimerHandle | None = None


class KeyedAnswers:
    """Begins runs, lets others join them, and ends those that nobody has listened to for `detached_s`."""

    def __init__(self, store: IdempotencyStore, detached_s: float, clock: Clock, log: Logger) -> None:
        self._store = store
        self._detached_s = detached_s
        self._clock = clock
        self._log = log
        self._running: dict[Recording, _Running] = {}

    def find(self, scope: Scope, digest: bytes, rules: object) -> Recording | None:
        """Return the answer to the same request, running or stored; IdempotencyKeyReused for another one."""
        entry = self._store.find(scope, digest, rules, self._clock.now())
        return None if entry is None else entry.recording

    def begin(self, scope: Scope, digest: bytes, rules: object, run: Run) -> Recording | None:
        """Run a request that isn't known. None if there is no room for it: nothing runs then.

        Whatever happens to the run ends up in the recording. A refusal for what the request itself says is
        kept while `rules` hold; other failures are forgotten, so that the next try runs anew.
        """
        recording = Recording()
        entry = self._store.begin(scope, digest, recording, self._clock.now())
        if entry is None:
            return None
        running = _Running(entry, asyncio.get_running_loop().create_task(run(recording)))
        self._running[recording] = running
        recording.grew = lambda length: self._grew(running, length)
        running.task.add_done_callback(lambda _: self._ended(running, rules))
        return recording

    @contextlib.contextmanager
    def listening(self, recording: Recording) -> Iterator[Listener]:
        """Hear a recording; its run goes on at least as long."""
        self._stop_timer(recording)
        try:
            with recording.listen() as listener:
                yield listener
        finally:
            self._look_after(recording)

    async def close(self) -> None:
        """End all runs."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- while one runs -----------------------------------------------------------------------------------

    def _grew(self, running: _Running, length: int) -> None:
        """Count what was written. What there is no room for is kept only until those who listen have it."""
        if self._store.grew(running.entry, length):
            return
        running.entry.recording.trim()
        self._look_after(running.entry.recording)

    def _stop_timer(self, recording: Recording) -> None:
        running = self._running.get(recording)
        if running is not None and running.timer is not None:
            running.timer.cancel()
            running.timer = None

    def _look_after(self, recording: Recording) -> None:
        """Give a run that nobody listens to its time; none if nobody can come any more."""
        running = self._running.get(recording)
        if running is None or recording.listeners:
            return
        self._stop_timer(recording)
        left_s = 0.0 if recording.forgotten else self._detached_s
        running.timer = asyncio.get_running_loop().call_later(left_s, self._abandon, running)

    def _abandon(self, running: _Running) -> None:
        """Cancel a run. From now on nobody joins it."""
        self._log.info("answer abandoned: nobody has come back for it", path=running.entry.scope.path)
        self._store.forget(running.entry)
        running.task.cancel()

    # --- its end ------------------------------------------------------------------------------------------

    def _ended(self, running: _Running, rules: object) -> None:
        entry, recording = running.entry, running.entry.recording
        self._stop_timer(recording)
        del self._running[recording]
        error = _error(running.task)
        recording.end(error)
        if error is None and not recording.spoiled:
            self._store.store(entry, self._clock.now())
        elif isinstance(error, InvalidRequest) and not isinstance(error, ContextTooLong):
            self._store.store(entry, self._clock.now(), rules=rules)
        else:
            self._store.forget(entry)
        if error is not None and not isinstance(error, Refusal) and not recording.listeners:
            self._log.error("request failed", path=entry.scope.path, exc_info=error)


def _error(task: asyncio.Task[None]) -> BaseException | None:
    """Return what a run failed by, None if it didn't. Only this process's end cancels one that is heard."""
    if task.cancelled():
        return Draining("the server is going down", retry_after_s=_RETRY_S)
    error = task.exception()
    return afresh(error) if isinstance(error, Refusal) else error
