"""The model that both sides run: a folder's, or one of real shapes with random weights, never on a disk."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import load_model

from shared.model_folder import ModelFolder

_CONTEXT_TOKENS: Final = 131_072
_LLAMA: Final[Mapping[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "max_position_embeddings": _CONTEXT_TOKENS,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
}
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama-8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "intermediate_size": 14_336,
        "tie_word_embeddings": False,
    },
    "llama-1b": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
}
# How far logits spread, as their standard deviation. Fresh weights find all tokens nearly equally likely,
# which no trained model does, and which is the hardest case for a sampler that cuts at top_p.
_LOGITS_SPREAD: Final = 6.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in memory as mlx-lm has it, and the facts of the folder it is, or could be, from."""

    model: Any
    folder: ModelFolder


def twin(model: Any) -> Any:
    """Return a model with modules of its own and the very same weight arrays."""
    return copy.deepcopy(model, {id(array): array for array in _weights(model)})


def _weights(model: Any) -> list[mx.array]:
    return [array for _name, array in cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))]


def from_folder(folder: ModelFolder) -> Subject:
    """Read a folder's weights; raises what mlx-lm raises."""
    model, _config = load_model(Path(folder.path))
    return Subject(model, folder)


def random_llama(shape: str, on_layer: Callable[[], None], precision: mx.Dtype | None = None) -> Subject:
    """Make a model of SHAPES, in bfloat16 if unsaid, its weights evaluated a layer at a time."""
    arguments = llama.ModelArgs(**_LLAMA, **SHAPES[shape])
    mx.random.seed(0)
    model = llama.Model(arguments)
    model.set_dtype(precision or mx.bfloat16)
    spread_logits(model, arguments.hidden_size, tied=arguments.tie_word_embeddings)
    for layer in model.layers:
        mx.eval(layer.parameters())
        on_layer()
    mx.eval(model.parameters())
    return Subject(model, _folder(shape, arguments.vocab_size, _weights(model)))


def spread_logits(model: Any, width: int, *, tied: bool) -> None:
    """Scale the output matrix for inputs of norm sqrt(width), which a last RMS norm of ones gives."""
    output = model.model.embed_tokens if tied else model.lm_head
    sample = output.weight[:64].astype(mx.float32)
    spread = mx.sqrt(mx.mean(sample * sample) * width)
    output.weight = output.weight * (_LOGITS_SPREAD / spread).astype(output.weight.dtype)


def _folder(shape: str, vocabulary: int, weights: Sequence[mx.array]) -> ModelFolder:
    return ModelFolder(
        path=Path(shape),
        name=f"{shape}, random weights",
        family="llama",
        context_tokens=_CONTEXT_TOKENS,
        vocabulary=vocabulary,
        stop_ids=(),
        weights_bytes=sum(array.nbytes for array in weights),
        fingerprint=f"random-{shape}",
    )
