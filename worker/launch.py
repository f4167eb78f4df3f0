"""How a worker process is launched: what it is told, what its exit status says, and the BLAS it is given."""

import functools
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from pydantic import ConfigDict, TypeAdapter

from shared.config import LogSettings, WorkerSettings, child_environment

# What worker.process says by its exit status; any other status is a crash.
EXIT_LOOP_EXCEPTION: Final = 70
EXIT_PLANNED: Final = 75
EXIT_CANNOT_LOAD: Final = 78

# What it writes to stderr, behind "ended by SIG…, ", before it dies of a signal that came from somebody else.
SENT_BY_ANOTHER: Final = "sent by another process"

_OPENBLAS_FILE: Final = "libopenblas.so.0"
_LDCONFIG: Final = "/sbin/ldconfig"
_LDCONFIG_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """All that one life of a worker process is told, as JSON in its only argument.

    `prefix_folder` is where it may keep beginnings of prompts on disk, `findings_file` where it may leave for
    the next life what it has found out about the model.

    `progress_fd` is the write end of the progress pipe, `lifeline_fd` the read end of a pipe that closes
    when the supervisor is gone, `manifest_fd` the memory that worker/manifest.py made for this life, or -1.
    Anybody on the machine can read a process's arguments: no secret goes in.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    worker: str
    epoch: int
    endpoint: str
    folder: str
    name: str
    progress_fd: int
    lifeline_fd: int
    manifest_fd: int
    settings: WorkerSettings
    log: LogSettings
    prefix_folder: str
    findings_file: str

    def to_json(self) -> str:
        return _adapter().dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote; ValueError on anything else."""
        spec: Self = _adapter().validate_json(text)
        return spec


def without_prefixes(settings: WorkerSettings) -> WorkerSettings:
    """Return settings with which a worker keeps no beginnings of prompts, neither in memory nor on disk."""
    return settings.model_copy(update={"cache_memory_mb": 0, "prefix_disk_gb": 0.0})


@functools.cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(LaunchSpec)


def identity(worker: str, epoch: int) -> bytes:
    """Return the name on the wire of one life of a worker process."""
    return f"w-{worker}-{epoch}".encode()


def supervisor_identity(worker: str) -> bytes:
    """Return the name on the wire of a worker's supervisor."""
    return f"s-{worker}".encode()


def worker_environment(preload: Path | None) -> dict[str, str]:
    """Return the environment of a worker process, with `preload` added behind what is preloaded already."""
    environment = child_environment()
    if preload is not None:
        preloaded = environment.get("LD_PRELOAD", "").replace(":", " ").split()
        if str(preload) not in preloaded:
            environment["LD_PRELOAD"] = ":".join([*preloaded, str(preload)])
    return environment


def find_openblas() -> Path | None:
    """Return the system's OpenBLAS, on Linux, where MLX's own wheel carries the slow reference BLAS.

    Preloading it makes MLX's matrix products on the CPU tens of times faster. None on other systems, and
    where it isn't installed.
    """
    if platform.system() != "Linux":
        return None
    return next((file for file in _openblas_places() if file.is_file()), None) or _openblas_of_ldconfig()


def _openblas_places() -> list[Path]:
    """Return where distributions put it: Debian's multiarch folders first, then the plain ones."""
    multiarch = f"{platform.machine()}-linux-gnu"
    folders = (f"/usr/lib/{multiarch}", f"/usr/lib/{multiarch}/openblas-pthread", "/usr/lib64", "/usr/lib")
    return [Path(folder) / _OPENBLAS_FILE for folder in folders]


def _openblas_of_ldconfig() -> Path | None:
    """Return the file that the loader's own cache names.

    Lines of `ldconfig -p` look like `libopenblas.so.0 (libc6,x86-64) => /some/folder/libopenblas.so.0`.
    """
    try:
        cache = subprocess.run(  # noqa: S603 (a fixed command, nothing of it comes from outside)
            (_LDCONFIG, "-p"), capture_output=True, text=True, timeout=_LDCONFIG_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    for line in cache.splitlines():
        name, _, file = line.strip().partition(" => ")
        if name.startswith(_OPENBLAS_FILE) and Path(file).is_file():
            return Path(file)
    return None
