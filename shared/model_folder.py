"""A model's folder, read without MLX: what the proxy must know before any worker has loaded it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from shared.errors import ModelError
from shared.limits import CONTEXT_TOKENS_MAX, VOCABULARY_MAX

DEMO_NAME: Final = "demo"
TOKENIZER_FILE: Final = "tokenizer.json"
DEMO_MODEL_NAME: Final = "SmolLM2-135M-Instruct"
_CONTEXT_KEYS: Final = ("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions")
_CONTEXT_TOKENS_UNSAID: Final = 32_768


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Facts from config.json and the files beside it.

    `fingerprint` changes with the configuration and with the weights' names and sizes; proxy and worker
    compare it, so that a proxy never speaks one model's tokens to another.
    """

    path: Path
    name: str
    family: str
    context_tokens: int
    vocabulary: int
    stop_ids: tuple[int, ...]
    weights_bytes: int
    fingerprint: str

    @classmethod
    def read(cls, path: Path, name: str | None = None) -> Self:
        """Read a folder; ModelError says in words what is missing or wrong with it."""
        if not path.is_dir():
            raise ModelError(f"{path}: no such folder")
        config = _read_json(path / "config.json", required=True)
        text = said_of_text(config, path)
        weights = sorted(path.glob("model*.safetensors"))
        if not weights:
            raise ModelError(f"{path}: no model*.safetensors file")
        for file in weights:
            if not file.is_file():
                raise ModelError(f"{file}: a link to nowhere")
        if not (path / TOKENIZER_FILE).is_file():
            raise ModelError(f"{path}: no {TOKENIZER_FILE}")
        return cls(
            path=path,
            name=name or str(config.get("forebay_name", path.name)),
            family=str(config.get("model_type", "unknown")),
            context_tokens=context_tokens(text, path),
            vocabulary=_whole_number(text, "vocab_size", VOCABULARY_MAX, path),
            stop_ids=_stop_ids(path, text),
            weights_bytes=sum(file.stat().st_size for file in weights),
            fingerprint=_fingerprint(path, weights),
        )


def _read_json(file: Path, *, required: bool = False) -> dict[str, Any]:
    if not file.is_file():
        if required:
            raise ModelError(f"{file.parent}: no {file.name}")
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise ModelError(f"{file}: not readable as JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object")
    return content


def said_of_text(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what config.json says, with what it says of the language part on top."""
    return {**config, **_text_config(config, path)}


def _text_config(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return what a model that also sees or hears says of its language part; it counts before the rest."""
    nested = config.get("text_config") or {}
    if not isinstance(nested, dict):
        raise ModelError(f"{path}: config.json has a text_config that is no object")
    return nested


def _whole_number(config: dict[str, Any], key: str, highest: int, path: Path) -> int:
    value = config.get(key)
    if type(value) is not int or not 1 <= value <= highest:
        raise ModelError(f"{path}: config.json has {key}={value!r}, not a number in [1, {highest}]")
    return value


def context_tokens(config: dict[str, Any], path: Path) -> int:
    """Return the longest context, bounded; a plain number where config.json names none."""
    for key in _CONTEXT_KEYS:
        if config.get(key) is not None:
            return min(_whole_number(config, key, 1 << 40, path), CONTEXT_TOKENS_MAX)
    return _CONTEXT_TOKENS_UNSAID


def _stop_ids(path: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Return every end-of-sequence id that config.json and generation_config.json name."""
    ids: set[int] = set()
    for source in (config, _read_json(path / "generation_config.json")):
        value = source.get("eos_token_id")
        named = value if isinstance(value, list) else [value]
        ids.update(id_ for id_ in named if type(id_) is int and 0 <= id_ < VOCABULARY_MAX)
    return tuple(sorted(ids))


def _fingerprint(path: Path, weights: list[Path]) -> str:
    digest = hashlib.sha256((path / "config.json").read_bytes())
    for file in weights:
        digest.update(f"{file.name}:{file.stat().st_size};".encode())
    return digest.hexdigest()[:16]
