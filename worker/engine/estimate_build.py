"""Builds a model from its config.json alone: every array has its shape, and none is ever computed.

mlx-lm's own classes are built, as they are when a model is loaded, rather than sizes worked out from fields:
so each of its families counts exactly, and a new one as soon as mlx-lm has it. What is quantised is quantised
by the same rules. MLX computes nothing until it is asked for a value; so a model of a terabyte takes some
megabytes here.
"""

import fnmatch
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.utils import (
    _compressed_tensors_quantization,
    _decode_tagged_floats,
    _get_classes,
    load_model,
)

from shared.errors import ModelError

_TYPES: Final = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
_PACKED: Final[dict[str, dict[str, Any]]] = {
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "mxfp8": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
}


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of a model: its config.json, and the index of its weights where there is one.

    `folder` is one that has the weights themselves: then only their headers are read.
    """

    config: dict[str, Any]
    name: str
    index: Mapping[str, Any] | None = None
    folder: Path | None = None

    @property
    def index_bytes(self) -> int:
        """The bytes of the weights by the index; 0 where it doesn't say."""
        metadata = (self.index or {}).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        return total if type(total) is int and total > 0 else 0

    @property
    def packed(self) -> frozenset[str]:
        """The modules that are quantised by the index; none where it names none."""
        names = (self.index or {}).get("weight_map")
        ending = ".scales"
        found = names if isinstance(names, dict) else {}
        return frozenset(name.removesuffix(ending) for name in found if name.endswith(ending))


@dataclass(frozen=True, slots=True)
class Built:
    """A model without values, and what was assumed about it, in words."""

    model: Any
    notes: tuple[str, ...] = ()

    @property
    def weights_bytes(self) -> int:
        arrays = cast("list[tuple[str, mx.array]]", tree_flatten(self.model.parameters()))
        return sum(array.nbytes for _, array in arrays)


def build(told: Told) -> Built:
    """Build a model; ModelError in words where mlx-lm can't."""
    try:
        if told.folder is not None:
            model, _config = load_model(told.folder, lazy=True)
            return Built(model)
        return _build(told)
    except ModelError:
        raise
    except Exception as problem:
        # What is wrong with a config may show anywhere, as any kind of error.
        version = importlib.metadata.version("mlx-lm")
        raise ModelError(f"{told.name}: mlx-lm {version} can't build it: {problem!r}") from problem


def _build(told: Told) -> Built:
    if "model_file" in told.config:
        raise ModelError(f"{told.name}: its config.json asks for code of its own, which isn't run")
    config = _decode_tagged_floats(told.config)
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(config))
    dtype, notes = _dtype(config)
    model.set_dtype(dtype)
    quantization, why_not = _quantization(config)
    if quantization is not None:
        chosen = {key: quantization[key] for key in ("group_size", "bits", "mode") if key in quantization}
        quantize(model, **chosen, class_predicate=_predicate(quantization, told.packed))
    return Built(model, tuple(note for note in (*notes, why_not) if note))


def _dtype(config: dict[str, Any]) -> tuple[mx.Dtype, tuple[str, ...]]:
    """Return the type of plain weights, and what is assumed where config.json names none."""
    text = config.get("text_config") or {}
    for said in (config, text):
        name = str(said.get("torch_dtype") or said.get("dtype") or "").removeprefix("torch.")
        if name in _TYPES:
            return _TYPES[name], ()
    return mx.bfloat16, ("config.json names no dtype: bfloat16 is assumed",)


def _quantization(config: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Return how weights are quantised when mlx-lm has loaded them, or None; and what to know of it."""
    if config.get("quantization"):
        return dict(config["quantization"]), ""
    text = config.get("text_config") or {}
    asked = config.get("quantization_config") or text.get("quantization_config")
    if not asked:
        return None, ""
    method = str(asked.get("quant_method"))
    skipped = asked.get("modules_to_not_convert") or asked.get("ignore") or []
    if "group_size" in asked and "bits" in asked and method in ("None", "awq", "gptq"):
        given = {"group_size": asked["group_size"], "bits": asked["bits"]}
        return {**given, "skipped": [*skipped, "lm_head", "*embed*"] if method != "None" else skipped}, ""
    if method in _PACKED:
        return {**_PACKED[method], "skipped": skipped}, ""
    if method == "compressed-tensors":
        return {**_compressed_tensors_quantization(asked), "skipped": [*skipped, "*embed*"]}, ""
    return None, f"its {method} weights are counted as mlx-lm unpacks them"


def _predicate(
    quantization: dict[str, Any], packed: frozenset[str]
) -> Callable[[str, Any], bool | dict[str, Any]]:
    """Return what says of a module whether it is quantised, and how if it has a way of its own."""
    named = [str(pattern) for pattern in quantization.get("skipped", ())]
    skipped = [*named, *(f"{pattern}.*" for pattern in named)]

    def is_packed(path: str, module: Any) -> bool | dict[str, Any]:
        own = quantization.get(path)
        if own is not None or not hasattr(module, "to_quantized"):
            return own if isinstance(own, dict) else bool(own)
        if packed:
            return path in packed
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in skipped):
            return False
        return bool(module.weight.shape[-1] % quantization["group_size"] == 0)

    return is_packed
