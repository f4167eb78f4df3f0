"""A row that goes on behind what was kept of its beginning, around the edge of a window and of a block."""

from typing import Final

import pytest

from tests.worker.beginnings_bench import BLOCK, STOP, Talk, ids_of, reusing, turn_of
from tests.worker.tiny_models import greedy_alone

# Longer than a block, so that what is within it can be cut.
WIDE_WINDOW: Final = 2 * BLOCK + 40
ANSWER: Final = 6
WINDOWS: Final = {
    "gemma3_text": {"sliding_window": WIDE_WINDOW},
    "llama_sliding": {"sliding_window": WIDE_WINDOW},
    "gpt_oss": {"sliding_window": WIDE_WINDOW},
    "llama4": {"attention_chunk_size": WIDE_WINDOW},
}
LONG: Final = turn_of(1, 2 * WIDE_WINDOW)
LENGTHS: Final = (BLOCK + 9, WIDE_WINDOW - 20, WIDE_WINDOW - 1, WIDE_WINDOW, WIDE_WINDOW + 1, 2 * WIDE_WINDOW)


@pytest.mark.parametrize(
    ("family", "lengths"),
    [*((family, LENGTHS) for family in WINDOWS), ("gemma3_text", LENGTHS[::-1]), ("llama4", LENGTHS[::-1])],
    ids=[*WINDOWS, "gemma3_text-downward", "llama4-downward"],
)
def test_prompts_within_a_window_and_beyond_it_are_answered_as_alone(
    family: str, lengths: tuple[int, ...]
) -> None:
    loaded = reusing(family, **WINDOWS[family])
    bench = Talk(loaded)
    for length in lengths:
        for name, prompt in (
            (f"first {length}", LONG[:length]),
            (f"again {length}", LONG[:length]),
            (f"other {length}", (*LONG[: length - 5], *ids_of(length, 20))),
        ):
            bench.say({name: prompt}, ANSWER)
            greedy_alone(loaded.model, prompt, ANSWER).assert_same(bench.answers[name])
        assert bench.cached(f"again {length}") == length - 1


@pytest.mark.parametrize("tokens", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("family", ["llama", "qwen3_5", "gemma3_text"])
def test_the_next_turn_computes_what_is_new_in_it(family: str, tokens: int) -> None:
    loaded = reusing(family)
    bench = Talk(loaded)
    first = turn_of(tokens, tokens)
    bench.ask("first", first, ANSWER)
    bench.run()
    answer = bench.answers["first"]
    known = (*first, *answer)
    second = (*known, STOP, *ids_of(9, 12))
    bench.say({"second": second}, ANSWER)
    # An answer's last token was never run, but for the one that ends a turn.
    is_whole = bench.ends["first"].reason == "stop"
    assert bench.cached("second") == (len(known) + 1 if is_whole else len(known) - 1)
    greedy_alone(loaded.model, second, ANSWER).assert_same(bench.answers["second"])
