"""Who runs `forebay up` for a home and port: a lock with a pid in it, which ends with its holder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from shared.errors import SettingsError
from shared.run_folder import RunFolder

# Whoever only looks whether the lock is held holds it for a moment.
_TRIES: Final = 10
_BETWEEN_TRIES_S: Final = 0.05


@contextmanager
def held_by_us(folder: RunFolder) -> Iterator[None]:
    """Be the one `forebay up` of this folder; SettingsError names the one there is."""
    folder.create()
    try:
        file = folder.up_lock.open("a+")
    except OSError as problem:
        raise SettingsError(f"{folder.up_lock}: {problem.strerror}") from problem
    with file:
        _take(file, folder)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
        file.truncate(0)


def _take(file: IO[str], folder: RunFolder) -> None:
    for _ in range(_TRIES):
        if _taken(file, fcntl.LOCK_EX):
            return
        time.sleep(_BETWEEN_TRIES_S)
    raise SettingsError(
        f"`forebay up` runs already, as process {_pid_in(folder.up_lock) or '?'}, and holds {folder.path};"
        " `forebay stop` ends it, and another --port is beside it"
    )


def holder(folder: RunFolder) -> int | None:
    """Return the pid of the `forebay up` that runs; None if none does."""
    for _ in range(_TRIES):
        if not is_held(folder.up_lock):
            return None
        if (pid := _pid_in(folder.up_lock)) is not None:
            return pid
        time.sleep(_BETWEEN_TRIES_S)  # it has just taken the lock
    return None


def is_held(lock: Path) -> bool:
    """Return whether a process holds this lock file; a file that isn't there isn't held."""
    try:
        with lock.open("r") as file:
            return not _taken(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _taken(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid_in(lock: Path) -> int | None:
    text = lock.read_text().strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None
