"""A gateway in a thread of its own, for what looks at it from outside and waits, as a driver does."""

import asyncio
import contextlib
import json
import threading
from concurrent.futures import Future
from pathlib import Path

from proxy.status.history import Interval, Levels
from shared.codec import encode
from shared.messages import BackingOff, Care, Exited, ManifestRow, Progress
from shared.model_folder import ModelFolder
from shared.readings import EngineReading, MemoryReading, PrefixReading
from tests.proxy.small_gateway import CHAT, Gateway, chat, ids
from tests.waiting import until

GIB = 1 << 30
CONTEXT_TOKENS = 4096
LANES = [{"name": "interactive", "queue_places": 8}, {"name": "batch", "queue_places": 40}]
# A worker as one of a Mac's: room for many long rows.
WORKER = {
    "weights_bytes": 17 * GIB,
    "budget_bytes": 12 * GIB,
    "kv_bytes_per_token": 64 << 10,
    "context_tokens": CONTEXT_TOKENS,
}
_PATIENCE_S = 30.0


class _Roomy(Gateway):
    """One whose model has room for long answers."""

    def write_model(self, folder):
        super().write_model(folder)
        config = folder / "config.json"
        model = json.loads(config.read_text("utf-8")) | {"max_position_embeddings": CONTEXT_TOKENS}
        config.write_text(json.dumps(model), "utf-8")
        return ModelFolder.read(folder)


class Stage:
    """One loop in one thread, and one gateway at a time on it, whose worker stands where it is told to."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._loop.add_signal_handler = lambda *_: None  # Signals are the main thread's.
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._exits = contextlib.AsyncExitStack()
        self._asked = []
        self.here = None

    def do(self, coroutine):
        """Run it on the gateway's loop, and return what it returns."""
        running: Future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return running.result(_PATIENCE_S)

    def open(self, port=None, lanes=LANES, **proxy_settings):
        """Start a gateway that has no worker; at the port of one before, if that is given."""

        async def enter():
            made = _Roomy(self._folder / "small", lanes, **proxy_settings)
            if port is not None:
                made.port, made.url = port, f"http://127.0.0.1:{port}"
                made._settings = made.read()
            return await self._exits.enter_async_context(made)

        self.here = self.do(enter())
        return self.here

    def worker(self, slots=4, pause_at=None, **changes):
        self.do(self.here.start_worker(slots=slots, pause_at=pause_at, **{**WORKER, **changes}))
        self.tells()

    def shut(self):
        """End the gateway, and with it all that was asked of it."""

        async def leave():
            for each in self._asked:
                each.cancel()
            await asyncio.gather(*self._asked, return_exceptions=True)
            self._asked.clear()
            await self._exits.aclose()
            self._exits = contextlib.AsyncExitStack()

        self.do(leave())

    def close(self):
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    # --- what happens ---------------------------------------------------------------------------------------

    def ask(self, answers, lane="interactive", **fields):
        """Ask for so many answers, and don't wait for them."""

        async def begin():
            headers = {"x-forebay-lane": lane}
            self._asked += [self.here.asking(CHAT, chat(**fields), headers=headers) for _ in range(answers)]

        self.do(begin())

    def wait(self, holds):
        """Wait until it holds of the gateway."""
        self.do(until(lambda: holds(self.here)))

    def pause(self, index):
        """Let each row stand at this token from now on; None lets all end."""
        self.here.worker.pause_at = index

    def answers(self, tokens):
        """Let each answer have so many tokens."""
        answer = (ids("x") * tokens)[:tokens]
        self.here.answer = lambda _submit: answer

    def tells(self, held=2 * GIB, budget=None, kept=GIB):
        """Have the worker tell of its memory."""
        rows = len(self.here.worker.rows)
        worker = self.here.worker
        progress = Progress(
            worker.epoch, 1200, "decode", 20.0, 0, (), held, budget or WORKER["budget_bytes"], 0, 0, False,
            MemoryReading(20 * GIB, GIB // 3, 22 * GIB, 21 * GIB),
            PrefixReading(kept_bytes=kept, shared_bytes=GIB // 4),
            EngineReading(rows, min(rows, 2), 3000, 400_000),
        )  # fmt: skip
        self._on_loop(lambda: worker._say(progress))
        self.wait(lambda here: here.proxy.link.state.progress is not None)

    def remembers(self, intervals):
        """Put intervals into the gateway's history: how long ago each ended, and its tokens a second."""

        def put():
            now = self.here.proxy.status._clock.now()
            for ago_s, tokens_per_s in sorted(intervals, reverse=True):
                told = Interval(now - ago_s, tokens_per_s, None, None, 0, 0, Levels(0, 0, 0))
                self.here.proxy.observer.history.intervals.append(told)

        self._on_loop(put)

    def dies(self, cause="memory", detail="[METAL] Command buffer execution failed: Insufficient Memory"):
        """Let the worker die, and its supervisor say why: of all its rows."""
        rows = [ManifestRow(name, 1, 0, False) for name in self.here.worker.rows]

        async def die():
            await self.here.worker.die()
            self.here.supervisor.send(encode(Exited(self.here.worker.epoch, cause, detail, tuple(rows))))
            await until(lambda: self.here.proxy.link.epoch is None)

        self.do(die())

    def backs_off(self, delay_s, rung=0, breaker="closed"):
        """Let the supervisor say when it starts the next one."""
        word = encode(BackingOff(self.here.worker.epoch, delay_s, Care(rung, breaker)))
        self._on_loop(lambda: self.here.supervisor.send(word))
        self.wait(lambda here: here.proxy.link.state.retry_at is not None)

    def drain(self, on):
        def turn():
            self.here.proxy.dispatcher.draining = on

        self._on_loop(turn)

    def _on_loop(self, act):
        async def run():
            act()

        self.do(run())
