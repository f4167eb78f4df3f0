"""Rows that read one beginning together: who does, who must not, and that no draw depends on it."""

from typing import Any, Final

import pytest

from shared.sampling import Sampling
from tests.worker.beginnings_bench import BLOCK, Ids, Talk, alone, ids_of, reusing, turn_of
from worker.engine import slabs
from worker.engine.flatness import Flatness
from worker.engine.sampler import BatchSampler

SYSTEM: Final = turn_of(1, 2 * BLOCK + 9)
ANSWER: Final = 12


def behind(seed: int, count: int) -> Ids:
    return (*SYSTEM, *ids_of(seed, count))


def until_it_decodes(bench: Talk, name: str) -> None:
    while not bench.answers[name]:
        bench.turn()


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "lfm2"])
def test_a_row_that_runs_is_put_behind_what_a_newcomer_has_in_common_with_it(family: str) -> None:
    loaded = reusing(family)
    bench = Talk(loaded)
    bench.ask("first", behind(1, 20), 40, stop_ids=())
    until_it_decodes(bench, "first")
    assert bench.engine.prefixes.shared_bytes == 0
    bench.ask("second", behind(2, 50), ANSWER, stop_ids=())
    until_it_decodes(bench, "second")
    assert bench.engine.prefixes.shared_bytes == 2 * BLOCK * loaded.facts.kv_bytes_per_token
    assert [bench.engine._caches.base_tokens(row) for row in bench.engine._caches.rows] == [2 * BLOCK] * 2
    bench.run()
    alone(family, behind(1, 20), 40).assert_same(bench.answers["first"])
    alone(family, behind(2, 50), ANSWER).assert_same(bench.answers["second"])


def test_nothing_is_shared_or_found_under_another_salt() -> None:
    loaded = reusing("llama")
    bench = Talk(loaded)
    prompts = {salt: behind(1, 20) for salt in ("", "a", "b")}
    for salt, prompt in prompts.items():
        bench.ask(f"of {salt}", prompt, ANSWER, salt=salt, stop_ids=())
    bench.run()
    assert bench.shared_bytes_max == 0
    assert [bench.cached(f"of {salt}") for salt in prompts] == [0, 0, 0]
    for salt, prompt in prompts.items():
        alone("llama", prompt, ANSWER).assert_same(bench.answers[f"of {salt}"])
        bench.say({f"again {salt}": prompt}, ANSWER, salt=salt)
        assert bench.cached(f"again {salt}") == len(prompt) - 1
    bench.say({"stranger": prompts["a"]}, ANSWER, salt="c")
    assert bench.cached("stranger") == 0


def test_rows_of_one_salt_share_beside_a_row_of_another() -> None:
    loaded = reusing("llama")
    bench = Talk(loaded)
    for number, salt in enumerate(("a", "b", "a", "b", "c")):
        bench.ask(str(number), behind(number, 20), ANSWER, salt=salt, stop_ids=())
    bench.run()
    assert bench.shared_bytes_max == 2 * 2 * BLOCK * loaded.facts.kv_bytes_per_token
    for number in range(5):
        alone("llama", behind(number, 20), ANSWER).assert_same(bench.answers[str(number)])


# --- rows that are drawn again ------------------------------------------------------------------------------

WIDE: Final = 800
FLAT: Final = Sampling(top_p=0.99, seed=3)
SAMPLINGS: Final = (FLAT, Sampling(temperature=0.0), Sampling(seed=9), Sampling(top_p=0.99, seed=5))


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_a_step_that_is_run_again_while_rows_come_to_share_draws_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is rolled back for the flat rows; the others come one by one meanwhile."""
    loaded = reusing(family, flat=True, vocab_size=WIDE)
    redraws: list[int] = []
    draw_again = BatchSampler.draw_again

    def counted(sampler: BatchSampler, logits: Any, *rest: Any) -> Any:
        redraws.append(logits.shape[0])
        return draw_again(sampler, logits, *rest)

    monkeypatch.setattr(BatchSampler, "draw_again", counted)
    monkeypatch.setattr(Flatness, "missed", lambda *_: None)
    prompts = [behind(number, 15 + number) for number in range(len(SAMPLINGS))]
    expected = []
    for prompt, sampling in zip(prompts, SAMPLINGS, strict=True):
        expected.append(Talk(loaded, kept_bytes_max=0).answer(prompt, 2 * ANSWER, sampling=sampling))
    redraws.clear()
    bench = Talk(loaded)
    for number, (prompt, sampling) in enumerate(zip(prompts, SAMPLINGS, strict=True)):
        bench.ask(str(number), prompt, 2 * ANSWER, sampling=sampling, stop_ids=())
        for _ in range(4):
            bench.turn()
    bench.run()
    assert bench.shared_bytes_max > 0
    assert max(redraws) > 1
    assert [bench.answers[str(number)] for number in range(len(SAMPLINGS))] == expected


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", ["_cut", "together"])
def test_an_error_while_a_beginning_is_copied_is_not_swallowed(
    copies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Talk(reusing("llama"))
    bench.say({"before": behind(1, 20)}, 4)

    def broken(*_arguments: Any) -> Any:
        raise RuntimeError("the device is gone")

    owner: Any = slabs.RowSource if copies == "_cut" else slabs
    monkeypatch.setattr(owner, copies, broken)
    monkeypatch.setattr("worker.engine.restored.together", broken)
    bench.ask("after", (*behind(1, 20), *ids_of(5, BLOCK)), 4)
    with pytest.raises(RuntimeError, match="the device is gone"):
        bench.run()
