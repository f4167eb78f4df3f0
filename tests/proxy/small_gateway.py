"""The real proxy on a free port, a false worker and a supervisor that a test plays, and a client's eyes."""

import asyncio
import contextlib
import json
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog

from proxy.app import Proxy, StopRequest
from proxy.keys import KEY_FILE_NAME, KeyFile
from shared.channel import DealerChannel, RouterChannel
from shared.codec import encode
from shared.config import Settings
from shared.messages import CALM, Exited, Starting
from tests.free_port import free_port
from tests.proxy.false_worker import FalseWorker
from tests.proxy.small_tokenizers import CHATML, byte_level, write_folder
from tests.proxy.small_worlds import hello
from tests.waiting import until

TOKENIZER = byte_level()
TEXT = "hélo 漢字"  # twelve tokens, a byte each
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def ids(text):
    return TOKENIZER.encode(text).ids


@dataclass
class Answered:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self):
        return json.loads(self.raw)

    @property
    def error(self):
        return self.body["error"]

    @property
    def text(self):
        (choice,) = self.body["choices"]
        return choice["message"]["content"] if "message" in choice else choice["text"]

    @property
    def blocks(self):
        """The blocks of an event stream, each must be complete."""
        *blocks, rest = self.raw.decode("utf-8").split("\n\n")
        assert rest == ""
        return blocks

    @property
    def events(self):
        """The JSON of an event stream's events, and the word DONE."""
        data = [block.removeprefix("data: ") for block in self.blocks if not block.startswith(":")]
        return ["DONE" if each == "[DONE]" else json.loads(each) for each in data]

    def streamed(self, choice=0):
        """Return (text, reason) of one choice of a stream."""
        mine = [
            each
            for event in self.events
            if event != "DONE" and "choices" in event
            for each in event["choices"]
            if each["index"] == choice
        ]
        text = "".join(each["delta"].get("content", "") if "delta" in each else each["text"] for each in mine)
        return text, mine[-1]["finish_reason"]


