"""The run folder: where the wire's socket lives, of one user, held by one proxy and one supervisor."""

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from shared.errors import SettingsError
from shared.limits import SOCKET_PATH_BYTES_MAX

_SOCKET_NAME = "wire"
_ADMIN_NAME = "admin"


class RunFolder:
    """A folder of mode 0700 with the wire's socket in it, and the operator's.

    Under a home whose path is too long for a Unix socket, the folder lies in the system's temporary folder,
    named by a hash of the home, so that proxy and worker find the same one.
    """

    def __init__(self, home: Path, port: int) -> None:
        self.path = home / "run" / str(port)
        if len(os.fsencode(self.admin_socket)) > SOCKET_PATH_BYTES_MAX:
            digest = hashlib.sha256(f"{os.getuid()}:{self.path}".encode()).hexdigest()[:16]
            self.path = Path(tempfile.gettempdir()) / f"forebay-{digest}"

    @property
    def socket(self) -> Path:
        return self.path / _SOCKET_NAME

    @property
    def admin_socket(self) -> Path:
        """Where the operator's orders come in."""
        return self.path / _ADMIN_NAME

    @property
    def proxy_lock(self) -> Path:
        """Held by the proxy as long as it lives."""
        return self.path / "lock"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the worker's supervisor as long as it lives."""
        return self.path / "worker.lock"

    @property
    def up_lock(self) -> Path:
        """Held by `forebay up` as long as it lives; its pid stands in it."""
        return self.path / "up"

    @property
    def findings(self) -> Path:
        """Where one life of the worker leaves for the next what it has found out about the model."""
        return self.path / "findings.json"

    @property
    def worker_pid(self) -> Path:
        """Where a supervisor notes which process it has started."""
        return self.path / "worker.pid"

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.socket}"

    def create(self) -> None:
        """Make the folder, or refuse one that others could write to."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise SettingsError(f"{self.path}: {problem.strerror}") from problem
        status = self.path.stat()
        if status.st_uid != os.getuid():
            raise SettingsError(f"{self.path} belongs to another user")
        self.path.chmod(0o700)


class RunLock:
    """Held by the proxy: a second one on the same port is told so instead of stealing the socket."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        self.folder.create()
        file = self.folder.proxy_lock.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            file.close()
            raise SettingsError(f"another proxy holds {self.folder.path}; is Forebay running?") from problem
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        self.folder.socket.unlink(missing_ok=True)
        self.folder.admin_socket.unlink(missing_ok=True)
        self._file.close()


class SupervisorLock:
    """Held by the worker's supervisor: two of them would start two workers under one name."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        self._file = _hold(self.folder, self.folder.supervisor_lock.name, "supervisor of a worker")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        self._file.close()


def _hold(folder: RunFolder, name: str, who: str) -> IO[str]:
    """Lock a file of the folder until it is closed; raise SettingsError if another process has it."""
    folder.create()
    try:
        file = (folder.path / name).open("w")
    except OSError as problem:
        raise SettingsError(f"{folder.path / name}: {problem.strerror}") from problem
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        file.close()
        raise SettingsError(f"another {who} holds {folder.path}; is Forebay running?") from problem
    return file
