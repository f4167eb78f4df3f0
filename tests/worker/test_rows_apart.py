"""What a row holds, be it no number at all, is nothing to its neighbours; and prompts find their room."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from shared.model_facts import ModelFacts
from tests.worker.tiny_models import tiny
from tests.worker.workbench import Workbench
from worker.engine.group import fill, put
from worker.engine.row_batch import RowBatch
from worker.engine.row_caches import Piece


def plane(values: np.ndarray) -> mx.array:
    return mx.array(values.astype(np.float32))


def test_a_place_that_is_taken_over_is_cleared_behind_its_new_rows_tokens() -> None:
    planes = [plane(np.full((2, 1, 6, 3), np.nan))]
    source = [plane(np.ones((1, 1, 4, 3)))]
    put(planes, 1, [Piece(source, 0, 0, 0, 2)])
    held = np.array(planes[0])
    assert (held[1, :, :2] == 1).all()
    assert (held[1, :, 2:] == 0).all()
    assert np.isnan(held[0]).all()


def test_neighbours_that_are_copied_together_leave_behind_what_is_not_theirs() -> None:
    source = np.arange(3 * 6, dtype=np.float32).reshape(3, 1, 6, 1)
    source[0, :, 2:] = np.inf
    source[2, :, 4:] = np.nan
    old = [plane(source)]
    planes = [mx.zeros((3, 1, 8, 1))]
    fill(planes, [[Piece(old, row, 0, 0, count)] for row, count in enumerate((2, 6, 4))])
    held = np.array(planes[0])
    for row, count in enumerate((2, 6, 4)):
        assert (held[row, :, :count] == source[row, :, :count]).all()
        assert (held[row, :, count:] == 0).all()


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "deepseek_v3", "qwen3_5"])
def test_a_row_that_overflows_spoils_no_row_beside_or_after_it(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that ever stood in a place is no number any more once its row has left."""
    prompts = {name: tuple(range(start, start + 6)) for name, start in (("a", 3), ("b", 40), ("c", 90))}
    alone = {name: Workbench(tiny(family)).answer(prompt, 12) for name, prompt in prompts.items()}
    bench = Workbench(tiny(family), slots=4)
    change = RowBatch.change

    def spoiled(batch: RowBatch, leaving: object, *rest: object) -> None:
        if leaving:
            for group in batch._groups:
                for place, row in enumerate(group.shape.rows):
                    if row in leaving:  # type: ignore[operator]  # a set of rows
                        spoil(group.planes, place)
        change(batch, leaving, *rest)  # type: ignore[arg-type]  # handed on as it came

    monkeypatch.setattr(RowBatch, "change", spoiled)
    bench.submit("a", prompts["a"], 12)
    bench.submit("b", prompts["b"], 4)
    while "b" not in bench.ends:
        bench.turn()
    bench.submit("c", prompts["c"], 12)
    bench.run()
    assert {name: bench.answers[name] for name in ("a", "c")} == {name: alone[name] for name in ("a", "c")}


def spoil(planes: list[list[mx.array]], place: int) -> None:
    for leaf in planes:
        for each in leaf:
            each[place] = mx.full(each.shape[1:], float("nan"), dtype=each.dtype)


def test_prompts_that_are_prefilled_together_are_padded_with_tokens_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[list[int]] = []
    bench = Workbench(tiny("llama"), slots=4, quantum_ms=1000)
    kind = type(bench.engine._loaded.model)
    call = kind.__call__

    def watched(model: object, ids: mx.array, cache: object) -> mx.array:
        seen.extend(row for row in ids.tolist() if len(row) > 1)
        return call(model, ids, cache)

    monkeypatch.setattr(kind, "__call__", watched)
    bench.submit("a", (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), 1)
    bench.submit("b", (20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31), 1)
    bench.run()
    assert sorted(seen) == [[3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 13], list(range(20, 32))]


def held_after_prefills(bench: Workbench) -> list[int]:
    """Return a list that gets the bytes of all caches after each turn's prefill."""
    prefill, held = bench.engine.prefill, list[int]()

    def watched(chunks: Any) -> float:
        elapsed_ms = prefill(chunks)
        held.append(bench.engine.kv_bytes)
        return elapsed_ms

    vars(bench.engine)["prefill"] = watched
    return held


def test_prompts_longer_than_a_window_are_prefilled_alone_and_hold_no_more_than_it() -> None:
    loaded = tiny("gemma3_text")
    bench = Workbench(loaded, slots=4, quantum_ms=10_000)
    for name in "abcd":
        bench.submit(name, [3 + place % 90 for place in range(400)], 3)
    held = held_after_prefills(bench)
    bench.run()
    assert max(held) <= loaded.facts.batch_bytes([400] * 4)


def test_prompts_that_begin_find_room_beside_a_batch_that_wastes_some() -> None:
    """Rows that admission lets in fit from their first chunk on, not only from the step after it."""
    loaded = tiny("llama")
    facts: ModelFacts = loaded.facts
    running, coming = [300 + 7 * row for row in range(8)], [330] * 4
    budget = facts.batch_bytes([length + 40 for length in running] + [length + 4 for length in coming])
    bench = Workbench(loaded, slots=12, kv_bytes_max=budget, quantum_ms=10_000)
    for row, length in enumerate(running):
        bench.submit(f"r{row}", [3 + place % 90 for place in range(length)], 39)
    for _ in range(12):
        bench.turn()
    for row, length in enumerate(coming):
        bench.submit(f"c{row}", [5 + place % 90 for place in range(length)], 3)
    held = held_after_prefills(bench)
    bench.run()
    assert max(held) <= budget
