"""How the worker process ends (killed, asked, hit by a signal), and how it asks for its end."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from shared.messages import Finished, Hello, Ping, Progress, Step
from shared.model_folder import ModelFolder
from tests.worker.life_of_a_process import ENDLESS, EPOCH, PROMPT, Life, submit
from tests.worker.tiny_models import greedy_alone, load_saved
from worker import foreign_signals, manifest
from worker.death import MemoryEvidence, death_of
from worker.launch import (
    EXIT_PLANNED,
    SENT_BY_ANOTHER,
)

# A worker whose steps take long enough for a signal to find one under way.
SLOW_STEPS: Final = """
import time
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
from worker.engine.batch_engine import BatchEngine
read = BatchEngine.read
def slowly(self):
    time.sleep(0.05)
    return read(self)
BatchEngine.read = slowly
process.main()
"""
LOADS_FOR_EVER: Final = """
import time
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
def load(*arguments, **options):
    while True:
        time.sleep(1)
process.load = load
process.main()
"""
LEAKS: Final = """
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
from worker.loop import Loop
ballast = []
take = Loop._take
def leak(self, message):
    if not ballast:
        ballast.append(bytes(bytearray(b"x") * (600 << 20)))
    take(self, message)
Loop._take = leak
process.main()
"""


# --- what ran ---------------------------------------------------------------------------------------------


async def test_what_ran_can_be_read_after_the_process_was_killed(life: Life) -> None:
    for name in "ab":
        await life.say(submit(name, ENDLESS))
    await life.until(lambda: life.tokens("a") and life.tokens("b"))
    life.process.kill()
    await life.exit_status()
    rows = manifest.read(life.manifest_fd)
    assert {(row.sequence, row.attempt, row.prefilling) for row in rows} == {("a", 1, False), ("b", 1, False)}
    await life.until(lambda: all(row.index >= len(life.tokens(row.sequence)) for row in rows))


async def test_an_idle_process_that_is_killed_ran_nothing(life: Life) -> None:
    await life.say(submit("a", 5))
    await life.hears(Finished, sequence="a")
    await life.hears(Progress, running=(), phase="idle", answers=1, tokens=5)
    life.process.kill()
    await life.exit_status()
    assert manifest.read(life.manifest_fd) == ()


# --- ends -------------------------------------------------------------------------------------------------


async def test_asked_to_end_it_sends_the_tokens_of_the_step_under_way_and_leaves(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    async with start(folder.path, code=SLOW_STEPS) as life:
        await life.hears(Hello)
        life.is_pinged()
        await life.say(submit("a", ENDLESS))
        await life.hears(Step)
        life.process.send_signal(signal.SIGTERM)
        status, words = await life.exit_status()
        assert status == EXIT_PLANNED
        assert "ended as asked" in words
        [row] = manifest.read(life.manifest_fd)
        await life.until(lambda: len(life.tokens("a")) == row.index + 1)
        greedy_alone(load_saved(folder).model, PROMPT, row.index + 1).assert_same(life.tokens("a"))


async def test_asked_to_end_while_idle_it_leaves(life: Life) -> None:
    life.process.send_signal(signal.SIGTERM)
    assert (await life.exit_status())[0] == EXIT_PLANNED


async def test_asked_to_end_while_it_loads_it_leaves_at_once(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    async with start(folder.path, code=LOADS_FOR_EVER) as life:
        await life.loads()
        life.process.send_signal(signal.SIGTERM)
        assert (await life.exit_status())[0] == EXIT_PLANNED


async def test_asked_twice_it_leaves_whatever_it_is_doing(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    code = SLOW_STEPS.replace("0.05", "1000 if self._caches.rows[0].name == 'stuck' else 0")
    async with start(folder.path, code=code) as life:
        await life.hears(Hello)
        await life.say(submit("stuck", ENDLESS))
        await life.until(lambda: manifest.read(life.manifest_fd))

        def ended() -> bool:
            life.process.send_signal(signal.SIGTERM)
            return life.process.poll() is not None

        await life.until(ended)
        assert life.process.returncode == EXIT_PLANNED
        assert len(life.tokens("stuck")) == 1, "what prefill has brought"


@pytest.mark.parametrize("begins_blocked", [True, False])
async def test_a_signal_that_somebody_sends_is_told_from_a_fault(
    start: Callable[..., Life], folder: ModelFolder, begins_blocked: bool
) -> None:
    """However it was started, and though OpenBLAS and others start threads before its first line runs."""
    async with start(folder.path, begins_blocked=begins_blocked) as life:
        await life.hears(Hello)
        await life.say(submit("a", ENDLESS))
        await life.hears(Step)
        life.process.send_signal(signal.SIGSEGV)
        status, words = await life.exit_status()
    assert status == -signal.SIGSEGV
    assert words.splitlines()[-1] == f"ended by SIGSEGV, {SENT_BY_ANOTHER}"


async def test_only_the_thread_that_waits_for_signals_can_be_hit_by_one(life: Life) -> None:
    await life.say(submit("a", 5))
    await life.hears(Finished)
    masks = masks_of_threads(life.process.pid)
    assert len(masks) > 3
    for number in foreign_signals.watched(sys.platform):
        assert len([mask for mask in masks if not mask >> (number - 1) & 1]) == 1


def masks_of_threads(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.is_dir():
        pytest.skip("threads can't be looked at without /proc")
    lines = [line for task in tasks.iterdir() for line in (task / "status").read_text().splitlines()]
    return [int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:")]


# --- memory -----------------------------------------------------------------------------------------------


async def test_a_leak_that_cannot_be_given_back_makes_an_idle_worker_ask_to_be_replaced(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    async with start(folder.path, code=LEAKS, memory_fraction=0.01, kv_budget_mb=16) as life:
        await life.hears(Hello)
        await life.say(Ping(EPOCH, 1))
        asked = await life.hears(Progress, wants_recycle=True)
        assert asked.phase == "idle"
        assert asked.budget_bytes == 0


async def test_a_worker_that_holds_much_from_the_start_serves_and_does_not_ask_to_be_replaced(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    async with start(folder.path, memory_fraction=0.01, kv_budget_mb=16) as life:
        await life.hears(Hello)
        life.is_pinged()
        await life.say(submit("a", 50))
        await life.hears(Finished, sequence="a", index=50)
        told = await life.hears(Progress, answers=1)
        assert (told.wants_recycle, told.budget_bytes) == (False, 16 << 20)


# --- room -------------------------------------------------------------------------------------------------

ON_A_CARD: Final = """
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
from worker import memory
memory.device_report = lambda: memory.DeviceReport(
    "card", 0, memory_bytes={memory_bytes}, shares_memory=False, free_bytes={free_bytes}, is_gpu=True
)
process.main()
"""


@pytest.mark.parametrize(
    ("memory_bytes", "cause"), [(1 << 36, "memory"), (1 << 16, "cannot_load")], ids=["taken", "too small"]
)
async def test_a_model_is_given_up_only_where_it_would_not_fit_alone(
    memory_bytes: int, cause: str, start: Callable[..., Life], folder: ModelFolder
) -> None:
    """What others hold of a card may be free again when the next life begins."""
    code = ON_A_CARD.format(memory_bytes=memory_bytes, free_bytes=1 << 16)
    async with start(folder.path, code=code) as life:
        death = death_of(*await life.exit_status(), MemoryEvidence())
    assert death.cause == cause
    assert "doesn't fit in memory" in death.detail
    assert ("other processes hold 65535 MiB" in death.detail) == (cause == "memory")
