"""What a worker process keeps of prompts, as its proxy hears of it: on disk, after a park, after a cancel."""

from collections.abc import AsyncIterator, Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import pytest

from shared.limits import PREFIX_BLOCK_TOKENS
from shared.messages import (
    Cancel,
    Finished,
    Hello,
    Park,
    Parked,
    PrefillShare,
    Prefixes,
    Progress,
    Step,
    Submit,
)
from shared.model_folder import ModelFolder
from shared.readings import PrefixReading
from tests.worker.life_of_a_process import EPOCH, Life, submit
from tests.worker.tiny_models import Reference, greedy_alone, load_saved

LONG: Final = tuple((7 * place + place // 64) % 290 + 5 for place in range(600))
ANSWER: Final = 300  # tokens: more than the first life is let to make

# A worker whose steps take so long that the disk keeps up, and that a test can do something between two.
SLOW_STEPS: Final = """
import time
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
from worker.engine.batch_engine import BatchEngine
read = BatchEngine.read
def slowly(self):
    time.sleep(0.02)
    return read(self)
BatchEngine.read = slowly
process.main()
"""


def long(name: str, max_tokens: int, **changes: Any) -> Submit:
    return replace(submit(name, max_tokens), prompt_ids=LONG, **changes)


def shares(life: Life, sequence: str) -> list[PrefillShare]:
    """Return what was told of one sequence's prefill, of all its attempts."""
    steps = [message for message in life.heard if isinstance(message, Step)]
    return [share for step in steps for share in step.prefills if share.sequence == sequence]


def begun(life: Life, sequence: str, attempt: int = 1) -> tuple[int, int]:
    """Return how many tokens an attempt found, and how many it computed before its first step."""
    mine = [share for share in shares(life, sequence) if share.attempt == attempt]
    return sum(share.cached for share in mine), sum(share.tokens for share in mine)


def files_under(folder: Path) -> list[Path]:
    return list(folder.rglob("*.kv"))


@pytest.fixture
async def slow(start: Callable[..., Life], folder: ModelFolder) -> AsyncIterator[Life]:
    async with start(folder.path, code=SLOW_STEPS) as life:
        await life.hears(Hello)
        life.is_pinged()
        yield life


@pytest.fixture
def alone(folder: ModelFolder) -> Reference:
    return greedy_alone(load_saved(folder).model, LONG, ANSWER)


def told_blocks(life: Life) -> set[int]:
    """Return the names of all blocks that a process has told of."""
    return {name for told in life.heard if isinstance(told, Prefixes) for name in told.added}


async def test_after_a_kill_the_next_process_computes_only_what_was_not_yet_on_disk(
    start: Callable[..., Life], folder: ModelFolder, tmp_path: Path, alone: Reference
) -> None:
    """The first is killed when a block that ends in the answer is there: no prompt is computed again."""
    async with start(folder.path, code=SLOW_STEPS, prefix_disk_gb=1) as first:
        await first.hears(Hello)
        first.is_pinged()
        await first.say(long("a", ANSWER))
        await first.until(lambda: len(files_under(tmp_path)) > len(LONG) // PREFIX_BLOCK_TOKENS)
        await first.until(lambda: len(first.tokens("a")) > PREFIX_BLOCK_TOKENS)
        first.process.kill()
        await first.exit_status()
        emitted = tuple(first.tokens("a"))
    assert len(emitted) < ANSWER
    known, blocks = len(LONG) + len(emitted), len(files_under(tmp_path))
    assert {file.stat().st_mode & 0o777 for file in files_under(tmp_path)} == {0o600}

    async with start(folder.path, prefix_disk_gb=1) as second:
        await second.hears(Hello)
        second.is_pinged()
        # They are told before anybody asks; the folder is still being scanned when it says Hello.
        await second.until(lambda: len(told_blocks(second)) == blocks)
        await second.say(long("a", ANSWER, attempt=2, emitted_ids=emitted))
        await second.hears(Finished, sequence="a", attempt=2, index=ANSWER)
        cached, computed = begun(second, "a", attempt=2)
        rest = second.tokens("a")
    on_disk = PREFIX_BLOCK_TOKENS * min(blocks, (known - 1) // PREFIX_BLOCK_TOKENS)
    assert cached == on_disk > len(LONG)
    assert computed == known - on_disk
    alone.assert_same([*emitted, *rest])


async def test_a_parked_row_goes_on_without_computing_its_prompt_or_its_answer_again(
    slow: Life, alone: Reference
) -> None:
    await slow.say(long("a", ANSWER))
    await slow.until(lambda: len(slow.tokens("a")) > 8)
    await slow.say(Park(EPOCH, "a"))
    parked = await slow.hears(Parked, sequence="a", attempt=1)
    emitted = tuple(slow.tokens("a"))
    assert len(emitted) == parked.index
    await slow.say(long("a", parked.index + 20, attempt=2, emitted_ids=emitted))
    await slow.hears(Finished, sequence="a", attempt=2)
    assert begun(slow, "a", attempt=1) == (0, len(LONG))
    assert begun(slow, "a", attempt=2) == (len(LONG) + len(emitted) - 1, 0)
    alone.assert_same(slow.tokens("a"))


@pytest.mark.asyncio(loop_scope="module")
async def test_what_a_cancelled_prompt_had_computed_is_there_for_the_next(lasting: Life) -> None:
    """It is cancelled in the middle of its prefill; whole blocks of it stay."""
    life, ids = lasting, LONG * 4
    await life.say(replace(submit("cut", 5), prompt_ids=ids, salt="of the cut", quantum_ms=1.0))
    await life.until(lambda: begun(life, "cut")[1] >= PREFIX_BLOCK_TOKENS)
    await life.say(Cancel(EPOCH, "cut"))
    await life.hears(Progress, running=(), phase="idle")
    computed = begun(life, "cut")[1]
    await life.say(replace(submit("next", 5), prompt_ids=ids, salt="of the cut"))
    await life.hears(Finished, sequence="next", index=5)
    cached, rest = begun(life, "next")
    assert cached >= computed - computed % PREFIX_BLOCK_TOKENS
    assert cached + rest == len(ids)


async def test_what_is_cancelled_and_asked_again_in_one_breath_is_found(slow: Life) -> None:
    """As when somebody stops an answer and wants another: both words are heard in one turn."""
    await slow.say(long("a", ANSWER))
    await slow.until(lambda: len(slow.tokens("a")) > 5)
    await slow.say(Cancel(EPOCH, "a"))
    await slow.say(long("b", 5))
    await slow.hears(Finished, sequence="b", index=5)
    assert begun(slow, "b") == (len(LONG) - 1, 0)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_prompt_that_is_asked_again_computes_nothing_but_its_last_token(
    lasting: Life, alone: Reference
) -> None:
    life = lasting
    for name in "ab":
        await life.say(long(name, 20))
        await life.hears(Finished, sequence=name, index=20)
    await life.say(long("c", 20, salt="somebody else's"))
    await life.hears(Finished, sequence="c", index=20)
    assert [begun(life, name) for name in "abc"] == [(0, 600), (599, 0), (0, 600)]
    for name in "abc":
        alone.assert_same(life.tokens(name))


async def test_nothing_is_kept_or_shared_where_no_memory_is_given_for_it(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    """Rows that begin alike run side by side, one after another and again."""
    async with start(folder.path, cache_memory_mb=0) as life:
        hello = await life.hears(Hello)
        assert hello.facts.shares_from == 0
        life.is_pinged()
        for name in "ab":
            await life.say(long(name, 100))
        for name in "ab":
            await life.hears(Finished, sequence=name)
        await life.say(long("c", 5))
        await life.hears(Finished, sequence="c")
        await life.hears(Progress, running=(), phase="idle", ping=1)
        assert [begun(life, name) for name in "abc"] == [(0, 600)] * 3
        assert not [message for message in life.heard if isinstance(message, Prefixes) and message.added]
        readings = [message.prefixes for message in life.heard if isinstance(message, Progress)]
        assert {getattr(reading, each.name) for reading in readings for each in fields(PrefixReading)} == {0}
