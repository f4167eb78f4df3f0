"""What is copied while rows begin to share, or take copies: no more than is needed, and in time."""

from typing import Final

import mlx.core as mx
import pytest

from tests.worker.beginnings_bench import BLOCK, Talk, alone, ids_of, reusing, turn_of

PREFIX: Final = turn_of(1, 24 * BLOCK)
CHANGES: Final = {"max_position_embeddings": 2000, "num_hidden_layers": 8}
TAIL: Final = 8


def peak_over(bench: Talk, name: str) -> float:
    """Return what MLX took while this one began, above what it held before, as a share of the beginning."""
    bench.ask(name, (*PREFIX, *ids_of(int(name), TAIL)), 40, stop_ids=())
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    while not bench.answers.get(name):
        bench.turn()
    return (mx.get_peak_memory() - before) / (len(PREFIX) * bench.facts.kv_bytes_per_token)


def test_a_newcomer_makes_a_row_that_decodes_share_layer_by_layer() -> None:
    bench = Talk(reusing("llama", **CHANGES), quantum_ms=10_000.0, kv_bytes_max=0)
    peak_over(bench, "1")
    assert bench.engine.prefixes.shared_bytes == 0
    assert peak_over(bench, "9") < 0.6
    assert bench.engine.prefixes.shared_bytes == len(PREFIX) * bench.facts.kv_bytes_per_token


@pytest.mark.parametrize("family", ["deepseek_v3", "gemma2"])
def test_where_rows_hold_copies_a_newcomer_finds_what_a_running_row_has_of_its_prompt(family: str) -> None:
    bench = Talk(reusing(family))
    assert (bench.facts.reuse, bench.facts.shares_from) == ("any", 0)
    system = turn_of(1, 3 * BLOCK)
    prompts = {"running": (*system, *ids_of(2, TAIL)), "newcomer": (*system, *ids_of(3, TAIL))}
    bench.ask("running", prompts["running"], 40, stop_ids=())
    while not bench.answers.get("running"):
        bench.turn()
    bench.ask("newcomer", prompts["newcomer"], TAIL, stop_ids=())
    while not bench.answers.get("newcomer"):
        bench.turn()
    assert "running" in bench.held
    assert bench.cached("newcomer") == 3 * BLOCK
    bench.run()
    alone(family, prompts["newcomer"], TAIL).assert_same(bench.answers["newcomer"])
