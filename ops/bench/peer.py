"""mlx_lm.server on the same model beside the server: its model's folder, and its process."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ops.bench.target import Address, Target
from ops.command import OrderFailed
from ops.figures.processes import NotStarted, mlx_lm_server
from shared.errors import SettingsError
from shared.model_folder import ModelFolder

NAME: Final = "mlx_lm.server"


def model_folder(model: str | None, home: Path) -> ModelFolder:
    """Return the folder that a model's name or path means. SettingsError if it is none on this machine."""
    if model is None:
        raise SettingsError("--peer needs --model FOLDER: the model that both serve")
    places = (Path(model).expanduser(), home / "models" / Path(model).name)
    for place in places:
        if (place / "config.json").is_file():
            return ModelFolder.read(place)
    raise SettingsError(f"--peer needs a model's folder on this machine: {model} is none, nor is {places[1]}")


@contextlib.contextmanager
def peer(folder: ModelFolder, log: Path) -> Iterator[Target]:
    """Run it with its own defaults. OrderFailed if it doesn't start; its words are in `log`."""
    try:
        with mlx_lm_server(folder.path, log) as port:
            yield Target(NAME, Address.read(f"http://127.0.0.1:{port}"), str(folder.path))
    except NotStarted as problem:
        raise OrderFailed(f"mlx_lm.server doesn't start; what it said is in {log}") from problem
