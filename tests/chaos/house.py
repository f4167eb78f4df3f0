"""A whole gateway in a short-lived home: the real proxy and supervisor, and false workers that fail."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

import aiohttp
import structlog

from proxy.app import Proxy, StopRequest
from shared.channel import RouterChannel
from shared.config import Settings
from shared.model_folder import ModelFolder
from shared.run_folder import RunFolder
from tests.chaos.false_model import answer_text
from tests.chaos.faults import Plan, Point
from tests.free_port import free_port
from tests.proxy.small_tokenizers import CHATML, byte_level, write_folder
from tests.worker.supervised_house import is_gone
from worker.epochs import Past
from worker.journal import Life, read_lives
from worker.supervisor import Supervisor

FALSE_PROCESS: Final = Path(__file__).with_name("false_process.py")
PATIENCE_S: Final = 60.0
NAME: Final = "small"
TOKENIZER: Final = byte_level()
COMPLETIONS: Final = "/v1/completions"
# Without a reserve, so that two rows are enough for everything.
LANES: Final = ({"name": "interactive", "reserved_slots": 0}, {"name": "batch"})


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 (what happens in other processes sets no event)
            await asyncio.sleep(0.005)


def expected(prompt: str, tokens: int) -> str:
    """Return the text that the false model answers."""
    return answer_text(TOKENIZER.encode(prompt).ids, tokens)


@dataclass(frozen=True)
class Said:
    """What a client got to hear. `text` is all that was shown; `whole` is whether it said that it was all."""

    status: int
    text: str
    whole: bool
    error: Mapping[str, Any] | None
    headers: Mapping[str, str]


# Both begin without blocked signals: a supervisor beside this test blocks them while it starts its worker.
# A supervisor in a process of its own: settings, the model's folder, how long its files may be, the command.
_SUPERVISOR: Final = """
import json, resource, signal, sys
from pathlib import Path
from shared import logs
from shared.config import Settings
from worker.__main__ import run
signal.pthread_sigmask(signal.SIG_SETMASK, ())
given, folder, bytes_max, *command = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(bytes_max), -1))
settings = Settings.load(**json.loads(given))
logs.configure(settings.log)
sys.exit(run(settings, Path(folder), name="small", command=command))
"""

_PROXY: Final = """
import resource, runpy, signal, sys
signal.pthread_sigmask(signal.SIG_SETMASK, ())
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), -1))
runpy.run_module("proxy", run_name="__main__", alter_sys=True)
"""


class House:
    """Start a proxy and a supervisor in it; leave it with nothing running."""

    def __init__(self, plan: Plan | None = None, *, slots: int = 2, **settings: Mapping[str, Any]) -> None:
        self._plan = plan or Plan()
        self._exits = contextlib.AsyncExitStack()
        self.home = Path(self._exits.enter_context(tempfile.TemporaryDirectory(prefix="fb")))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        proxy = {"resumes_max": 8, **settings.get("proxy", {})}
        worker = {"slots": slots, "restarts_max": 100, **settings.get("worker", {})}
        self.given = {"home": str(self.home), "port": self.port, "proxy": proxy, "worker": worker}
        self.settings = Settings.load(lanes=LANES, **self.given)
        self.run_folder = RunFolder(self.home, self.port)
        self.lives_file = self.home / "lives"
        self.model: ModelFolder = write_folder(self.home / NAME, TOKENIZER, chat_template=CHATML)

    def take_plan(self, plan: Plan) -> None:
        """Plan anew, for supervisors to come: a plan may name files of this home."""
        self._plan = plan

    async def __aenter__(self) -> Self:
        self.run_folder.create()
        self.session = await self._exits.enter_async_context(
            aiohttp.ClientSession(self.url, timeout=aiohttp.ClientTimeout(PATIENCE_S))
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._exits.aclose()

    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, str(FALSE_PROCESS), self._plan.to_json(), str(self.lives_file))

    # --- the proxy ----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def proxy(self, channel: Callable[[str], RouterChannel] = RouterChannel):
        """Serve, and drop whatever still runs at the end."""
        wire = channel(self.run_folder.endpoint)
        stop = StopRequest()
        try:
            self.served = Proxy(
                self.settings,
                self.model,
                wire,
                structlog.get_logger(),
                reading=lambda: self.settings,
                admin_socket=self.run_folder.admin_socket,
            )
            serving = asyncio.create_task(self.served.serve(stop))
            try:
                await until(lambda: serving.done() or self.listens())
                yield self.served
            finally:
                stop.ask(at_once=True)
                await serving
        finally:
            wire.close()

    async def process_of_proxy(self, *, file_bytes_max: int = -1) -> subprocess.Popen[bytes]:
        """Start the proxy in a process of its own; whoever starts it ends it and reads its stderr."""
        config = self.home / "forebay.toml"
        config.write_text(_toml({**self.given, "lanes": LANES}), "utf-8")
        words = (str(file_bytes_max), "--folder", str(self.model.path), "--config", str(config))
        process = _start(_PROXY, words, subprocess.PIPE)
        await until(lambda: process.poll() is not None or self.listens())
        return process

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def is_ready(self) -> bool:
        return self.served.link.epoch is not None

    @property
    def has_been_ready(self) -> bool:
        return self.served.dispatcher._has_had_worker

    async def empty(self) -> None:
        """Wait until nothing is live; then nothing may be held either."""
        await until(lambda: not self.served.dispatcher.live)
        assert self.served.dispatcher.admission.reserved_bytes == 0
        assert self.served.dispatcher.admission.running == 0

    # --- the worker ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def supervisor(self, first_epoch: int = 1):
        """Supervise false workers, and check that none is left behind."""
        supervisor = Supervisor(
            self.settings,
            self.model.path,
            NAME,
            past=Past(first_epoch),
            boot="this boot",
            command=self.command,
        )
        running = asyncio.create_task(supervisor.run())
        try:
            yield supervisor
        finally:
            supervisor.stop()
            async with asyncio.timeout(PATIENCE_S):
                await running
            assert all(is_gone(pid) for pid in self.pids())

    @contextlib.asynccontextmanager
    async def process_of_supervisor(self, *, file_bytes_max: int = -1):
        """Supervise in a process of its own, which may not write files longer than that; yield its stderr."""
        words = (json.dumps(self.given), str(self.model.path), str(file_bytes_max), *self.command)
        said = self.home / "supervisor.said"
        with said.open("wb") as output:
            process = _start(_SUPERVISOR, words, output)
        try:
            yield said
        finally:
            process.terminate()
            await until(lambda: process.poll() is not None)
            assert all(is_gone(pid) for pid in self.pids())

    def pids(self) -> list[int]:
        text = self.lives_file.read_text() if self.lives_file.exists() else ""
        return [int(line.split()[1]) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def points(self, life: int) -> list[Point]:
        """Return the points that a life has passed."""
        file, passed = self.home / f"points-{life}", Counter[str]()
        points: list[Point] = []
        for name in file.read_text().splitlines() if file.exists() else ():
            passed[name] += 1
            points.append((name, passed[name]))
        return points

    def hellos(self, life: int) -> int:
        """Return how often a life has said Hello."""
        return sum(name == "Hello to be sent" for name, _ in self.points(life))

    def lives(self) -> list[Life]:
        """Return what the journal says, the first life first; to be asked when the supervisor has ended."""
        return sorted(read_lives(self.home / "logs"), key=lambda life: life.epoch)

    def causes(self) -> Counter[str]:
        """Count how lives ended, but for the last one, which was stopped."""
        return Counter(life.cause or "unknown" for life in self.lives()[:-1])

    # --- the client ---------------------------------------------------------------------------------------

    async def ask(
        self,
        prompt: str,
        tokens: int,
        *,
        lane: str = "interactive",
        heard: asyncio.Event | None = None,
        leaves: bool = False,
        **headers: str,
    ) -> Said:
        """Stream an answer; `heard` is set at its first token, upon which the client may leave."""
        body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "stream": True}
        named = {"x-forebay-lane": lane, **{key.replace("_", "-"): value for key, value in headers.items()}}
        async with self.session.post(COMPLETIONS, json=body, headers=named) as response:
            if response.status != 200:
                error = (await response.json())["error"]
                return Said(response.status, "", False, error, response.headers)
            return await _hear(response, heard or asyncio.Event(), leaves=leaves)

    async def gets(self, prompt: str, tokens: int, **asked: Any) -> None:
        """Ask, and check that all of the right answer comes."""
        said = await self.ask(prompt, tokens, **asked)
        assert (said.status, said.text, said.whole) == (200, expected(prompt, tokens), True), said

    async def gets_at_last(self, prompt: str, tokens: int) -> None:
        """Get all of the right answer, once the gateway lets one in."""
        while (said := await self.ask(prompt, tokens)).status == 503:  # noqa: ASYNC110 (as a client does)
            await asyncio.sleep(0.05)
        assert (said.status, said.text, said.whole) == (200, expected(prompt, tokens), True), said

    async def answered_once(self, key: str) -> bytes:
        """Return the body of an answer that has an Idempotency-Key; it is drawn at random, but once."""
        body = {"model": NAME, "prompt": "once", "max_tokens": 3}
        headers = {"Idempotency-Key": key}
        async with self.session.post(COMPLETIONS, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.read()

    async def health(self) -> tuple[int, Mapping[str, Any]]:
        async with self.session.get("/health/ready") as response:
            return response.status, await response.json()

    async def admin(self, method: str, path: str, body: object = None) -> Any:
        """Give an order at the operator's door."""
        connector = aiohttp.UnixConnector(str(self.run_folder.admin_socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"http://gateway{path}", json=body) as response,
        ):
            assert response.status < 300, await response.text()
            return await response.json()


