"""Tiny random models of several families, in folders that a worker can load, and what they answer alone."""

import dataclasses
import functools
import importlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.generate import generate_step
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from shared.model_folder import ModelFolder
from worker.model import LoadedModel, load

VOCABULARY: Final = 300
CONTEXT: Final = 700
_TIE: Final = 1e-3

_PLAIN: Final[dict[str, Any]] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    "llama": _PLAIN,
    "qwen3": _PLAIN,
    "gemma3_text": {**_PLAIN, "num_hidden_layers": 3, "sliding_window": 24, "sliding_window_pattern": 3},
    "mamba2": {
        "num_heads": 4,
        "head_dim": 16,
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 8,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
    },
    "qwen3_5": {
        **_PLAIN,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "full_attention_interval": 2,
        "rope_parameters": {"type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
    },
    # Every layer keeps a convolution's state beside its keys and values, and every other one a window.
    "baichuan_m1": {
        **_PLAIN,
        "sliding_window": 24,
        "sliding_window_layers": [1],
        "conv_window": 2,
    },
    "deepseek_v3": {
        **_PLAIN,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 16,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 12,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6,
        "v_head_dim": 10,
    },
}


def build(family: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """Return a model with random weights of a size that makes its answers varied, and its config.json."""
    config = {
        "model_type": family,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        **FAMILIES[family],
        **changes,
    }
    module = importlib.import_module(f"mlx_lm.models.{family}")
    mx.random.seed(7)
    model = module.Model(module.ModelArgs.from_dict(config))
    model.update(tree_map(_louder, model.parameters()))
    return model, config


def _louder(weights: mx.array) -> mx.array:
    """Matrices are drawn anew, so that a token's answer depends on all that stands before it."""
    if weights.ndim < 2 or weights.shape[-1] == 1:
        return weights
    return mx.random.normal(weights.shape) * (1.5 / weights.shape[-1] ** 0.5)


def save(folder: Path, family: str, *, flat: bool = False, **changes: Any) -> ModelFolder:
    """Write a model's folder. A flat one finds all tokens nearly equally likely."""
    model, config = build(family, **changes)
    weights: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    if flat:
        weights["lm_head.weight"] = weights["lm_head.weight"] * 0.05
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    words = {f"w{id_}": id_ for id_ in range(int(config["vocab_size"]))}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return ModelFolder.read(folder)


def load_saved(folder: ModelFolder, context_tokens: int | None = None) -> LoadedModel:
    return load(folder, context_tokens, on_progress=lambda: None)


@functools.cache
def tiny(family: str, *, flat: bool = False, vocabulary: int = VOCABULARY) -> LoadedModel:
    """Return a tiny model as the worker loads it, once a test run."""
    with tempfile.TemporaryDirectory() as folder:
        return load_saved(save(Path(folder), family, flat=flat, vocab_size=vocabulary))


def clamped(loaded: LoadedModel) -> LoadedModel:
    """Return the same model with the claim to batch taken away."""
    facts = dataclasses.replace(loaded.facts, batches=False, why_not="for a test", kv_pad_rows=1)
    return dataclasses.replace(loaded, facts=facts, shapes=None)


def greedy_alone(model: Callable[..., mx.array], prompt: tuple[int, ...], count: int) -> "Reference":
    """Let mlx-lm itself answer a prompt, and nothing else with it."""
    steps = list(generate_step(mx.array(prompt), model, max_tokens=count))
    return Reference([token for token, _ in steps], [logprobs for _, logprobs in steps])


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """mlx-lm's tokens, and the log probabilities that each was the most likely of."""

    tokens: list[int]
    logprobs: list[mx.array]

    def assert_same(self, tokens: list[int]) -> None:
        """Compare tokens; where two are equally likely but for rounding, either will do and ends it."""
        assert len(tokens) <= len(self.tokens)
        for place, (ours, theirs) in enumerate(zip(tokens, self.tokens, strict=False)):
            if ours != theirs:
                gap = float((self.logprobs[place][theirs] - self.logprobs[place][ours]).item())
                assert gap < _TIE, f"token {place} is {ours}, not {theirs}: {tokens} {self.tokens}"
                return
