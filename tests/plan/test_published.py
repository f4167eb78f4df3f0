"""What models cost, from their config.json alone, against figures that are published of them."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest

from shared.errors import ModelError
from shared.limits import GIB, KIB, MIB
from shared.model_facts import ModelFacts
from tests.plan import published
from tests.worker.tiny_families import EVERY_FAMILY
from worker.engine.estimate import estimate
from worker.engine.estimate_build import Told


def facts_of(config: dict[str, Any], kv_bits: int = 0) -> ModelFacts:
    return estimate(Told(config, "a model"), kv_bits, with_passes=False).facts


@pytest.fixture(autouse=True)
def nothing_is_computed() -> Iterator[None]:
    """A terabyte of weights may not take a megabyte of memory."""
    mx.reset_peak_memory()
    before_bytes = mx.get_active_memory()
    yield
    assert mx.get_peak_memory() - before_bytes < MIB


@pytest.mark.parametrize(
    ("config", "weights_bytes"),
    [(published.LLAMA_8B, 16_060_522_496), (published.QWEN25_7B, 15_231_233_024)],
    ids=["Llama 3.1 8B", "Qwen2.5 7B"],
)
def test_weights_are_to_the_byte_what_their_published_index_says(
    config: dict[str, Any], weights_bytes: int
) -> None:
    assert facts_of(config).weights_bytes == weights_bytes


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(published.DEEPSEEK_V3, 671.0e9), (published.QWEN3_NEXT_80B, 79.7e9)],
    ids=["DeepSeek V3", "Qwen3 Next 80B"],
)
def test_experts_count_with_the_rest(config: dict[str, Any], parameters: float) -> None:
    assert facts_of(config).weights_bytes == pytest.approx(2 * parameters, rel=0.005)


def test_four_bits_in_groups_of_64_are_four_and_a_half_bits_a_weight() -> None:
    plain, packed = facts_of(published.LLAMA_8B), facts_of(published.LLAMA_8B_4BIT)
    assert packed.weights_bytes == pytest.approx(plain.weights_bytes * 4.5 / 16, rel=0.001)


def test_a_layer_that_has_a_way_of_its_own_counts_so() -> None:
    """The head in eight bits: twice its packed numbers, and as many scales."""
    own = {"group_size": 64, "bits": 8}
    config = {**published.LLAMA_8B, "quantization": {"group_size": 64, "bits": 4, "lm_head": own}}
    more = facts_of(config).weights_bytes - facts_of(published.LLAMA_8B_4BIT).weights_bytes
    assert more == 128_256 * 4096 // 2
    config["quantization"]["lm_head"] = False
    more = facts_of(config).weights_bytes - facts_of(published.LLAMA_8B_4BIT).weights_bytes
    assert more == 128_256 * 4096 * 2 - 128_256 * 4096 * 9 // 16


def test_experts_in_four_bits_with_a_byte_for_each_32_are_the_13_gigabytes_that_are_published() -> None:
    assert facts_of(published.GPT_OSS_20B).weights_bytes == pytest.approx(13.76e9, rel=0.01)


def test_llama_keeps_128_kib_a_token_in_16_bits() -> None:
    facts = facts_of(published.LLAMA_8B)
    assert facts.kv_bytes_per_token == 128 * KIB
    assert (facts.window_bytes_per_token, facts.fixed_bytes_per_row, facts.caches) == (0, 0, "attention")


def test_eight_bits_are_a_little_more_than_half_and_four_a_little_more_than_a_quarter() -> None:
    """A scale and a bias of two bytes each for 64 numbers: half a bit a number."""
    assert facts_of(published.LLAMA_8B, kv_bits=8).kv_bytes_per_token == 128 * KIB * 8.5 / 16
    assert facts_of(published.LLAMA_8B, kv_bits=4).kv_bytes_per_token == 128 * KIB * 4.5 / 16


def test_a_hybrid_of_64_layers_of_which_16_attend_keeps_64_kib_a_token() -> None:
    facts = facts_of(published.HYBRID_64_LAYERS)
    assert facts.kv_bytes_per_token == 16 * 4 * KIB
    assert 64 * KIB * facts.kv_bytes_per_token == 4 * GIB
    assert facts.caches == "state, attention"
    # 48 states of 32 heads, 128 x 128 numbers in float32, and three tokens before a convolution.
    assert facts.fixed_bytes_per_row == 48 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)


def test_every_fourth_layer_of_qwen3_next_keeps_2_kib_a_token() -> None:
    assert facts_of(published.QWEN3_NEXT_80B).kv_bytes_per_token == 12 * 2 * KIB


def test_five_of_six_layers_of_gemma_3_keep_a_window() -> None:
    facts = facts_of(published.GEMMA3_27B)
    assert (facts.kv_bytes_per_token, facts.window_bytes_per_token) == (10 * 8 * KIB, 52 * 8 * KIB)
    assert (facts.window_tokens, facts.caches) == (1024, "window, attention")


def test_latent_attention_keeps_576_numbers_a_layer_and_token() -> None:
    assert facts_of(published.DEEPSEEK_V3).kv_bytes_per_token == 61 * (512 + 64) * 2 == 70_272


def test_every_second_layer_of_gpt_oss_keeps_128_tokens() -> None:
    facts = facts_of(published.GPT_OSS_20B)
    assert (facts.kv_bytes_per_token, facts.window_bytes_per_token) == (12 * 2 * KIB, 12 * 2 * KIB)
    assert facts.window_tokens == 128


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "no_such_family"}, "no_such_family not supported"),
        ({"num_attention_heads": 0}, "can't build it"),
        ({"model_file": "code.py"}, "code of its own"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings"),
        ({"hidden_size": "wide"}, "can't build it"),
    ],
)
def test_a_config_that_makes_no_model_is_told_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        facts_of({**published.LLAMA_8B, **changes})


def test_bits_for_caches_that_can_not_have_them_are_refused() -> None:
    config = {"model_type": "mamba2", "vocab_size": 300, **EVERY_FAMILY["mamba2"]}
    with pytest.raises(ModelError, match=r"kv_bits = 8: its caches \(state\) are none that can be quantised"):
        facts_of(config, kv_bits=8)


def test_an_index_counts_where_it_tells_more_and_says_so() -> None:
    def told(total: int) -> tuple[int, str, tuple[str, ...]]:
        index = {"metadata": {"total_size": total}, "weight_map": {}}
        found = estimate(Told(published.QWEN25_7B, "a model", index), with_passes=False)
        return found.facts.weights_bytes, found.weights_from, found.notes

    own = 15_231_233_024
    assert told(own + 4096) == (own + 4096, "its index", ())
    larger, source, notes = told(2 * own)
    assert (larger, source) == (2 * own, "its index")
    assert "left out" in notes[0]
    smaller, source, notes = told(own // 2)
    assert (smaller, source) == (own, "config.json")
    assert "fewer bytes" in notes[0]


def test_an_index_says_which_modules_are_quantised() -> None:
    names = {"lm_head.scales": "a file", "lm_head.weight": "a file", "model.norm.weight": "a file"}
    told = Told(published.LLAMA_8B_4BIT, "a model", {"weight_map": names})
    head = 128_256 * 4096
    expected = facts_of(published.LLAMA_8B).weights_bytes - head * 2 + head * 9 // 16
    assert estimate(told, with_passes=False).facts.weights_bytes == expected


def test_a_config_without_a_type_is_taken_for_16_bits_and_says_so() -> None:
    config = {key: value for key, value in published.LLAMA_8B.items() if key != "torch_dtype"}
    found = estimate(Told(config, "a model"), with_passes=False)
    assert found.facts.weights_bytes == 16_060_522_496
    assert any("no dtype" in note for note in found.notes)
