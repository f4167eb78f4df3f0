"""Verdicts on a model: its files against its index and their own heads, its family, and whether it fits."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ops.doctor.device import Device, Said
from ops.doctor.finding import Finding, bad, gibibytes, gigabytes, good, warn

_HEAD_BYTES_MAX: Final = 100_000_000  # safetensors' own bound
_SHOWN: Final = 3
_FETCH: Final = "`forebay fetch` brings the demo and Hugging Face models again; copy others anew"
_KEPT_SHARE_WARN: Final = 0.2
# Kinds of caches that the engine keeps side by side.
_SIDE_BY_SIDE: Final = frozenset({"attention", "window", "chunks", "state"})


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of weights: its size, and the one that its own head tells; None: no readable head."""

    name: str
    size_bytes: int
    expected_bytes: int | None


@dataclass(frozen=True, slots=True)
class Weights:
    """All files of weights of a folder, and the names its index has; None where it has no index."""

    files: tuple[WeightFile, ...]
    indexed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """A model's type as its configuration says it, and what the installed mlx-lm knows."""

    model_type: str
    known: frozenset[str]
    other_names: Mapping[str, str] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    by_architecture: Mapping[tuple[str, str], str] = field(default_factory=dict)


def expected_bytes(head: bytes, rest: bytes) -> int | None:
    """Return the size of a safetensors file by its head: eight bytes of length, then so much JSON.

    None if it isn't such a head.
    """
    try:
        (length,) = struct.unpack("<Q", head)
        tensors = json.loads(rest)
        ends = [value["data_offsets"][1] for name, value in tensors.items() if name != "__metadata__"]
        return len(head) + int(length) + max(map(int, ends), default=0)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def head_bytes(head: bytes) -> int:
    """Return how long the JSON behind the first eight bytes is; 0 if that can't be."""
    length = int.from_bytes(head, "little")
    return length if len(head) == 8 and length <= _HEAD_BYTES_MAX else 0


def indexed_names(index: Any) -> frozenset[str]:
    """Return the files that model.safetensors.index.json names; ValueError if it is no index."""
    placed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise ValueError("model.safetensors.index.json has no weight_map")
    return frozenset(placed.values())


def judge_weights(weights: Weights) -> Finding:
    there = {file.name for file in weights.files}
    missing = sorted((weights.indexed or frozenset()) - there)
    if missing:
        return bad("weights", f"files that the index names are missing: {_some(missing)}", _FETCH)
    unreadable = [file.name for file in weights.files if file.expected_bytes is None]
    if unreadable:
        return bad("weights", f"not readable as safetensors: {_some(unreadable)}", _FETCH)
    cut = [file.name for file in weights.files if file.size_bytes != file.expected_bytes]
    if cut:
        return bad("weights", f"not as long as their own heads say: {_some(cut)}", _FETCH)
    size = gigabytes(sum(file.size_bytes for file in weights.files))
    beside = sorted(there - weights.indexed) if weights.indexed else []
    if beside:
        do = "mlx-lm reads all model*.safetensors: move what isn't this model's out of the folder"
        return warn("weights", f"files that the index doesn't name: {_some(beside)}", do)
    count = len(weights.files)
    return good("weights", f"{count} file{'' if count == 1 else 's'} of weights, {size}, whole")


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def judge_family(family: Family) -> Finding:
    """Judge whether mlx-lm knows the type, by the way that mlx-lm itself finds its module."""
    by_architecture = (family.by_architecture.get((family.model_type, each)) for each in family.architectures)
    module = next(
        (found for found in by_architecture if found),
        family.other_names.get(family.model_type, family.model_type),
    )
    if module in family.known:
        return good("family", f"mlx-lm knows its type, {family.model_type}")
    return bad(
        "family",
        f"the installed mlx-lm knows no type {family.model_type}",
        "take a model of another family, or wait for a Forebay with a newer mlx-lm",
    )


def judge_fit(weights_bytes: int, device: Device, fraction: float) -> Finding:
    """Judge whether weights leave room for caches in `fraction` of what the device can hold."""
    limit_bytes = fraction * device.usable_bytes
    says = f"weights take {gibibytes(weights_bytes)} of the {gibibytes(limit_bytes)} that the worker may take"
    if weights_bytes >= limit_bytes:
        return bad("fit", says, "take a smaller model or one of fewer bits, or raise memory_fraction")
    if limit_bytes - weights_bytes < _KEPT_SHARE_WARN * limit_bytes:
        return warn("fit", says, "little is left for caches: few rows, or short ones")
    return good("fit", says)


def judge_rows(said: Said) -> Finding:
    """Judge how rows run, by a probe that builds the model without reading its weights.

    It prints {"caches": the kinds in words}, or {"problem": why mlx-lm can't build it}.
    """
    if said.status is None:
        return warn(
            "rows", f"building the model {said.ending}", "try again; the worker will say how rows run"
        )
    if said.status:
        return bad("rows", f"the model can't be built; it {said.ending}", "mend that first")
    told: Any = json.loads(said.out)
    if "problem" in told:
        return bad("rows", f"mlx-lm can't build it: {told['problem']}", _FETCH)
    others = [kind for kind in told["caches"].split(", ") if kind not in _SIDE_BY_SIDE]
    if others:
        return warn(
            "rows",
            f"one row runs at a time: its layers use {', '.join(others)}",
            "it is served so; a model with other caches serves more at a time",
        )
    return good("rows", f"its rows can run together (caches: {told['caches']})")
