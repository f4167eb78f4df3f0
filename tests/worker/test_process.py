"""The worker process itself: a real one, on a tiny model, with its proxy's end of the wire in the test."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import pytest

from shared.channel import RouterChannel
from shared.codec import decode, encode
from shared.config import LogSettings, WorkerSettings
from shared.messages import Cancel, Finished, Hello, Message, Ping, Progress, Step, Submit
from shared.model_folder import ModelFolder
from shared.run_folder import RunFolder
from shared.sampling import Sampling
from tests.worker.tiny_models import greedy_alone, load_saved, save
from worker.launch import EXIT_CANNOT_LOAD, EXIT_LOOP_EXCEPTION, LaunchSpec, identity
from worker.progress_pipe import ProgressReader

EPOCH: Final = 3
DEADLINE_S: Final = 60
PROMPT: Final = (5, 6, 7, 8)
ENDLESS: Final = 20_000  # tokens: longer than any test waits
# The process with one part of it changed: the model answers its warm-up and then breaks in the loop.
BREAKS_IN_THE_LOOP: Final = """
from worker import process
from worker.batch_engine import BatchEngine
def launch(self, rows):
    raise RuntimeError("the device is gone")
BatchEngine.launch = launch
process.main()
"""


class Life:
    """One life of the process, seen from its supervisor and from its proxy."""

    def __init__(self, home: Path, folder: Path, command: tuple[str, ...], **settings: Any) -> None:
        run_folder = RunFolder(home, 8000)
        run_folder.create()
        self.router = RouterChannel(run_folder.endpoint)
        self.heard: list[Message] = []
        self.progress_fd, progress_end = os.pipe()
        lifeline_end, self.lifeline_fd = os.pipe()
        spec = LaunchSpec(
            worker="0",
            epoch=EPOCH,
            endpoint=run_folder.endpoint,
            folder=str(folder),
            name="tiny",
            progress_fd=progress_end,
            lifeline_fd=lifeline_end,
            settings=WorkerSettings.model_validate({"slots": 3, **settings}),
            log=LogSettings(format="json"),
        )
        self.process = subprocess.Popen(
            (*command, spec.to_json()), pass_fds=(progress_end, lifeline_end), stderr=subprocess.PIPE
        )
        os.close(progress_end)
        os.close(lifeline_end)
        self.listener = asyncio.create_task(self.listen())

    async def listen(self) -> None:
        while True:
            sender, frame = await self.router.receive()
            assert sender == identity("0", EPOCH)
            self.heard.append(decode(frame))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.listener
        self.router.close()
        os.close(self.progress_fd)
        self.cut_lifeline()

    async def say(self, message: Message) -> None:
        assert await self.router.send(identity("0", EPOCH), encode(message))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110  what is waited for happens in another process
                await asyncio.sleep(0.01)

    async def hears(self, kind: type[Any], **values: object) -> Any:
        """Wait for a message of a kind with these values, and return it."""

        def those() -> list[Any]:
            return [
                message
                for message in self.heard
                if isinstance(message, kind)
                and all(getattr(message, name) == value for name, value in values.items())
            ]

        await self.until(those)
        return those()[0]

    async def exit_status(self) -> tuple[int, str]:
        """Wait for the end of the process; return its status and its last words."""
        _, words = await asyncio.to_thread(self.process.communicate, timeout=DEADLINE_S)
        return self.process.returncode, words.decode()

    def cut_lifeline(self) -> None:
        if self.lifeline_fd >= 0:
            os.close(self.lifeline_fd)
            self.lifeline_fd = -1

    def tokens(self, sequence: str) -> list[int]:
        steps = [message for message in self.heard if isinstance(message, Step)]
        return [row.token for step in steps for row in step.rows if row.sequence == sequence]


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    return save(tmp_path / "model", "llama", max_position_embeddings=2 * ENDLESS)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Life]]:
    def start(folder: Path, code: str = "", **settings: Any) -> Life:
        command = ("-c", code) if code else ("-m", "worker.process")
        return Life(tmp_path, folder, (sys.executable, *command), **settings)

    return start


@pytest.fixture
async def life(start: Callable[..., Life], folder: ModelFolder) -> AsyncIterator[Life]:
    """A process that has loaded its model and been answered by its proxy."""
    async with start(folder.path) as life:
        await life.hears(Hello)
        await life.say(Ping(EPOCH, 1))
        yield life


def submit(name: str, max_tokens: int, epoch: int = EPOCH) -> Submit:
    return Submit(epoch, name, 1, PROMPT, (), max_tokens, (), Sampling(temperature=0.0), 0, 250.0)


async def test_a_sequence_is_answered_with_the_models_own_tokens(life: Life, folder: ModelFolder) -> None:
    loaded = load_saved(folder)
    hello = await life.hears(Hello)
    assert (hello.facts, hello.slots, hello.worker) == (loaded.facts, 3, "0")
    assert hello.budget_bytes >= loaded.facts.batch_bytes([1])
    await life.say(submit("a", 20))
    await life.hears(Finished, sequence="a", index=20, reason="length")
    greedy_alone(loaded.model, PROMPT, 20).assert_same(life.tokens("a"))


async def test_a_cancelled_sequence_ends_while_others_go_on(life: Life) -> None:
    await life.say(submit("endless", ENDLESS))
    await life.hears(Step)
    await life.say(Cancel(EPOCH, "endless"))
    await life.say(submit("b", 5))
    await life.hears(Finished, sequence="b", index=5)
    await life.hears(Progress, running=(), phase="idle", ping=1)
    assert not [message for message in life.heard if getattr(message, "sequence", "") == "endless"]


async def test_frames_that_cannot_be_read_do_no_harm(life: Life) -> None:
    await life.router.send(identity("0", EPOCH), b"\xc1 no message")
    await life.say(submit("zombie", 5, epoch=EPOCH - 1))
    await life.say(submit("a", 5))
    await life.hears(Finished, sequence="a")
    assert life.tokens("zombie") == []


async def test_a_proxy_that_falls_silent_finds_a_free_worker_when_it_is_back(life: Life) -> None:
    """No ping comes any more: the worker drops what it runs and says Hello as if it were new."""
    life.heard.clear()
    await life.say(submit("orphan", ENDLESS))
    await life.hears(Progress, running=("orphan",))
    await life.hears(Hello)
    await life.say(Ping(EPOCH, 2))
    await life.hears(Progress, running=(), ping=2)
    assert not [message for message in life.heard if isinstance(message, Finished)]


async def test_the_supervisor_hears_of_loading_and_then_of_every_turn(life: Life) -> None:
    await life.say(submit("a", 5))
    await life.hears(Finished, sequence="a")
    reports = ProgressReader().feed(os.read(life.progress_fd, 1 << 16))
    phases = [report.phase for report in reports]
    assert phases[:3] == ["loading"] * 3
    assert {"prefill", "decode"} <= set(phases)
    assert {report.epoch for report in reports} == {EPOCH}


async def test_one_row_at_a_time_is_said_of_a_family_that_does_not_batch(
    start: Callable[..., Life], tmp_path: Path
) -> None:
    folder = save(tmp_path / "model", "mamba2")
    async with start(folder.path) as life:
        hello = await life.hears(Hello)
        await life.say(Ping(EPOCH, 1))
        assert (hello.slots, hello.facts.batches) == (1, False)
        for name in "ab":
            await life.say(submit(name, 5))
        for name in "ab":
            await life.hears(Finished, sequence=name, index=5)
        assert (
            life.tokens("a") == life.tokens("b") == greedy_alone(load_saved(folder).model, PROMPT, 5).tokens
        )


async def test_a_folder_that_cannot_be_loaded_ends_the_process_with_words(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    (folder.path / "model.safetensors").write_bytes(b"no weights at all")
    async with start(folder.path) as life:
        status, words = await life.exit_status()
    assert status == EXIT_CANNOT_LOAD
    assert "the model can't be served" in words
    assert str(folder.path) in words
    assert "Traceback" not in words


async def test_a_model_that_leaves_no_memory_is_not_served(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    async with start(folder.path, memory_fraction=1e-9) as life:
        status, words = await life.exit_status()
    assert status == EXIT_CANNOT_LOAD
    assert "doesn't fit in memory" in words


async def test_an_error_in_the_loop_ends_the_process_with_words(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    async with start(folder.path, code=BREAKS_IN_THE_LOOP) as life:
        await life.hears(Hello)
        await life.say(submit("a", 5))
        status, words = await life.exit_status()
    assert status == EXIT_LOOP_EXCEPTION
    assert "the loop failed" in words
    assert "the device is gone" in words


async def test_a_process_whose_supervisor_is_gone_ends(life: Life) -> None:
    await life.say(submit("endless", ENDLESS))
    life.cut_lifeline()
    status, _ = await life.exit_status()
    assert status == 0
