"""What the batch engine holds: little more than its rows do, counted as it is, and given back."""

from collections.abc import Callable

import pytest

from shared.messages import Step
from tests.worker.test_batch_engine import KINDS, TOKENS_MAX, prompt_of
from tests.worker.tiny_models import clamped, tiny
from tests.worker.workbench import Workbench
from worker.engine.grouping import BOUND, SHORT_TOKENS
from worker.engine.model import LoadedModel


def test_arrays_of_each_group_and_of_a_prompt_on_its_way_are_counted() -> None:
    """Keys and values of each layer: once for each group, and once for the prompt."""
    loaded = tiny("llama")
    assert loaded.layout is not None
    each = 2 * len(loaded.layout.layers)
    bench = Workbench(loaded, slots=4)
    assert bench.engine.arrays == 0
    for held, name in enumerate(("short", "long")):
        bench.submit(name, prompt_of(600 if name == "long" else 5, 0), 60)
        bench.turn()
        assert bench.engine.arrays == (held + 1) * each
    while "long" not in {row.sequence for step in bench.channel.of(Step) for row in step.rows}:
        bench.turn()
    assert bench.engine.arrays == 2 * each
    bench.run()
    assert bench.engine.arrays == 0


@pytest.mark.parametrize("family", ["mamba2", "gemma3_text", "qwen3_5"])
@pytest.mark.parametrize("runs", [lambda loaded: loaded, clamped], ids=["batch", "one row"])
def test_arrays_of_other_kinds_of_caches_are_counted_too(
    runs: Callable[[LoadedModel], LoadedModel], family: str
) -> None:
    loaded = runs(tiny(family))
    bench = Workbench(loaded)
    assert bench.engine.arrays == 0
    bench.submit("a", prompt_of(45, 0), 9)
    for _ in range(4):
        bench.turn()
    assert bench.engine.arrays >= len(loaded.new_caches(1))
    bench.run()
    assert bench.engine.arrays == 0


@pytest.mark.parametrize("family", KINDS)
def test_rows_that_share_groups_take_a_third_more_at_most_where_there_is_memory(family: str) -> None:
    bench = Workbench(tiny(family), slots=8)
    for length in (300, 290, 280, 100, 20, 1, 150, 260):
        bench.submit(str(length), prompt_of(length, 0), TOKENS_MAX)
    most = 0.0
    while bench.held:
        bench.turn()
        held = [max(SHORT_TOKENS, len(each.prompt_ids) + TOKENS_MAX) for each in bench.held.values()]
        if held:
            most = max(most, bench.engine.kv_bytes / bench.facts.batch_bytes(held))
    assert 0.5 < most <= BOUND


def test_a_row_that_is_far_longer_does_not_make_others_as_long_as_it_is() -> None:
    bench = Workbench(tiny("llama"), slots=8, quantum_ms=1000)
    for number in range(7):
        bench.submit(str(number), prompt_of(5, number % 2), TOKENS_MAX)
    bench.submit("long", prompt_of(600, 0), TOKENS_MAX)
    for _ in range(3):
        bench.turn()
    rows = len(bench.held)
    assert rows == 8
    assert bench.engine.kv_bytes < 2 * bench.facts.row_bytes(600 + TOKENS_MAX)
    bench.run()


def test_a_lower_limit_takes_back_room_that_was_kept_for_later() -> None:
    bench = Workbench(tiny("llama"), slots=8)
    for number in range(3):
        bench.submit(str(number), prompt_of(10, number % 2), 2 if number else TOKENS_MAX)
    for _ in range(10):
        bench.turn()
    kept_bytes = bench.engine.kv_bytes
    assert kept_bytes > bench.predicted_bytes
    bench.engine.limit_bytes(0)
    bench.turn()
    assert bench.engine.kv_bytes <= bench.predicted_bytes
    bench.run()


def test_the_manifest_of_real_steps_ends_empty() -> None:
    bench = Workbench(tiny("llama"), slots=3)
    for length in (45, 1, 17):
        bench.submit(str(length), prompt_of(length, 0), TOKENS_MAX)
    bench.run()
    bench.turn()
    named = {row.sequence for rows in bench.manifest for row in rows}
    assert named == {"45", "1", "17"}
    assert bench.manifest[-1] == []
