"""An error in the middle of a step ends the real worker process, and no token is sent from then on."""

from collections.abc import Callable
from typing import Final

import pytest

from shared.messages import Failed, Finished, Hello, Step
from shared.model_folder import ModelFolder
from tests.worker.life_of_a_process import ENDLESS, PROMPT, Life, submit
from tests.worker.tiny_models import greedy_alone, load_saved
from worker import manifest
from worker.launch import EXIT_LOOP_EXCEPTION

STEPS: Final = 6
# The process with one function that breaks once so many steps of rows were launched.
BREAKS: Final = """
from worker.process_start import without_tokenizers
with without_tokenizers():
    from worker import process
from worker.engine.batch_engine import BatchEngine
import {module} as module
steps = []
launch = BatchEngine.launch
def counted(self, rows):
    steps.extend(row.name for row in rows[:1] if row.name != "canary")
    launch(self, rows)
BatchEngine.launch = counted
whole = module.{function}
def breaks(*arguments, **named):
    if len(steps) >= {steps}:
        raise RuntimeError("the device is gone")
    return whole(*arguments, **named)
module.{function} = breaks
process.main()
"""
# A row of four tokens has room for 32: its arrays grow in the 29th step, and not before.
FIRST_GROWTH: Final = 29


@pytest.mark.parametrize(
    ("module", "function", "launched"),
    [
        ("worker.engine.group", "StepView.write", STEPS),
        ("worker.engine.sampler", "BatchSampler.draw", STEPS),
        ("worker.engine.row_batch", "RowBatch._build", FIRST_GROWTH),
        ("worker.engine.batch_engine", "BatchEngine.read", STEPS),
    ],
    ids=["in the model", "in the sampler", "as caches grow", "as it is read"],
)
async def test_an_error_in_the_middle_of_a_step_ends_the_process_and_no_token_follows(
    module: str, function: str, launched: int, start: Callable[..., Life], folder: ModelFolder
) -> None:
    code = BREAKS.format(module=module, function=function, steps=STEPS)
    async with start(folder.path, code=code) as life:
        await life.hears(Hello)
        life.is_pinged()
        await life.say(submit("a", ENDLESS))
        status, words = await life.exit_status()
        assert status == EXIT_LOOP_EXCEPTION
        assert words.splitlines()[-1] == "RuntimeError: the device is gone"
        [row] = manifest.read(life.manifest_fd)
        assert (row.sequence, row.index <= launched) == ("a", True)
        tokens = life.tokens("a")
        assert 1 < len(tokens) <= launched, "prefill brings the first"
        greedy_alone(load_saved(folder).model, PROMPT, launched + 1).assert_same(tokens)
        assert not [message for message in life.heard if isinstance(message, Finished | Failed)]


async def test_an_error_in_another_rows_prefill_ends_the_answers_of_all(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    code = BREAKS.format(module="worker.engine.batch_engine", function="BatchEngine.prefill", steps=STEPS)
    async with start(folder.path, code=code) as life:
        await life.hears(Hello)
        life.is_pinged()
        await life.say(submit("a", ENDLESS))
        await life.until(lambda: len(life.tokens("a")) >= STEPS)
        await life.say(submit("b", 5))
        status, words = await life.exit_status()
        assert status == EXIT_LOOP_EXCEPTION
        assert words.splitlines()[-1] == "RuntimeError: the device is gone"
        named = {row.sequence for message in life.heard if isinstance(message, Step) for row in message.rows}
        assert named == {"a"}
