"""The checks of the model: there, whole, known to mlx-lm, its rows side by side or not, not too large."""

import json
from pathlib import Path

from ops.doctor import model_files, model_reading, readers
from ops.doctor.device import Device
from ops.doctor.finding import Finding, bad, good, warn
from shared.config import Settings
from shared.errors import ModelError
from shared.model_folder import ModelFolder


def files(settings: Settings) -> list[Finding]:
    """Look at the folder, its weights and its family; OSError or ValueError where reading fails."""
    folder, found = _folder(settings)
    if folder is None:
        return found
    return [*found, model_files.judge_weights(model_reading.weights(folder)), _family(folder)]


def _folder(settings: Settings) -> tuple[Path | None, list[Finding]]:
    """Return where the model is, if its folder can be read, and what to say of that."""
    located = model_reading.locate(settings.model, settings.home_folder)
    if located.folder is None and located.fetchable:
        says = f"{settings.model} isn't on this machine yet"
        return None, [warn("model", says, "`forebay fetch` brings it; `forebay up` would as well")]
    if located.folder is None:
        says = f"{settings.model}: no such folder, and no Hugging Face id"
        return None, [bad("model", says, "set model to a folder, to an id like org/name, or to demo")]
    try:
        model = ModelFolder.read(located.folder)
    except ModelError as problem:
        return None, [bad("model", str(problem), "`forebay fetch` brings it again; copy others anew")]
    says = f"{model.name} is in {located.folder}; its context is {model.context_tokens} tokens"
    return located.folder, [good("model", says)]


def _family(folder: Path) -> Finding:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return model_files.judge_family(model_reading.family(config))


def rows(settings: Settings) -> list[Finding]:
    """Have the model built without its weights; nothing is said where it isn't there."""
    folder, _ = _folder(settings)
    if folder is None:
        return []
    return [model_files.judge_rows(readers.probe(str(folder), str(settings.worker.kv_bits)))]


def fit(settings: Settings, device: Device) -> list[Finding]:
    """Compare the weights with what the worker may take; nothing is said where there are none."""
    folder, _ = _folder(settings)
    if folder is None:
        return []
    weights_bytes = ModelFolder.read(folder).weights_bytes
    return [model_files.judge_fit(weights_bytes, device, settings.worker.memory_fraction)]


def place_of_models(settings: Settings) -> Path:
    """Return the disk's place that a fetch would fill, or where the model is; home itself for the demo."""
    located = model_reading.locate(settings.model, settings.home_folder)
    if located.folder is not None and not located.folder.is_relative_to(settings.home_folder):
        return located.folder
    if located.folder is None and located.fetchable and "/" in settings.model:
        return model_reading.hub_folder()
    return settings.home_folder