async def _hear(response: aiohttp.ClientResponse, heard: asyncio.Event, *, leaves: bool) -> Said:
    text, reasons, error, done = "", [], None, 0
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue
        assert not done, "nothing may follow the end"
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            done += 1
            continue
        event = json.loads(data)
        error = event.get("error", error)
        for choice in event.get("choices", ()):
            text += choice["text"]
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        if text:
            heard.set()
            if leaves:
                break
    return Said(response.status, text, done == 1 and reasons == ["length"], error, response.headers)


@contextlib.asynccontextmanager
async def open_house(plan: Plan | None = None, **given: Any):
    """Open a house with a proxy and a supervisor in it."""
    async with House(plan, **given) as house, house.proxy(), house.supervisor():
        yield house


def _start(program: str, words: Sequence[str], stderr: int | IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen((sys.executable, "-c", program, *words), stderr=stderr)


def _toml(settings: Mapping[str, Any]) -> str:
    """Write settings as TOML: plain values, then tables, then lists of tables."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if _is_plain(value)]
    for key, value in settings.items():
        if isinstance(value, dict):
            plain += [f"[{key}]", _toml(value)]
        elif not _is_plain(value):
            plain += [f"[[{key}]]\n{_toml(each)}" for each in value]
    return "\n".join(plain)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float)
