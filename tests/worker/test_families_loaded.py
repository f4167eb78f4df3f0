"""Every family as the worker loads it: whether its rows run together, and what of its prompts is used again.

Loading tries it: logits of rows side by side, and behind what was kept, are compared with each row's alone.
"""

from typing import Final

import pytest

from tests.worker.beginnings_bench import reusing
from tests.worker.short_round import SHORT_ROUND
from tests.worker.tiny_families import EVERY_FAMILY

# The families whose rows must run together. The others may run one at a time, if the engine says why.
MUST_BATCH: Final = (
    *("llama", "llama_sliding", "qwen3", "gemma3_text", "phi3", "cohere2", "olmo3", "exaone4", "ministral3"),
    *("qwen3_moe", "mixtral", "minimax", "glm4_moe", "gpt_oss", "llama4", "llama4_untuned"),
    *("deepseek_v3", "deepseek_v32", "mamba2", "qwen3_5", "qwen3_next", "lfm2", "falcon_h1", "baichuan_m1"),
)
# Their code takes plain numbers as offsets.
BY_ROWS: Final = ("llama4", "llama4_untuned")
# They hold once what their rows have in common. The others may hold copies, if the engine says why.
MUST_SHARE: Final = (
    *("llama", "qwen3", "qwen3_moe", "mixtral", "phi3", "minimax", "glm4_moe"),
    *("qwen3_5", "qwen3_next", "lfm2", "falcon_h1", "jamba", "granitemoehybrid", "nemotron_h"),
)
# Any of their tokens can be gone on from.
TO_THE_TOKEN: Final = (
    *("llama", "qwen3", "qwen3_moe", "mixtral", "phi3", "minimax", "glm4_moe"),
    *("gemma2", "deepseek_v3", "deepseek_v32", "longcat_flash"),
)


@pytest.mark.parametrize("family", MUST_BATCH)
def test_rows_of_the_common_families_run_together(family: str) -> None:
    loaded = reusing(family)
    assert loaded.facts.batches, loaded.facts.why_not
    assert loaded.layout is not None
    # A wrong group of several rows makes the engine fall back to groups of one, which no answer would show.
    assert not loaded.layout.by_rows or family in BY_ROWS


@pytest.mark.parametrize("family", [*MUST_SHARE, *TO_THE_TOKEN])
def test_the_common_families_reuse_and_share_what_they_can(family: str) -> None:
    facts = reusing(family).facts
    assert facts.reuse == ("any" if family in TO_THE_TOKEN else "checkpoints")
    assert bool(facts.shares_from) == (family in MUST_SHARE)


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_any_family_batches_and_shares_or_says_why_not(family: str) -> None:
    facts = reusing(family).facts
    assert facts.batches == (facts.why_not == "")
    assert (facts.shares_from > 0) == (facts.why_not_shared == "")
    assert facts.reuse != "none" or not facts.batches


def test_the_short_round_has_one_family_of_each_kind() -> None:
    """What the engine does for a family follows from these."""

    def kind_of(family: str) -> tuple[object, ...]:
        loaded = reusing(family)
        has_lists = loaded.layout is not None and bool(loaded.layout.lists)
        facts = loaded.facts
        return (facts.caches, loaded.way, loaded.together, has_lists, facts.reuse, facts.shares_from > 0)

    assert set(map(kind_of, SHORT_ROUND)) == set(map(kind_of, EVERY_FAMILY))
