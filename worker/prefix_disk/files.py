"""The tier's folder: who may use it, where a block's file lies, and how one is put there whole or not at all.

<folder>/lock, <folder>/written · <folder>/<fingerprint's digest>/<aa>/<aabb…>.kv
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from worker.prefix_disk.block_file import BEGINNING_BYTES, BadFileError, Buffer
from worker.prefix_disk.index import Stranger

# A block of 64 tokens with a snapshot; what is larger was never written here.
FILE_BYTES_MAX: Final = 1 << 32

_BLOCK: Final = re.compile(r"([0-9a-f]{32})\.kv")
_LEFTOVER: Final = re.compile(r"([0-9a-f]{32}|written)\.new")
_OF_A_FINGERPRINT: Final = re.compile(r"[0-9a-f]{32}")
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # never waits on a pipe's other end
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
# What an open or a read may fail with though the file is as it should be.
_NOT_THE_FILES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR))


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A block's file in a scan: its beginning, its size, and when it was last used by the wall clock."""

    key: bytes
    beginning: bytes
    nbytes: int
    used: float


class BlockFiles:
    """The files of one fingerprint, and what lies beside them in the folder."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        digest = hashlib.blake2b(fingerprint.encode(), digest_size=16, person=b"forebay folder")
        self.own = folder / digest.hexdigest()
        self._lock: int | None = None

    # --- whose folder it is -------------------------------------------------------------------------------

    def take(self) -> bool:
        """Make the folder and keep other processes out of it; False if one has it. Raises OSError."""
        self.leave()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the folder belongs to another user", str(self._folder))
        self._folder.chmod(0o700)
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError:
            os.close(lock)
            raise
        self._lock = lock
        self.own.mkdir(mode=0o700, exist_ok=True)
        return True

    def stands(self) -> bool:
        """Whether the folder is still the one that was taken, with everything that belongs in it."""
        if self._lock is None:
            return False
        try:
            return self.own.is_dir() and os.path.samestat(
                os.fstat(self._lock), (self._folder / "lock").lstat()
            )
        except OSError:
            return False

    def leave(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- one file -----------------------------------------------------------------------------------------

    def path(self, key: bytes) -> Path:
        name = key.hex()
        return self.own / name[:2] / f"{name}.kv"

    def put(self, key: bytes, pieces: Sequence[Buffer], used: float) -> None:
        """Put a block's file on disk, whole or not at all, in the place of an older one. Raises OSError."""
        path = self.path(key)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _put(path, pieces, used)

    def read(self, key: bytes) -> bytes:
        """Return a file's bytes. Raises FileNotFoundError, BadFileError if it can't be read, or OSError."""
        with _opened(self.path(key)) as (descriptor, status):
            return _read_all(descriptor, status.st_size)

    def used(self, key: bytes, at: float) -> None:
        """Have the file say when it was last used, for whoever scans it after a restart."""
        with contextlib.suppress(OSError):
            os.utime(self.path(key), (at, at), follow_symlinks=False)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone already is as good. Raises OSError.

        A folder in its place isn't ours, and stays.
        """
        try:
            path.unlink(missing_ok=True)
        except OSError:
            if not path.is_dir():
                raise

    def remove_stranger(self, path: Path) -> None:
        """Remove another fingerprint's file, and its folders once they are empty. Raises OSError."""
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
            path.parent.parent.rmdir()

    # --- all files ----------------------------------------------------------------------------------------

    def scan(self) -> Iterator[FoundFile]:
        """Yield all blocks of this fingerprint; of what can't be read, no byte. Removes what a crash left.

        What has another name than a block would have is left alone. Raises OSError.
        """
        for name, path in self._names():
            key = bytes.fromhex(name)
            try:
                with _opened(path) as (descriptor, status):
                    beginning = _read_all(descriptor, min(status.st_size, BEGINNING_BYTES))
            except FileNotFoundError:
                continue
            except BadFileError:
                yield FoundFile(key, b"", 0, 0.0)
                continue
            yield FoundFile(key, beginning, status.st_size, status.st_mtime)

    def keys(self) -> set[bytes]:
        """Return the keys of all files that are there, whatever is in them. Raises OSError."""
        return {bytes.fromhex(name) for name, _ in self._names()}

    def _names(self) -> Iterator[tuple[str, Path]]:
        for folder in _folders(self.own):
            for item in _items(folder):
                found = _BLOCK.fullmatch(item.name)
                if found is not None and item.name.startswith(folder.name):
                    yield found[1], Path(item.path)
                elif _LEFTOVER.fullmatch(item.name):
                    self.remove(Path(item.path))

    def strangers(self) -> list[Stranger]:
        """Return other fingerprints' files: those first whose folder was used longest ago. Raises OSError."""
        by_folder: list[tuple[float, list[tuple[float, Stranger]]]] = []
        for folder in _folders(self._folder):
            if folder != self.own and _OF_A_FINGERPRINT.fullmatch(folder.name):
                files = sorted(_aged(folder), key=lambda aged: aged[0])
                if files:
                    by_folder.append((files[-1][0], files))
        by_folder.sort(key=lambda aged: aged[0])
        return [stranger for _, files in by_folder for _, stranger in files]

    # --- the count of a day's bytes -----------------------------------------------------------------------

    def read_count(self) -> bytes | None:
        """Return the small file beside the blocks, None if there is none. Raises OSError."""
        try:
            with _opened(self._folder / "written") as (descriptor, status):
                return _read_all(descriptor, min(status.st_size, BEGINNING_BYTES))
        except FileNotFoundError:
            return None
        except BadFileError:
            return b""

    def write_count(self, text: bytes) -> None:
        """Put the small file in place as a whole. Raises OSError."""
        _put(self._folder / "written", [text], None)


