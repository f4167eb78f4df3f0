"""From what an operator calls a model to its folder: a path, a Hugging Face id, or the demo."""

import difflib
import re
from pathlib import Path
from typing import Final

from ops import demo
from shared.errors import ModelError
from shared.model_folder import DEMO_NAME, ModelFolder

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NEEDED_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")


def resolve(model: str, home: Path) -> ModelFolder:
    """Return the folder of `model`, fetched first if need be. Raises ModelError with words."""
    if model in (DEMO_NAME, demo.NAME):
        return demo.bring(home)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return ModelFolder.read(folder.absolute())
    if folder.exists():
        raise ModelError(f"{model} is a file; a model is a folder with config.json and *.safetensors")
    if HUB_ID.fullmatch(model):
        return ModelFolder.read(_fetch(model), name=model)
    raise ModelError(
        f"{model}: no such folder{nearest(folder)}. A model is a folder, a Hugging Face id like"
        f" org/name, or {DEMO_NAME}"
    )


def nearest(folder: Path) -> str:
    """Return a hint at a sibling with nearly that name."""
    if not folder.parent.is_dir():
        return ""
    siblings = [sibling.name for sibling in folder.parent.iterdir() if sibling.is_dir()]
    nearest = difflib.get_close_matches(folder.name, siblings, n=1)
    return f"; did you mean {folder.parent / nearest[0]}?" if nearest else ""


def _fetch(model: str) -> Path:
    """Fetch from the hub into its own cache, with its own progress bars; only what has changed is read."""
    # Imported here: it takes half a second, which neither the demo nor a folder needs.
    from huggingface_hub import snapshot_download  # noqa: PLC0415 (said above)
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 (said above)

    try:
        return Path(snapshot_download(model, allow_patterns=list(_NEEDED_FILES)))
    except (HfHubHTTPError, OSError, ValueError) as problem:
        reason = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
        raise ModelError(
            f"{model}: there is no such folder, and Hugging Face didn't give such a model: {reason}"
        ) from problem
