"""What a worker process says of its caches, and how it ends where they can't be as its settings ask."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from shared.messages import Finished, Hello
from shared.model_folder import ModelFolder
from tests.worker.life_of_a_process import Life, submit
from tests.worker.tiny_models import save
from worker.launch import EXIT_CANNOT_LOAD

WIDE: Final[dict[str, Any]] = {"hidden_size": 64, "head_dim": 32}


async def ready_line(life: Life) -> dict[str, Any]:
    """End a process that has said Hello; return what its log said when it was ready."""
    await life.hears(Hello)
    life.cut_lifeline()
    _, words = await life.exit_status()
    [line] = [line for line in words.splitlines() if '"event": "ready"' in line]
    said: dict[str, Any] = json.loads(line)
    return said


@pytest.mark.parametrize("kv_bits", [8, 4])
async def test_keys_and_values_are_quantised_as_asked(
    start: Callable[..., Life], tmp_path: Path, kv_bits: int
) -> None:
    folder = save(tmp_path / "model", "llama", **WIDE)
    async with start(folder.path, kv_bits=kv_bits) as life:
        facts = (await life.hears(Hello)).facts
        assert (facts.kv_bits, facts.caches, facts.batches) == (kv_bits, "quantised attention", True)
        # Of 2 layers, 2 heads and 32 numbers twice: the bits, and a scale and a bias of 4 bytes for each 32.
        assert facts.kv_bytes_per_token == 2 * 2 * 2 * (32 * kv_bits // 8 + 8)
        life.is_pinged()
        await life.say(submit("a", 5))
        await life.hears(Finished, sequence="a", index=5)


async def test_the_log_says_how_rows_are_kept_and_attended_to(
    start: Callable[..., Life], tmp_path: Path
) -> None:
    folder = save(tmp_path / "model", "gemma3_text", **WIDE)
    async with start(folder.path, kv_bits=8) as life:
        said = await ready_line(life)
    assert said["caches"] == "window, quantised attention"
    assert (said["kv_bits"], said["slots"]) == (8, 3)
    assert said["side_by_side_by"] == "attention once a group"
    assert said["one_row_because"] is None


async def test_a_model_that_keeps_no_keys_and_values_is_not_served_with_quantised_ones(
    start: Callable[..., Life], tmp_path: Path
) -> None:
    folder = save(tmp_path / "model", "mamba2")
    async with start(folder.path, kv_bits=8) as life:
        status, words = await life.exit_status()
    assert status == EXIT_CANNOT_LOAD
    assert words.splitlines()[-1] == (
        f"the model can't be served: {folder.path} with kv_bits = 8: "
        "its caches (state) are none that can be quantised"
    )


async def test_nor_is_one_whose_keys_are_too_narrow_for_it(
    start: Callable[..., Life], folder: ModelFolder
) -> None:
    async with start(folder.path, kv_bits=4) as life:
        status, words = await life.exit_status()
    assert status == EXIT_CANNOT_LOAD
    assert words.splitlines()[-1] == (
        f"the model can't be served: {folder.path} with kv_bits = 4: "
        "keys or values of 8 numbers can't be quantised: 32 must divide it"
    )
