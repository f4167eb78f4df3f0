"""What rows hold that begin alike is held once, and what is kept for others gives way to rows."""

from typing import Final

import pytest

from tests.worker.beginnings_bench import BLOCK, STOP, Talk, alone, ids_of, reusing, turn_of
from tests.worker.tiny_models import greedy_alone
from tests.worker.workbench import PLENTY

ROWS: Final = 16
PREFIX: Final = turn_of(1, 16 * BLOCK)
TAIL: Final = 70
ANSWER: Final = 20
LONG: Final = {"max_position_embeddings": 1400}


def decoding(kv_bytes_max: int) -> Talk:
    """Return a bench on which sixteen rows decode; row n ends after ANSWER + n tokens."""
    bench = Talk(reusing("llama", **LONG), slots=ROWS, quantum_ms=10_000.0, kv_bytes_max=kv_bytes_max)
    for row in range(ROWS):
        bench.ask(str(row), (*PREFIX, *ids_of(row, TAIL)), ANSWER + row, stop_ids=())
    while not all(bench.answers.values()):
        bench.turn()
    return bench


def test_sixteen_rows_hold_a_long_beginning_once_and_beside_it_what_is_their_own() -> None:
    bench = decoding(kv_bytes_max=0)
    assert len(bench.held) == ROWS
    prefix_bytes = len(PREFIX) * bench.facts.kv_bytes_per_token
    assert bench.engine.prefixes.shared_bytes == prefix_bytes
    wanted = prefix_bytes + ROWS * bench.facts.row_bytes(TAIL + len(bench.answers["0"]))
    assert 0.9 * wanted < bench.engine.kv_bytes < 1.1 * wanted
    copies = ROWS * bench.facts.row_bytes(len(PREFIX) + TAIL)
    assert 5 * bench.engine.kv_bytes < copies


def test_sixteen_rows_on_a_thousand_tokens_take_those_and_their_suffixes_and_a_tenth_at_most() -> None:
    """All exact: no padding is counted in, and a thousand tokens are no whole number of blocks."""
    bench = Talk(reusing("llama", **LONG), slots=ROWS, quantum_ms=10_000.0, kv_bytes_max=0)
    system = turn_of(1, 1000)
    for row in range(ROWS):
        bench.ask(str(row), (*system, *ids_of(row, 200)), ANSWER)
    while not all(bench.answers.values()):
        bench.turn()
    assert len(bench.held) == ROWS
    tokens = len(system) + sum(200 + len(answer) for answer in bench.answers.values())
    assert tokens * bench.facts.kv_bytes_per_token <= bench.engine.kv_bytes
    assert bench.engine.kv_bytes <= 1.1 * tokens * bench.facts.kv_bytes_per_token


def test_bytes_fall_as_rows_leave_and_the_last_one_is_still_right() -> None:
    bench = decoding(kv_bytes_max=0)
    all_bytes = bench.engine.kv_bytes
    while len(bench.held) > ROWS // 2:
        bench.turn()
    bench.turn()
    half_bytes = bench.engine.kv_bytes
    while len(bench.held) > 1:
        bench.turn()
    bench.turn()
    row_bytes = bench.facts.row_bytes(len(PREFIX) + TAIL + ANSWER + ROWS)
    assert all_bytes > half_bytes > bench.engine.kv_bytes > 0
    assert bench.engine.kv_bytes <= row_bytes
    bench.run()
    model = reusing("llama", **LONG).model
    for row in (0, ROWS - 1):
        prompt = (*PREFIX, *ids_of(row, TAIL))
        greedy_alone(model, prompt, ANSWER + row).assert_same(bench.answers[str(row)])


@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma3_text"])
def test_what_is_kept_gives_way_where_rows_need_the_room(family: str) -> None:
    loaded = reusing(family)
    budget = 2 * loaded.facts.row_bytes(200)
    bench = Talk(loaded, slots=2, kv_bytes_max=budget, kept_bytes_max=PLENTY)
    for number in range(6):
        prompt = (*turn_of(number % 4, BLOCK + 9 * number), *turn_of(40 + number, 40))
        bench.ask(str(number), prompt, 8)
        for _ in range(4):
            rows = bench.predicted_bytes
            bench.turn()
            held = bench.engine.kv_bytes + bench.engine.prefixes.kept_bytes
            assert held <= max(budget, rows), f"{held} bytes of {budget}"
    bench.run()
    assert bench.engine.prefixes.kept_bytes <= budget
    last = (*turn_of(1, BLOCK + 9 * 5), *turn_of(45, 40))
    alone(family, last, 8).assert_same(bench.answers["5"])
    bench.say({"by itself": turn_of(50, BLOCK + 9)}, 8)
    assert 0 < bench.engine.prefixes.kept_bytes <= budget


@pytest.mark.parametrize("length", [319, 320, 321])
def test_a_copy_of_what_is_kept_is_made_only_where_all_of_the_row_has_room_beside_it(length: int) -> None:
    loaded = reusing("llama")
    facts, kept = loaded.facts, 4 * BLOCK
    budget = kept * facts.kv_bytes_per_token + facts.row_bytes(length - 1)
    bench = Talk(loaded, slots=1, kv_bytes_max=budget, kept_bytes_max=kept * facts.kv_bytes_per_token)
    bench.say({"first": (*ids_of(1, kept - 1), 7, 8)}, 1)
    assert bench.engine.prefixes.kept_bytes == kept * facts.kv_bytes_per_token
    bench.ask("second", (*ids_of(1, kept - 1), 7, *ids_of(2, length - kept)), 2)
    while "second" not in bench.ends:
        bench.turn()
        assert bench.engine.kv_bytes + bench.engine.prefixes.kept_bytes <= budget
    assert bench.cached("second") == kept
    # Of 320 tokens the room for the next one is a step more: it begins behind what is kept instead.
    assert (bench.shared_bytes_max > 0) == (length == 320)


def test_what_is_kept_keeps_within_its_own_bound_and_nothing_is_kept_on_demand() -> None:
    loaded = reusing("llama")
    bound = 3 * BLOCK * loaded.facts.kv_bytes_per_token
    bench = Talk(loaded, kept_bytes_max=bound)
    for number in range(4):
        bench.say({str(number): turn_of(number, 3 * BLOCK)}, 8)
        assert 0 < bench.engine.prefixes.kept_bytes <= bound
    bench.engine.limit_prefixes(keeps=False)
    assert bench.engine.prefixes.kept_bytes == 0
    bench.say({"unkept": turn_of(3, 3 * BLOCK)}, 8)
    assert (bench.cached("unkept"), bench.engine.prefixes.kept_bytes) == (0, 0)


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3_text"])
def test_a_system_prompts_state_outlives_the_ends_of_many_short_prompts_behind_it(family: str) -> None:
    bench = Talk(reusing(family), slots=6)
    system = turn_of(1, BLOCK + 5)
    bench.say({str(n): (*system, *ids_of(10 + n, 8), STOP) for n in range(6)}, 6)
    bench.say({"later": (*system, *ids_of(30, 8), STOP)}, 6)
    assert bench.cached("later") == len(system)
