"""A real proxy with next to no file descriptors: streams live, and it answers again once there are some."""

import asyncio
import contextlib
import resource
import socket
import sys

import pytest

from shared.channel import DealerChannel
from shared.codec import encode
from shared.config import child_environment
from shared.messages import CALM, Starting
from shared.run_folder import RunFolder
from tests.proxy.false_worker import FalseWorker
from tests.proxy.small_gateway import COMPLETIONS, TEXT, TOKENIZER, completion, ids, request
from tests.proxy.small_tokenizers import CHATML, write_folder
from tests.proxy.small_worlds import hello
from tests.waiting import until

DESCRIPTORS = 64
READY = b"GET /health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


class Process:
    """A proxy's process, with a false worker beside it."""

    def __init__(self, home, port, model):
        self.home, self.port, self.model = home, port, model
        self.log = home / "log"

    async def start(self):
        command = f"ulimit -n {DESCRIPTORS}; exec {sys.executable} -m proxy --folder {self.model.path}"
        environment = child_environment(FOREBAY_HOME=str(self.home), FOREBAY_PORT=str(self.port))
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_shell(command, env=environment, stderr=log)
        await until(lambda: self.process.returncode is not None or self.listens())

    async def end(self):
        """End it as an operator does; having lived through all this, it ends well."""
        if self.process.returncode is None:
            self.process.terminate()
        assert await self.process.wait() == 0

    def listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    async def status(self):
        """Return the status of /health/ready, 0 if the connection ends without one."""
        raw = b""
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(READY)
            raw = await reader.read()
            writer.close()
        return int(raw.split()[1]) if raw else 0

    async def until_status(self, status):
        async with asyncio.timeout(20):
            while await self.status() != status:  # noqa: ASYNC110 (it's another process)
                await asyncio.sleep(0.01)

    @contextlib.asynccontextmanager
    async def streaming(self):
        """Have a stream stand at its third token; then see that it comes to its end."""
        self.worker.pause_at = 3
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request(COMPLETIONS, completion(max_tokens=12, stream=True)))
        await until(lambda: self.worker.paused_at(3))
        yield
        self.worker.pause_at = None
        await reader.readuntil(b"data: [DONE]\n\n")
        writer.close()


@pytest.fixture
async def proxy(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = write_folder(tmp_path / "small", TOKENIZER, chat_template=CHATML)
    running = Process(tmp_path, port, model)
    async with contextlib.AsyncExitStack() as exits:
        await running.start()
        exits.push_async_callback(running.end)
        endpoint = RunFolder(tmp_path, port).endpoint
        supervisor = DealerChannel(endpoint, b"s-0")
        exits.callback(supervisor.close)
        await until(lambda: supervisor.send(encode(Starting(1, CALM))))
        word = hello(1, 4, fingerprint=model.fingerprint)
        running.worker = FalseWorker(endpoint, word, lambda _: ids(TEXT))
        exits.push_async_callback(running.worker.die)
        await running.until_status(200)
        yield running


async def test_a_crowd_is_turned_away_and_neither_streams_nor_health_suffer(proxy):
    async with proxy.streaming():
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(socket.socket()) for _ in range(3 * DESCRIPTORS)]
            for client in crowd:
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.connect(("127.0.0.1", proxy.port))
            await proxy.until_status(200)
            assert any(told(client).startswith(b"HTTP/1.1 503") for client in crowd)
    assert await proxy.status() == 200


def told(client):
    with contextlib.suppress(BlockingIOError, ConnectionError):
        return client.recv(1024)
    return b""


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux lowers another process's limits")
async def test_without_any_descriptor_left_streams_live_and_it_recovers(proxy):
    async with proxy.streaming():
        resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (8, DESCRIPTORS))
        waiting = [asyncio.create_task(proxy.status()) for _ in range(10)]
        await until(lambda: "can't accept connections for now" in proxy.log.read_text("utf-8"))
        assert not any(task.done() for task in waiting)
        resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        assert set(await asyncio.gather(*waiting)) == {200}
