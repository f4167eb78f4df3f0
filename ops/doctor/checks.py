"""All checks in their groups, and how they are run: side by side, each for itself, within one deadline."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from ops.doctor import device as on_device
from ops.doctor import house, model_checks, places, pressure, readers
from ops.doctor import machine as on_machine
from ops.doctor.finding import Finding, good, warn
from shared.clock import Clock
from shared.config import Settings
from shared.limits import GIB
from shared.run_folder import RunFolder
from worker.launch import find_openblas

DEADLINE_S: Final = 9.5
_LOOK_S: Final = 0.05
_STALLS: Final = Path("/proc/pressure/memory")

# What reading a system may come to: none of these says that anything is wrong but the reading.
_UNREADABLE: Final = (OSError, subprocess.SubprocessError, ValueError, LookupError, psutil.Error)


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at. `problem` is why the settings couldn't be read; then `settings` are the defaults."""

    settings: Settings
    source: str = "settings"
    problem: str = ""

    @property
    def home(self) -> Path:
        return self.settings.home_folder

    @property
    def is_mac(self) -> bool:
        return sys.platform == "darwin"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: in which group it is shown, its name, and what reads and judges."""

    group: str
    name: str
    look: Callable[[Patient], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Looked:
    """What one check came to."""

    group: str
    findings: tuple[Finding, ...]


def look_at(
    patient: Patient, checks: Sequence[Check], clock: Clock, tick: Callable[[], None]
) -> list[Looked]:
    """Run all checks at once, each in a thread; one that doesn't end by the deadline is said to hang.

    The threads are daemons: a disk that doesn't answer can't keep this program from ending.
    """
    found: dict[str, tuple[Finding, ...]] = {}
    threads = [_started(check, patient, found) for check in checks]
    until_s = clock.now() + DEADLINE_S
    while any(thread.is_alive() for thread in threads) and clock.now() < until_s:
        tick()
        time.sleep(_LOOK_S)
    # A copy: who is late may still write.
    came = dict(found)
    return [
        Looked(check.group, came[check.name] if check.name in came else _without(check, thread))
        for check, thread in zip(checks, threads, strict=True)
    ]


def _started(check: Check, patient: Patient, found: dict[str, tuple[Finding, ...]]) -> threading.Thread:
    def run() -> None:
        found[check.name] = findings_of(check, patient)

    thread = threading.Thread(target=run, name=f"doctor {check.name}", daemon=True)
    thread.start()
    return thread


def findings_of(check: Check, patient: Patient) -> tuple[Finding, ...]:
    """Run one check; one whose reading fails says so, in a finding of its own."""
    try:
        return tuple(check.look(patient))
    except _UNREADABLE as problem:
        reason = str(problem) or type(problem).__name__
        return (warn(check.name, f"couldn't be checked: {reason}", "look at it by hand"),)


def _without(check: Check, thread: threading.Thread) -> tuple[Finding, ...]:
    says = "this check hangs" if thread.is_alive() else "this check broke; its traceback stands above"
    return (warn(check.name, f"couldn't be checked: {says}", "look at it by hand"),)


# --- the checks ---------------------------------------------------------------------------------------------


def _machine(_patient: Patient) -> list[Finding]:
    return [on_machine.judge_machine(readers.machine())]


def _python(_patient: Patient) -> list[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    return [on_machine.judge_python(version, readers.python_asked())]


def _packages(_patient: Patient) -> list[Finding]:
    asked = on_machine.applying(readers.requirements())
    return on_machine.judge_packages(
        asked, {each.name: readers.installed_version(each.name) for each in asked}
    )


def _clock(_patient: Patient) -> list[Finding]:
    return [on_machine.judge_clock(time.time())]


def _descriptors(_patient: Patient) -> list[Finding]:
    return [on_machine.judge_descriptors(*readers.descriptors())]


def _mlx(patient: Patient) -> list[Finding]:
    said = readers.probe()
    found = [on_device.judge_mlx(said, "Darwin" if patient.is_mac else "Linux")]
    if said.status == 0:
        device = on_device.Device.read(said)
        found += on_device.judge_limits(device)
        found += model_checks.fit(patient.settings, device)
    return found


def _wired(patient: Patient) -> list[Finding]:
    return [on_device.judge_wired(readers.sysctl("iogpu.wired_limit_mb"))] if patient.is_mac else []


def _openblas(_patient: Patient) -> list[Finding]:
    return [on_device.judge_openblas(find_openblas())] if sys.platform == "linux" else []


def _pressure(patient: Patient) -> list[Finding]:
    if patient.is_mac:
        return [pressure.judge_mac_level(readers.sysctl("kern.memorystatus_vm_pressure_level"))]
    if not _STALLS.exists():
        return [good("pressure", "this kernel doesn't tell of memory pressure")]
    return [pressure.judge_stalls(_STALLS.read_text("ascii"))]


def _swap(_patient: Patient) -> list[Finding]:
    return [pressure.judge_swap(psutil.swap_memory().used, psutil.virtual_memory().total)]


def _disk(patient: Patient) -> list[Finding]:
    wanted_bytes = int(patient.settings.worker.prefix_disk_gb * GIB)
    found = [places.judge_disk("home", patient.home, readers.free_bytes(patient.home), wanted_bytes)]
    models = model_checks.place_of_models(patient.settings)
    if models != patient.home:
        found.append(places.judge_disk("models", models, readers.free_bytes(models)))
    return found


def _port(patient: Patient) -> list[Finding]:
    return [places.judge_port(readers.port(patient.settings))]


def _socket(patient: Patient) -> list[Finding]:
    path = RunFolder(patient.home, patient.settings.port).admin_socket
    return [places.judge_socket(path, readers.path_bytes(path), patient.home, readers.socket_bytes_allowed())]


def _settings(patient: Patient) -> list[Finding]:
    return [house.judge_settings(patient.problem, patient.source)]


def _door(patient: Patient) -> list[Finding]:
    return [house.judge_door(patient.settings.host, *readers.door(patient.settings))]


def _keys(patient: Patient) -> list[Finding]:
    entry, problem = readers.key_file(patient.settings)
    return [house.judge_keys(entry, problem)]


def _home(patient: Patient) -> list[Finding]:
    return [house.judge_home(readers.entry(patient.home), patient.home, readers.user())]


def _service(patient: Patient) -> list[Finding]:
    return house.judge_keepers(readers.keepers(patient.settings.port), patient.settings.proxy.drain_s)


CHECKS: Final = (
    Check("Machine", "machine", _machine),
    Check("Machine", "python", _python),
    Check("Machine", "packages", _packages),
    Check("Machine", "clock", _clock),
    Check("Machine", "descriptors", _descriptors),
    Check("MLX and memory", "mlx", _mlx),
    Check("MLX and memory", "wired_limit", _wired),
    Check("MLX and memory", "openblas", _openblas),
    Check("MLX and memory", "pressure", _pressure),
    Check("MLX and memory", "swap", _swap),
    Check("Model", "model", lambda patient: model_checks.files(patient.settings)),
    Check("Model", "rows", lambda patient: model_checks.rows(patient.settings)),
    Check("Settings and home", "settings", _settings),
    Check("Settings and home", "door", _door),
    Check("Settings and home", "keys", _keys),
    Check("Settings and home", "home", _home),
    Check("Settings and home", "service", _service),
    Check("Places", "disk", _disk),
    Check("Places", "port", _port),
    Check("Places", "socket", _socket),
)
