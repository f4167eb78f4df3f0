"""systemd: two units, and the systemctl commands that start and stop them. The journal rotates their logs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.services.jobs import DESCRIPTORS, ROLES, Job, Role
from ops.services.keeper import Command, ServiceFile
from ops.services.marks import COMMENT, sealed

SYSTEM_UNITS: Final = Path("/etc/systemd/system")
USER_UNITS: Final = Path(".config/systemd/user")
_LINGERING: Final = Path("/var/lib/systemd/linger")
_STOP_S: Final = re.compile(r"^TimeoutStopSec=(\d+(?:\.\d+)?)$", re.MULTILINE)
_RESTART_S: Final = 2
_WELL: Final = frozenset({0})
# systemctl's statuses for a unit that it doesn't know.
_STOPPED: Final = frozenset({0, 5})
_DISABLED: Final = frozenset({0, 1})

# What a user's own manager can do, too.
_HARDENING: Final = ("NoNewPrivileges=yes", "LockPersonality=yes", "RestrictSUIDSGID=yes")
# Not among them: PrivateTmp, because programs without it look for a long home's socket in the system's
# temporary folder; PrivateDevices, because of GPUs, nor
# ProtectClock, which closes devices as well; MemoryDenyWriteExecute, because MLX compiles kernels.
_SYSTEM_HARDENING: Final = (
    "ProtectSystem=full",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "RestrictRealtime=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "CapabilityBoundingSet=",
)


def unit_name(role: Role, port: int) -> str:
    return f"forebay-{port}-{role}.service"


def quoted(word: str) -> str:
    """Return a word as systemd reads it back: in quotes, with its own signs doubled or escaped."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def command_line(words: Sequence[str]) -> str:
    """Return a command as a unit has it: in all words but the program a dollar would begin a variable."""
    program, *rest = map(quoted, words)
    return " ".join([program, *(word.replace("$", "$$") for word in rest)])


def unit(job: Job) -> bytes:
    """Return a job's unit. The proxy's comes after the worker's, so that it is stopped before."""
    system = job.user is not None
    after = [unit_name("worker", job.port)] if job.role == "proxy" else []
    after += ["network.target"] if system else []
    lines = [
        f"# {COMMENT}; of settings {job.settings}",
        "[Unit]",
        f"Description=Forebay's {job.role}, port {job.port}",
        *([f"After={' '.join(after)}"] if after else []),
        "# However often it has ended, it is started again.",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={command_line(job.words)}",
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in job.variables.items()),
        f"WorkingDirectory={str(job.folder).replace('%', '%%')}",
        *([f"User={job.user}"] if system else []),
        "Restart=always",
        f"RestartSec={_RESTART_S}",
        f"TimeoutStopSec={job.stop_s}",
        "# The supervisor ends its worker itself; only what is left then is killed.",
        "KillMode=mixed",
        f"LimitNOFILE={DESCRIPTORS}",
        "UMask=0077",
        *_HARDENING,
        *(_SYSTEM_HARDENING if system else ()),
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if system else 'default.target'}",
        "",
    ]
    return sealed("\n".join(lines).encode())


def stop_s_of(text: bytes) -> float | None:
    """Return TimeoutStopSec of a unit, in seconds; None if it names none, or in other words."""
    found = _STOP_S.search(text.decode("utf-8", "replace"))
    return float(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Systemd:
    """systemd for a user whose home is `user_home`, or for the system where `user` is None."""

    port: int
    user: str | None
    user_home: Path
    system_units: Path = SYSTEM_UNITS
    name: str = "systemd"

    def _say(self, *words: str, fine: frozenset[int] = _WELL) -> Command:
        scope = () if self.user is None else ("--user",)
        return Command(("systemctl", *scope, *words), fine)

    def _names(self) -> tuple[str, ...]:
        return tuple(unit_name(role, self.port) for role in ROLES)

    def _folder(self) -> Path:
        return self.system_units if self.user is None else self.user_home / USER_UNITS

    def file(self, job: Job) -> ServiceFile:
        return ServiceFile(self._folder() / unit_name(job.role, job.port), unit(job))

    def paths(self) -> tuple[Path, ...]:
        return tuple(self._folder() / name for name in self._names())

    def load(self) -> Sequence[Command]:
        return (
            self._say("daemon-reload"),
            self._say("enable", *self._names()),
            self._say("restart", *self._names()),
        )

    def unload(self) -> Sequence[Command]:
        """One by one, and the proxy first: one may be missing, which is no trouble."""
        names = tuple(reversed(self._names()))
        stops = [self._say("stop", name, fine=_STOPPED) for name in names]
        return [*stops, *(self._say("disable", name, fine=_DISABLED) for name in names)]

    def forget(self) -> Sequence[Command]:
        return (self._say("daemon-reload"),)

    def is_loaded(self) -> Sequence[Command]:
        # One question each: is-active of several is content with one.
        return [self._say("is-active", "--quiet", name) for name in self._names()]

    def ended_by(self) -> str:
        begin = "sudo systemctl" if self.user is None else "systemctl --user"
        return f"{begin} stop {' '.join(reversed(self._names()))}"

    def advice(self) -> Sequence[str]:
        scope = "" if self.user is None else "--user "
        lines = [
            "systemd starts them again whenever they end.",
            f"To end them until they are started again: `{self.ended_by()}`.",
        ]
        if self.user is not None and not (_LINGERING / self.user).exists():
            lines.append(
                f"They run while {self.user} is logged in; always with `loginctl enable-linger {self.user}`."
            )
        logs = " ".join(f"-u {name}" for name in self._names())
        return [*lines, f"Their logs: `journalctl {scope}{logs}`."]
