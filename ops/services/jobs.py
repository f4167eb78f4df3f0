"""What the two services are, whoever keeps them: words, variables, folders, limits. Plain data."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from proxy.sockets import DESCRIPTORS_WANTED
from shared.errors import SettingsError
from shared.run_folder import RunFolder

Role = Literal["worker", "proxy"]

# The worker first: then the proxy's end, which drains, comes before the worker's where the order is kept.
ROLES: Final[tuple[Role, ...]] = ("worker", "proxy")
DESCRIPTORS: Final = DESCRIPTORS_WANTED
# Beyond proxy.drain_s: what a process takes to end (see ops/up.py), and some air.
_STOP_GRACE_S: Final = 15
# Variables of others that say where Hugging Face's models lie.
_CARRIED: Final = ("HF_HOME", "HF_HUB_CACHE")
_PREFIX: Final = "FOREBAY_"


@dataclass(frozen=True, slots=True)
class Whole:
    """What both jobs are made from. `user` is None for a service of the user who installs it.

    `settings` stands for all of them: an installed service that has another runs with other ones.
    `options` are those of `forebay proxy` and `forebay worker`; `variables` is the environment at hand, of
    which only Forebay's own and Hugging Face's places are taken along.
    """

    python: str
    home: Path
    port: int
    drain_s: float
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: str = ""
    user: str | None = None
    user_home: Path | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One service. `stop_s` is what it gets to end before it is killed."""

    role: Role
    port: int
    words: tuple[str, ...]
    variables: Mapping[str, str]
    folder: Path
    log: Path
    stop_s: int
    settings: str
    user: str | None


def digest_of(settings: str) -> str:
    """Return what stands for settings, given as JSON, in a service's file."""
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def jobs(whole: Whole) -> tuple[Job, ...]:
    """Return both jobs, the worker first. SettingsError if something can't stand in a service's file."""
    _refuse_far_socket(whole.home, whole.port)
    variables = carried(whole)
    for text in (whole.python, str(whole.home), *whole.options, *variables.values()):
        if not text.isprintable():
            raise SettingsError(f"{text!r} can't stand in a service's file")
    return tuple(_job(role, whole, variables) for role in ROLES)


def carried(whole: Whole) -> dict[str, str]:
    """Return the variables that a service gets, by name."""
    taken = {
        name: value
        for name, value in whole.variables.items()
        if value and (name in _CARRIED or name.upper().startswith(_PREFIX))
    }
    taken = {name: value for name, value in taken.items() if name.upper() != "FOREBAY_HOME"}
    # The model was found on this machine: a service must not need the network to start.
    fixed = {"FOREBAY_HOME": str(whole.home), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    if whole.user_home is not None:
        fixed["HOME"] = str(whole.user_home)
    return dict(sorted({**taken, **fixed}.items()))


def _job(role: Role, whole: Whole, variables: Mapping[str, str]) -> Job:
    log = whole.home / "logs" / f"{role}.log"
    return Job(
        role=role,
        port=whole.port,
        words=(whole.python, "-P", "-m", "ops.cli", role, f"--port={whole.port}", *whole.options),
        variables=variables,
        folder=whole.home,
        log=log,
        stop_s=math.ceil(whole.drain_s) + _STOP_GRACE_S,
        settings=whole.settings,
        user=whole.user,
    )


def _refuse_far_socket(home: Path, port: int) -> None:
    """Refuse a home whose socket lies in the temporary folder: a service may have another than a shell."""
    if not RunFolder(home, port).admin_socket.is_relative_to(home):
        raise SettingsError(
            f"the path of home {home} is too long for the socket of a service; choose a shorter one"
        )


def in_words(words: Sequence[str]) -> str:
    """Return a command as a shell would read it."""
    import shlex  # noqa: PLC0415 (only to show one)

    return shlex.join(words)
