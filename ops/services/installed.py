"""Which services are installed for a port, and which keeper this machine has."""

import os
import pwd
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.services import launchd, systemd
from ops.services.keeper import ServiceKeeper
from ops.services.marks import is_intact, is_ours
from shared.errors import SettingsError

FILE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Installed:
    """A service's file of ours. `stop_s` is what a stop may take; `intact`: it's as it was written."""

    path: Path
    stop_s: float | None
    intact: bool


@dataclass(frozen=True, slots=True)
class User:
    """Somebody that services run as."""

    name: str
    uid: int
    gid: int
    home: Path


def read_file(path: Path) -> bytes | None:
    """Return a service's file, bounded; None if it isn't there. OSError if it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None


def keeper_for(port: int, user: User | None, platform: str = sys.platform) -> ServiceKeeper:
    """Return this machine's keeper of services, for a user or for the system where `user` is None."""
    home = user.home if user else Path("/")
    if platform == "darwin":
        return launchd.Launchd(port, user.uid if user else None, home)
    return systemd.Systemd(port, user.name if user else None, home)


def require_keeper(platform: str = sys.platform) -> None:
    """Raise SettingsError where there is neither launchd nor systemd."""
    if platform != "darwin" and shutil.which("systemctl") is None:
        raise SettingsError(
            "there is no systemd here; run `forebay proxy` and `forebay worker` by what there is"
        )


def this_user() -> User:
    return _user(pwd.getpwuid(os.getuid()))


def user_named(name: str) -> User:
    try:
        return _user(pwd.getpwnam(name))
    except KeyError as problem:
        raise SettingsError(f"there is no user {name!r}") from problem


def owner_of(folder: Path) -> User | None:
    """Return who owns a folder; None if it isn't there, or its owner is nobody's name."""
    try:
        return _user(pwd.getpwuid(folder.stat().st_uid))
    except (OSError, KeyError):
        return None


def _user(entry: pwd.struct_passwd) -> User:
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir))


def installed(port: int, platform: str = sys.platform) -> list[Installed]:
    """Return the files of ours for a port, this user's and the system's."""
    found = []
    stop_s_of = launchd.stop_s_of if platform == "darwin" else systemd.stop_s_of
    for user in (this_user(), None):
        for path in keeper_for(port, user, platform).paths():
            text = read_file(path)
            if text is not None and is_ours(text):
                found.append(Installed(path, stop_s_of(text), is_intact(text)))
    return found


def kept_by(port: int, platform: str = sys.platform) -> str:
    """Return the command that ends the services which keep a port's gateway up; "" if none is installed.

    Whatever else ends proxy or worker, they are started again.
    """
    ours = {each.path for each in installed(port, platform)}
    for user in (this_user(), None):
        keeper = keeper_for(port, user, platform)
        if ours & set(keeper.paths()):
            return keeper.ended_by()
    return ""


def home_of(given: Path, user: User) -> Path:
    """Return a home as `user` would read it: ~ is that user's, not that of whoever installs."""
    parts = given.parts
    return user.home.joinpath(*parts[1:]) if parts[:1] == ("~",) else given.expanduser().absolute()
