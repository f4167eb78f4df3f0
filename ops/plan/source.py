"""From what an operator calls a model to its config.json and, where there is one, the index of its weights.

Of a model of Hugging Face nothing else is fetched: some kilobytes instead of its weights.
"""

import json
from pathlib import Path
from typing import Any, Final

from ops import demo
from ops.models import HUB_ID, nearest
from ops.plan.record import Source
from shared.errors import ModelError
from shared.limits import CONFIG_BYTES_MAX
from shared.model_folder import DEMO_NAME

CONFIG_NAME: Final = "config.json"
INDEX_NAME: Final = "model.safetensors.index.json"


def find(model: str, home: Path) -> Source:
    """Return what is told of a model. Raises ModelError with words."""
    if model in (DEMO_NAME, demo.NAME):
        return of_folder(Path(demo.bring(home).path), demo.NAME)
    path = Path(model).expanduser()
    if path.is_dir():
        return of_folder(path, path.absolute().name)
    if path.suffix == ".gguf":
        raise ModelError(
            f"{model}: a GGUF file can't be planned; a folder, config.json or a Hugging Face id can"
        )
    if path.is_file():
        return Source(model, read_json(path), None, None)
    if HUB_ID.fullmatch(model):
        return _of_hub(model)
    raise ModelError(
        f"{model}: no such folder{nearest(path)}. A model is a folder, its config.json, a Hugging Face id"
        f" like org/name, or {DEMO_NAME}"
    )


def of_folder(folder: Path, name: str) -> Source:
    """Read a folder, with its weights where it has any."""
    if not (folder / CONFIG_NAME).is_file():
        raise ModelError(f"{folder}: no {CONFIG_NAME}")
    config = read_json(folder / CONFIG_NAME)
    if any(file.is_file() for file in folder.glob("model*.safetensors")):
        return Source(name, config, None, str(folder.absolute()))
    index = folder / INDEX_NAME
    return Source(name, config, read_json(index) if index.is_file() else None, None)


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object of a bounded size; ModelError in words if it isn't one."""
    try:
        if file.stat().st_size > CONFIG_BYTES_MAX:
            raise ModelError(f"{file}: larger than {CONFIG_BYTES_MAX} bytes, so no {CONFIG_NAME} of a model")
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise ModelError(f"{file}: not readable as JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise ModelError(f"{file}: not a JSON object")
    return content


def _of_hub(model: str) -> Source:
    """Fetch both files into the hub's own cache; most small models have no index."""
    # Imported here: it takes half a second, which neither the demo nor a folder needs.
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 (said above)
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError  # noqa: PLC0415 (said above)

    try:
        config = Path(hf_hub_download(model, CONFIG_NAME))
        try:
            index = read_json(Path(hf_hub_download(model, INDEX_NAME)))
        except EntryNotFoundError:
            index = None
    except (HfHubHTTPError, OSError, ValueError) as problem:
        reason = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        raise ModelError(
            f"{model}: there is no such folder, and Hugging Face didn't give its {CONFIG_NAME}: {reason}"
        ) from problem
    return Source(model, read_json(config), index, None)
