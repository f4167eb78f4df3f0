"""Which run of the machine this is: an identity that a reboot changes and a clock that is set doesn't."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

_LINUX_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_MAC_COMMAND: Final = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
_TIMEOUT_S: Final = 5.0


def boot_identity() -> str:
    """Return what the system itself calls this run, or the minute it began where it has no name for it."""
    try:
        said = _mac_identity() if sys.platform == "darwin" else _LINUX_FILE.read_text("ascii").strip()
    except (OSError, ValueError, subprocess.SubprocessError):
        said = ""
    return said or f"minute {int(psutil.boot_time() // 60)}"


def _mac_identity() -> str:
    return subprocess.run(  # noqa: S603 (a fixed command, nothing of it comes from outside)
        _MAC_COMMAND, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    ).stdout.strip()
