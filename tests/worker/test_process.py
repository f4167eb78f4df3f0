"""The worker process itself: a real one, on a tiny model, with its proxy's end of the wire in the test."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from shared.config import WorkerSettings
from shared.messages import Cancel, Finished, Hello, Ping, Progress
from shared.model_folder import ModelFolder
from tests.worker.life_of_a_process import ENDLESS, EPOCH, PROMPT, Life, submit
from tests.worker.tiny_models import greedy_alone, load_saved
from worker.engine.model import load
from worker.launch import (
    EXIT_CANNOT_LOAD,
    EXIT_LOOP_EXCEPTION,
    identity,
)
from worker.progress_pipe import ProgressReader

# The process with one part of it changed: the model answers its warm-up and then breaks in the loop.
BREAKS_IN_THE_LOOP: Final = """
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
from worker.engine.batch_engine import BatchEngine
launch = BatchEngine.launch
def launch_or_break(self, rows):
    if rows[0].name != "canary":
        raise RuntimeError("the device is gone")
    launch(self, rows)
BatchEngine.launch = launch_or_break
process.main()
"""
DOES_NOT_BATCH: Final = """
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
from worker.engine.trial import Trial
Trial.way = lambda self: None
process.main()
"""
# Its steps are so slow that no endless answer ends before a proxy is taken for silent.
SLOW_STEPS: Final = """
import time
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
from worker.engine.batch_engine import BatchEngine
read = BatchEngine.read
def slowly(self):
    time.sleep(0.005)
    return read(self)
BatchEngine.read = slowly
process.main()
"""
CANNOT_DECODE: Final = """
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
from worker.engine.batch_engine import BatchEngine
def launch(self, rows):
    raise RuntimeError("no decoding here")
BatchEngine.launch = launch
process.main()
"""


@pytest.mark.asyncio(loop_scope="module")
async def test_a_sequence_is_answered_with_the_models_own_tokens(
    lasting: Life, lasting_folder: ModelFolder
) -> None:
    life = lasting
    loaded = load(lasting_folder, None, lambda: None, share_tokens=WorkerSettings().prefix_share_tokens)
    hello = await life.hears(Hello)
    assert (hello.facts, hello.slots, hello.worker) == (loaded.facts, 3, "0")
    assert hello.budget_bytes >= loaded.facts.batch_bytes([1])
    await life.say(submit("a", 20))
    await life.hears(Finished, sequence="a", index=20, reason="length")
    greedy_alone(loaded.model, PROMPT, 20).assert_same(life.tokens("a"))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cancelled_sequence_ends_while_others_go_on(lasting: Life) -> None:
    life = lasting
    life.heard.clear()
    await life.say(submit("endless", ENDLESS))
    await life.until(lambda: life.tokens("endless"))
    await life.say(Cancel(EPOCH, "endless"))
    await life.say(submit("b", 5))
    await life.hears(Finished, sequence="b", index=5)
    await life.hears(Progress, running=(), phase="idle", ping=1)
    assert not [message for message in life.heard if getattr(message, "sequence", "") == "endless"]


@pytest.mark.asyncio(loop_scope="module")
async def test_frames_that_cannot_be_read_do_no_harm(lasting: Life) -> None:
    life = lasting
    await life.router.send(identity("0", EPOCH), b"\xc1 no message")
    await life.say(submit("zombie", 5, epoch=EPOCH - 1))
    await life.say(submit("sound", 5))
    await life.hears(Finished, sequence="sound")
    assert life.tokens("zombie") == []


async def test_a_proxy_that_falls_silent_finds_a_free_worker_when_it_is_back(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    """No ping comes any more: the worker drops what it runs and says Hello as if it were new."""
    async with start(folder.path, code=SLOW_STEPS) as life:
        await life.hears(Hello)
        await life.say(Ping(EPOCH, 1))
        await life.hears(Progress, ping=1)
        life.heard.clear()
        await life.say(submit("orphan", ENDLESS))
        await life.hears(Progress, running=("orphan",))
        await life.hears(Hello)
        await life.say(Ping(EPOCH, 2))
        await life.hears(Progress, running=(), ping=2)
        assert not [message for message in life.heard if isinstance(message, Finished)]


@pytest.mark.asyncio(loop_scope="module")
async def test_the_supervisor_hears_of_loading_and_then_of_every_turn(lasting: Life) -> None:
    """All that the process has said to it since its start is still in the pipe."""
    life = lasting
    await life.say(submit("told", 5))
    await life.hears(Finished, sequence="told")
    reports = ProgressReader().feed(os.read(life.progress_fd, 1 << 16))
    phases = [report.phase for report in reports]
    assert phases[:3] == ["loading"] * 3
    assert {"prefill", "decode"} <= set(phases)
    assert {report.epoch for report in reports} == {EPOCH}


async def test_one_row_at_a_time_is_said_of_a_family_that_does_not_batch(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    async with start(folder.path, code=DOES_NOT_BATCH) as life:
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
    assert words.splitlines()[-1] == "RuntimeError: the device is gone"


async def test_a_process_whose_supervisor_is_gone_ends(life: Life) -> None:
    await life.say(submit("endless", ENDLESS))
    life.cut_lifeline()
    status, _ = await life.exit_status()
    assert status == 0


async def test_a_worker_that_cannot_make_a_token_never_says_hello(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    async with start(folder.path, code=CANNOT_DECODE) as life:
        status, words = await life.exit_status()
        assert life.heard == []
    assert status == EXIT_LOOP_EXCEPTION
    assert "no decoding here" in words