def write_all(descriptor: int, piece: Buffer) -> None:
    """Write all of it. Raises OSError."""
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync(descriptor: int) -> None:
    """Wait until a file is on disk.

    Not with a Mac's full sync: if the drive's own cache is lost as well, checksums find it out.
    """
    os.fsync(descriptor)


def _put(path: Path, pieces: Sequence[Buffer], used: float | None) -> None:
    """Write beside the path, wait for the disk, and rename. Raises OSError."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, _WRITE, 0o600)
    try:
        try:
            for piece in pieces:
                write_all(descriptor, piece)
            if used is not None:
                os.utime(descriptor, (used, used))
            sync(descriptor)
        finally:
            os.close(descriptor)
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    """Open a plain file. What the file itself is to blame for becomes a BadFileError, but that it is gone."""
    descriptor = -1
    try:
        descriptor = os.open(path, _READ)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
            raise BadFileError("no plain file of a block's size")
        yield descriptor, status
    except FileNotFoundError:
        raise
    except OSError as problem:
        if problem.errno in _NOT_THE_FILES:
            raise
        raise BadFileError(str(problem)) from problem
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _read_all(descriptor: int, nbytes: int) -> bytes:
    """Return the next bytes of a file, fewer if it was cut off meanwhile."""
    pieces: list[bytes] = []
    # A read may bring less than was asked for: more than two gigabytes, for one.
    while nbytes and (piece := os.read(descriptor, nbytes)):
        pieces.append(piece)
        nbytes -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _folders(parent: Path) -> list[Path]:
    return [Path(item.path) for item in _items(parent) if item.is_dir(follow_symlinks=False)]


def _items(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except FileNotFoundError:
        return []


def _aged(folder: Path) -> Iterator[tuple[float, Stranger]]:
    """Yield the files of another fingerprint's folder with the time of their last use; remove leftovers."""
    for inner in _folders(folder):
        for item in _items(inner):
            path = Path(item.path)
            if _LEFTOVER.fullmatch(item.name):
                path.unlink(missing_ok=True)
            elif _BLOCK.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                status = item.stat(follow_symlinks=False)
                yield status.st_mtime, Stranger(path, status.st_size)
