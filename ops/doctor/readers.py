"""Thin readers: each fetches one recording for the verdicts, and may take as long as its own timeout.

They raise OSError, subprocess.SubprocessError, ValueError or psutil.Error where something can't be read.
"""

import os
import platform
import resource
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Final

import psutil

from ops.doctor.device import Said
from ops.doctor.house import Entry, Keeper
from ops.doctor.machine import Machine
from ops.doctor.places import Port
from ops.gateway import Gateway, GatewayAbsent, OrderRefused, answers
from ops.services.installed import installed
from ops.up import refuse_taken_port
from proxy.authenticate import refuse_open_door
from proxy.keys import KEY_FILE_NAME, KeyFile
from shared.config import Settings
from shared.errors import SettingsError

_SYSCTL: Final = "/usr/sbin/sysctl"
_COMMAND_S: Final = 3.0
PROBE_S: Final = 8.0
_SAID_CHARS_MAX: Final = 16_384


def said(words: tuple[str, ...], timeout_s: float = _COMMAND_S) -> Said:
    """Run a program for its words."""
    try:
        done = subprocess.run(  # noqa: S603 (fixed commands; of arguments only a model's folder is chosen)
            words, capture_output=True, text=True, timeout=timeout_s, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return Said(None, "")
    return Said(done.returncode, done.stdout[:_SAID_CHARS_MAX], done.stderr[-_SAID_CHARS_MAX:])


def sysctl(name: str) -> str:
    """Return what macOS says of a name; OSError if it doesn't know it or doesn't answer."""
    heard = said((_SYSCTL, "-n", name))
    if heard.status != 0:
        raise OSError(f"sysctl {name} {heard.ending}")
    return heard.out.strip()


def probe(*words: str) -> Said:
    return said((sys.executable, "-P", "-m", "ops.doctor.probe", *words), PROBE_S)


def machine() -> Machine:
    system = platform.system()
    mac = system == "Darwin"
    return Machine(
        system=system,
        chip=sysctl("machdep.cpu.brand_string") if mac else _linux_chip(),
        architecture=platform.machine(),
        cores=os.cpu_count() or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        release=platform.mac_ver()[0] if mac else platform.release(),
        translated=mac and said((_SYSCTL, "-n", "sysctl.proc_translated")).out.strip() == "1",
    )


def _linux_chip() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def requirements() -> list[str]:
    return metadata("forebay").get_all("Requires-Dist") or []


def python_asked() -> str:
    return str(metadata("forebay")["Requires-Python"])


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def entry(path: Path) -> Entry | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return Entry(path, status.st_mode, status.st_uid)


def free_bytes(place: Path) -> int:
    """Return what is free on the disk of a folder, or of the nearest one above that is there."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def port(settings: Settings) -> Port:
    host, number = settings.host, settings.port
    try:
        status = Gateway(settings).status()
    except (GatewayAbsent, OrderRefused):
        pass
    else:
        doing = "it drains" if status.draining else f"its worker is {status.worker.status}"
        return Port(host, number, gateway=f"{doing}, {answers(status.live)} live")
    try:
        refuse_taken_port(host, number)
    except SettingsError as problem:
        reason = str(problem.__cause__) if problem.__cause__ is not None else str(problem)
        if isinstance(problem.__cause__, OSError) and problem.__cause__.strerror:
            reason = problem.__cause__.strerror
        return Port(host, number, problem=reason, holder=_holder(number))
    return Port(host, number)


def _holder(number: int) -> str:
    """Return who listens on a port, in words, or "" if the system doesn't tell this user."""
    try:
        listening = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return _holder_by_lsof(number)
    for each in listening:
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == number and each.pid:
            return f"{psutil.Process(each.pid).name()} (process {each.pid})"
    return ""


def _holder_by_lsof(number: int) -> str:
    """Ask lsof, which macOS has; its -F output has a line p PID and a line c COMMAND."""
    try:
        lines = said(("/usr/sbin/lsof", "-nP", f"-iTCP:{number}", "-sTCP:LISTEN", "-Fpc")).out.splitlines()
    except OSError:
        return ""
    told = {line[0]: line[1:] for line in reversed(lines) if line}
    return f"{told['c']} (process {told['p']})" if {"p", "c"} <= told.keys() else ""


def socket_bytes_allowed() -> int:
    """Return how many bytes a socket's path may have here, with the closing zero."""
    return 104 if sys.platform == "darwin" else 108


def path_bytes(path: Path) -> int:
    return len(os.fsencode(path))


def descriptors() -> tuple[int, int, int]:
    """Return the limits of open files, now and at most, and the number that stands for none."""
    return (*resource.getrlimit(resource.RLIMIT_NOFILE), resource.RLIM_INFINITY)


def user() -> int:
    return os.getuid()


def door(settings: Settings) -> tuple[int | None, str]:
    """Return how many keys there are, and why the gateway wouldn't start with them, or "".

    None instead of a number where the key file can't be read.
    """
    try:
        records = KeyFile(settings.home_folder / KEY_FILE_NAME).read()
    except SettingsError:
        return None, ""  # The check of the key file says why.
    try:
        refuse_open_door(settings.host, records)
    except SettingsError as problem:
        return len(records), str(problem)
    return len(records), ""


def key_file(settings: Settings) -> tuple[Entry | None, str]:
    """Return the key file's entry, and why its keys can't be read, or ""."""
    path = settings.home_folder / KEY_FILE_NAME
    try:
        KeyFile(path).read()
    except SettingsError as problem:
        return entry(path), str(problem)
    return entry(path), ""


def keepers(number: int) -> list[Keeper]:
    """Return the services that are installed for a port."""
    return [Keeper(each.path, each.stop_s, each.intact) for each in installed(number, sys.platform)]
