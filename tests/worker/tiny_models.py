"""Tiny random models of several families, in folders that a worker can load, and what they answer alone."""

import copy
import dataclasses
import functools
import importlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.generate import generate_step
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from shared.model_folder import ModelFolder
from tests.worker import tiny_families
from worker.engine.model import LoadedModel, load
from worker.engine.row_caches import TOKENS_STEP
from worker.engine.trial import Together

VOCABULARY: Final = 300
CONTEXT: Final = 700
FAMILIES: Final = tiny_families.FAMILIES


def build(family: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """Return a model with random weights of a size that makes its answers varied, and its config.json."""
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT}
    config = {"model_type": family, **sizes, **tiny_families.EVERY_FAMILY[family], **changes}
    if "text_config" in config:
        config["text_config"] = {**sizes, **config["text_config"], **changes}
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(7)
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    model.update(tree_map_with_path(_louder, model.parameters()))
    return model, config


def _louder(name: str, weights: mx.array) -> mx.array:
    """Matrices are drawn anew, so that a token's answer depends on all that stands before it.

    So are sinks, which would weigh little, and the decay of states, which would forget within a few tokens.
    """
    match name.rsplit(".", 1)[-1]:
        case "sinks":
            return mx.random.normal(weights.shape)
        case "A_log":
            return mx.log(mx.random.uniform(0.02, 0.4, weights.shape))
        case "recurrent_param":
            return mx.random.normal(weights.shape) - 4
    if weights.ndim < 2:
        return weights
    # A convolution's weights are (channels, width, 1).
    inputs = weights.shape[-1] if weights.shape[-1] > 1 else weights.shape[-2]
    return mx.random.normal(weights.shape) * (1.5 / inputs**0.5)


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


def load_saved(folder: ModelFolder, context_tokens: int | None = None, kv_bits: int = 0) -> LoadedModel:
    return load(folder, context_tokens, on_progress=lambda: None, kv_bits=kv_bits)


@functools.cache
def tiny(family: str, *, flat: bool = False, vocabulary: int = VOCABULARY) -> LoadedModel:
    """Return a tiny model as the worker loads it, once a test run."""
    with tempfile.TemporaryDirectory() as folder:
        return load_saved(save(Path(folder), family, flat=flat, vocab_size=vocabulary))


def clamped(loaded: LoadedModel) -> LoadedModel:
    """Return the same model as one that runs one row at a time."""
    facts = dataclasses.replace(loaded.facts, batches=False, why_not="for a test", kv_pad_tokens=TOKENS_STEP)
    return dataclasses.replace(loaded, facts=facts, layout=None, way=None, together=Together.NEVER)


def greedy_alone(model: Callable[..., mx.array], prompt: tuple[int, ...], count: int) -> "Reference":
    """Let mlx-lm itself answer a prompt, and nothing else with it."""
    steps = list(generate_step(mx.array(prompt), model, max_tokens=count))
    return Reference([token for token, _ in steps], [logprobs for _, logprobs in steps])


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """mlx-lm's tokens, and the log probabilities that each was the most likely of."""

    TIE: ClassVar = 1e-3

    tokens: list[int]
    logprobs: list[mx.array]

    def assert_same(self, tokens: list[int]) -> None:
        """Compare tokens; where two are equally likely but for rounding, either will do and ends it."""
        assert len(tokens) <= len(self.tokens)
        for place, (ours, theirs) in enumerate(zip(tokens, self.tokens, strict=False)):
            if ours != theirs:
                gap = float((self.logprobs[place][theirs] - self.logprobs[place][ours]).item())
                assert gap < self.TIE, f"token {place} is {ours}, not {theirs}: {tokens} {self.tokens}"
                return
