"""Reads what is on disk of a model, without fetching anything: where it is, its weights' heads, its type."""

import ast
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ops import demo
from ops.doctor.model_files import Family, WeightFile, Weights, expected_bytes, head_bytes, indexed_names
from ops.models import HUB_ID
from shared.model_folder import DEMO_NAME

_INDEX: Final = "model.safetensors.index.json"
_FILES_MAX: Final = 10_000
_TABLES: Final = ("MODEL_REMAPPING", "MODEL_ARCHITECTURE_REMAPPING")


@dataclass(frozen=True, slots=True)
class Located:
    """Where a model is: `folder` is None if it isn't on this machine; `fetchable` says if it can be got."""

    folder: Path | None
    fetchable: bool


def locate(model: str, home: Path) -> Located:
    """Look where `ops.models.resolve` would, and no further than this machine's disks."""
    if model in (DEMO_NAME, demo.NAME):
        folder = home / "models" / demo.NAME
        return Located(folder if folder.is_dir() else None, fetchable=True)
    folder = Path(model).expanduser()
    if folder.exists():
        return Located(folder.absolute() if folder.is_dir() else None, fetchable=False)
    if not HUB_ID.fullmatch(model):
        return Located(None, fetchable=False)
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 (half a second, only needed here)

    config = try_to_load_from_cache(model, "config.json")
    return Located(Path(config).parent if isinstance(config, str) else None, fetchable=True)


def weights(folder: Path) -> Weights:
    """Read the heads of all files of weights; OSError or ValueError if they or the index can't be read."""
    files = sorted(folder.glob("model*.safetensors"))[:_FILES_MAX]
    index = folder / _INDEX
    indexed = indexed_names(json.loads(index.read_text("utf-8"))) if index.is_file() else None
    return Weights(tuple(map(_weight_file, files)), indexed)


def _weight_file(path: Path) -> WeightFile:
    with path.open("rb") as file:
        head = file.read(8)
        rest = file.read(head_bytes(head))
    return WeightFile(path.name, path.stat().st_size, expected_bytes(head, rest))


def family(config: dict[str, Any]) -> Family:
    """Read what the installed mlx-lm knows, from its files: importing it would take seconds, and MLX along.

    Raises OSError or ValueError if mlx-lm isn't there or looks different.
    """
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or spec.origin is None:
        raise OSError("mlx-lm isn't installed")
    package = Path(spec.origin).parent
    tables = _tables(package / "utils.py")
    said = config.get("architectures") or ()
    named = (said,) if isinstance(said, str) else tuple(map(str, said))
    return Family(
        model_type=str(config.get("model_type")),
        known=frozenset(file.stem for file in (package / "models").glob("*.py")),
        other_names=tables.get("MODEL_REMAPPING", {}),
        architectures=named,
        by_architecture=tables.get("MODEL_ARCHITECTURE_REMAPPING", {}),
    )


def _tables(source: Path) -> dict[str, dict[Any, str]]:
    """Return the tables of names that stand in a source file as plain literals."""
    found = {}
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in _TABLES:
                found[name] = ast.literal_eval(node.value)
    return found


def hub_folder() -> Path:
    """Return where Hugging Face keeps models."""
    from huggingface_hub.constants import HF_HUB_CACHE  # noqa: PLC0415 (half a second, only needed here)

    return Path(HF_HUB_CACHE)
