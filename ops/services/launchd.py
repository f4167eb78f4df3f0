"""launchd: two property lists, and the launchctl commands that load and unload them.

launchd never rotates the files of StandardOutPath and StandardErrorPath, and newsyslog, which only root may
set up, would rename them under a process that goes on writing to the old one. So each job keeps its own log
bounded: see ops/services/log_bound.py.
"""

import plistlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ops.services.jobs import DESCRIPTORS, ROLES, Job, Role
from ops.services.keeper import Command, ServiceFile
from ops.services.marks import COMMENT, sealed

AGENTS: Final = Path("Library/LaunchAgents")
DAEMONS: Final = Path("/Library/LaunchDaemons")
_LAUNCHCTL: Final = "/bin/launchctl"
_HEAD_ENDS: Final = b"<plist "
_THROTTLE_S: Final = 10
_UMASK: Final = 0o077
# bootout of what isn't loaded (3: no such process; 113: not found), and of what takes its time (36).
_BOOTED_OUT: Final = frozenset({0, 3, 36, 113})


def label(role: Role, port: int) -> str:
    return f"forebay.{port}.{role}"


def property_list(job: Job) -> bytes:
    """Return a job's file. As Interactive it's neither slowed down nor napping in the background."""
    limits = {"NumberOfFiles": DESCRIPTORS}
    keys: dict[str, Any] = {
        "Label": label(job.role, job.port),
        "ProgramArguments": [*job.words, f"--bound-log={job.log}"],
        "EnvironmentVariables": dict(job.variables),
        "WorkingDirectory": str(job.folder),
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": _THROTTLE_S,
        "ExitTimeOut": job.stop_s,
        "ProcessType": "Interactive",
        "SoftResourceLimits": limits,
        "HardResourceLimits": limits,
        "StandardOutPath": str(job.log),
        "StandardErrorPath": str(job.log),
        "Umask": _UMASK,
    }
    if job.user is not None:
        keys["UserName"] = job.user
    text = plistlib.dumps(keys, sort_keys=False)
    comment = f"<!-- {COMMENT}; of settings {job.settings} -->\n".encode()
    return sealed(text.replace(_HEAD_ENDS, comment + _HEAD_ENDS, 1))


def stop_s_of(text: bytes) -> float | None:
    """Return ExitTimeOut of a file, in seconds; None if it has none, or isn't a property list."""
    try:
        found = plistlib.loads(text)["ExitTimeOut"]
    except (plistlib.InvalidFileException, ValueError, LookupError, TypeError):
        return None
    return float(found) if isinstance(found, int | float) else None


@dataclass(frozen=True, slots=True)
class Launchd:
    """launchd for the user `uid`, whose home is `user_home`, or for the system where `uid` is None."""

    port: int
    uid: int | None
    user_home: Path
    daemons: Path = DAEMONS
    name: str = "launchd"

    @property
    def _domain(self) -> str:
        return "system" if self.uid is None else f"gui/{self.uid}"

    def _targets(self) -> dict[Role, str]:
        return {role: f"{self._domain}/{label(role, self.port)}" for role in ROLES}

    def _path(self, role: Role) -> Path:
        folder = self.daemons if self.uid is None else self.user_home / AGENTS
        return folder / f"{label(role, self.port)}.plist"

    def file(self, job: Job) -> ServiceFile:
        return ServiceFile(self._path(job.role), property_list(job))

    def paths(self) -> tuple[Path, ...]:
        return tuple(self._path(role) for role in ROLES)

    def load(self) -> Sequence[Command]:
        """Enable first: a job that somebody has disabled before can't be bootstrapped."""
        commands = []
        for role, target in self._targets().items():
            commands.append(Command((_LAUNCHCTL, "enable", target)))
            commands.append(Command((_LAUNCHCTL, "bootstrap", self._domain, str(self._path(role)))))
        return commands

    def unload(self) -> Sequence[Command]:
        """Wait for each to be gone: bootout returns before a job that drains has ended."""
        commands = []
        for target in reversed(self._targets().values()):
            commands.append(Command((_LAUNCHCTL, "bootout", target), _BOOTED_OUT))
            commands.append(Command((_LAUNCHCTL, "print", target), until_fails=True))
        return commands

    def forget(self) -> Sequence[Command]:
        return ()

    def is_loaded(self) -> Sequence[Command]:
        return [Command((_LAUNCHCTL, "print", target)) for target in self._targets().values()]

    def ended_by(self) -> str:
        sudo = "sudo " if self.uid is None else ""
        targets = reversed(self._targets().values())
        return "; ".join(f"{sudo}launchctl bootout {target}" for target in targets)

    def advice(self) -> Sequence[str]:
        when = "at each start of the Mac" if self.uid is None else "whenever this user logs in"
        return (
            f"launchd starts them {when}, and again whenever they end.",
            f"To end them until then: `{self.ended_by()}`.",
        )
