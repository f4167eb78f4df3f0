"""Verdicts on settings and home: who may reach the gateway, who may write there, who keeps it up."""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.doctor.finding import Finding, bad, good, warn

_OTHERS_MAY_WRITE: Final = 0o022
_OTHERS_MAY_READ: Final = 0o044
# Beyond proxy.drain_s: what proxy and supervisor take to end.
STOP_GRACE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder as its inode has it; None in its place means that it isn't there."""

    path: Path
    mode: int
    owner: int


@dataclass(frozen=True, slots=True)
class Keeper:
    """A service that is installed: its file, how long it lets a process end, and whether it's as written."""

    file: Path
    stop_s: float | None
    intact: bool = True


def judge_settings(problem: str, source: str) -> Finding:
    if problem:
        return bad("settings", f"{source}: {problem}", "mend it; all else here is checked with the defaults")
    return good("settings", f"{source} can be read, and every key is known")


def judge_door(host: str, keys: int | None, problem: str) -> Finding:
    """Judge whether whoever reaches the gateway has to show a key; `problem` is why it would not start.

    Without a readable key file, `keys` is None.
    """
    if keys is None:
        says = f"listens on {host}; whether it asks for keys can't be told: the key file isn't readable"
        return warn("door", says, "mend the key file: without it the gateway doesn't start")
    if problem:
        return bad("door", problem, "`forebay keys add NAME`, or host = 127.0.0.1")
    if keys:
        return good("door", f"listens on {host}, and asks for one of {keys} key{'' if keys == 1 else 's'}")
    return good("door", f"listens on {host}, for programs of this machine, and asks for no key")


def judge_keys(entry: Entry | None, problem: str) -> Finding:
    if entry is None:
        return good("keys", "there is no key file")
    if problem:
        return bad("keys", problem, f"`chmod 600 {entry.path}`, and see what `forebay keys list` says")
    if entry.mode & _OTHERS_MAY_READ:
        do = f"`chmod 600 {entry.path}`"
        return warn("keys", f"{entry.path}: others may read it (hashes, no keys)", do)
    return good("keys", "the key file is readable by its owner alone")


def judge_home(entry: Entry | None, home: Path, user: int) -> Finding:
    if entry is None:
        return good("home", f"home {home} isn't there yet; it will be made")
    if not stat.S_ISDIR(entry.mode):
        return bad("home", f"home {home} is no folder", "choose another by home in the settings")
    if entry.owner != user:
        return bad("home", f"home {home} belongs to another user", "run as that user, or choose another home")
    if entry.mode & _OTHERS_MAY_WRITE:
        do = f"`chmod go-w {home}`: who can write there can put keys and models of their own in it"
        return bad("home", f"home {home} is writable by others", do)
    return good("home", f"home {home} is writable by its owner alone")


def judge_keepers(keepers: list[Keeper], drain_s: float) -> list[Finding]:
    """Judge the installed services of this port: each has to leave time for a drain, as it's set now."""
    if not keepers:
        return [good("service", "no service is installed; `forebay install` makes one")]
    return [_keeper(keeper, drain_s) for keeper in keepers]


def _keeper(keeper: Keeper, drain_s: float) -> Finding:
    again = "`forebay install` writes it anew"
    if keeper.stop_s is None:
        return warn("service", f"{keeper.file} doesn't say how long a stop may take", again)
    if keeper.stop_s < drain_s + STOP_GRACE_S:
        says = f"{keeper.file} gives {keeper.stop_s:g} s to end, and proxy.drain_s is {drain_s:g}"
        return bad("service", says, f"streams would be cut; {again}")
    if not keeper.intact:
        do = "`forebay install --force` writes it anew; `--dry-run` shows what it would be"
        return warn("service", f"{keeper.file} was changed by hand", do)
    return good("service", f"{keeper.file.name} gives {keeper.stop_s:g} s to end")