class Gateway:
    """A proxy that serves, with everything a test wants to do to it."""

    worker_kind = FalseWorker

    def __init__(self, folder, lanes=None, **proxy_settings):
        self._exits = contextlib.AsyncExitStack()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.answer = lambda _submit: ids(TEXT)
        self._folder = folder
        self.lanes = lanes
        self._proxy_settings = proxy_settings
        self._settings = self.read()
        self._slots = 4
        self.workers = []

    async def __aenter__(self):
        place = self._exits.enter_context(tempfile.TemporaryDirectory(prefix="fb"))
        self._endpoint = f"ipc://{place}/wire"
        self.model = self.write_model(self._folder)
        channel = RouterChannel(self._endpoint)
        self._exits.callback(channel.close)
        self.proxy = Proxy(
            self._settings,
            self.model,
            channel,
            structlog.get_logger(),
            reading=self.read,
            admin_socket=Path(place) / "admin",
        )
        self.admin_socket = Path(place) / "admin"
        self.stop = StopRequest()
        self.serving = asyncio.create_task(self.proxy.serve(self.stop))
        self._exits.push_async_callback(self.end)
        self.supervisor = DealerChannel(self._endpoint, b"s-0")
        self._exits.callback(self.supervisor.close)
        self.session = await self._exits.enter_async_context(aiohttp.ClientSession(self.url))
        await until(lambda: self.supervisor.send(b"") and self.proxy.link.dropped_frames)
        await until(lambda: self.serving.done() or self._listens())
        return self

    def write_model(self, folder):
        return write_folder(folder, TOKENIZER, chat_template=CHATML)

    async def __aexit__(self, *_):
        for worker in self.workers:
            await worker.die()
        await self._exits.aclose()

    def _listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    async def end(self):
        """Stop, without waiting for what runs."""
        self.stop.ask(at_once=True)
        await self.serving

    # --- the worker ---------------------------------------------------------------------------------------

    @property
    def worker(self):
        return self.workers[-1]

    async def start_worker(self, *, slots=4, pause_at=None, **changes):
        """Let the next life begin and say Hello."""
        self._slots = slots
        epoch = 1 if not self.workers else self.worker.epoch + 1
        self.supervisor.send(encode(Starting(epoch, CALM)))
        word = hello(epoch, slots, fingerprint=self.model.fingerprint, **changes)
        self.workers.append(self.worker_kind(self._endpoint, word, self._answer, pause_at))
        await until(lambda: self.proxy.link.epoch == epoch)

    def _answer(self, submit):
        """Ask for `answer` anew each time: a test may change it."""
        return self.answer(submit)

    async def kill_worker(self):
        await self.worker.die()
        self.supervisor.send(encode(Exited(self.worker.epoch, "crash", "signal 9", ())))
        await until(lambda: self.proxy.link.epoch is None)

    async def replace_worker(self, **changes):
        await self.kill_worker()
        await self.start_worker(slots=self._slots, **changes)

    def read(self):
        """Read the settings, as at the start and at a reload; `lanes` may be changed before one."""
        return Settings.load(port=self.port, home=self._folder, proxy=self._proxy_settings, lanes=self.lanes)

    def add_key(self, name, **bounds):
        """Make an API key, in force from the start or the next reload; return headers that show it."""
        text = KeyFile(self._folder / KEY_FILE_NAME).add(name, **bounds).text
        return {"Authorization": f"Bearer {text}"}

    @property
    def live(self):
        return self.proxy.dispatcher.live

    def paused_at(self, index):
        """Tell whether all rows stand at this index, and all tokens before it were taken by what writes."""
        running = list(self.proxy.dispatcher._live.running())
        came = {len(each.emitted) for each in running} == {index} and all(
            each.events.empty() for each in running
        )
        return self.worker.paused_at(index) and came

    async def idle(self):
        """Wait until nothing is live, neither here nor in the worker."""
        await until(lambda: self.live == 0 and not self.worker.rows)
        assert self.proxy.dispatcher.admission.reserved_bytes == 0

    # --- the client ---------------------------------------------------------------------------------------

    async def get(self, path, **options):
        async with self.session.get(path, **options) as response:
            return Answered(response.status, response.headers, await response.read())

    async def post(self, path, body, **options):
        given = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.session.post(path, **given, **options) as response:
            return Answered(response.status, response.headers, await response.read())

    def asking(self, path, body, **options):
        """Ask without waiting; the task's result is the answer."""
        return asyncio.create_task(self.post(path, body, **options))

    async def raw(self):
        """Return a connection's (reader, writer)."""
        return await asyncio.open_connection("127.0.0.1", self.port)


async def occupied(here, queued=0, **asked):
    """Take the only row, without an end, and queue some behind it; return the tasks."""
    here.worker.pause_at = 1
    tasks = [here.asking(CHAT, chat(**asked))]
    await until(lambda: here.worker.paused_at(1))
    tasks += [here.asking(CHAT, chat(**asked)) for _ in range(queued)]
    await until(lambda: here.live == 1 + queued)
    return tasks


async def let_end(here, tasks):
    """Let what `occupied` began come to its end; return the answers, all of them whole."""
    here.worker.pause_at = None
    answers = await asyncio.gather(*tasks)
    assert {(answered.status, answered.text) for answered in answers} <= {(200, TEXT)}
    await here.idle()
    return answers


def request(path, body, *, extra=""):
    """Return the bytes of a POST."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n{extra}\r\n"
    )
    return head.encode() + content


def chat(**fields):
    return {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], **fields}


def completion(**fields):
    return {"model": NAME, "prompt": "Hi", **fields}


NAME = "small"


@contextlib.asynccontextmanager
async def gateway(tmp_path: Path, lanes=None, **proxy_settings):
    """Run a gateway that has no worker yet. `lanes` are lists of settings, as in a file."""
    async with Gateway(tmp_path / NAME, lanes, **proxy_settings) as running:
        yield running
