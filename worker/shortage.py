"""What the supervisor sees of the machine's memory: after a death it is too late to look."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

from worker.death import MemoryEvidence

_LOOKS_KEPT: Final = 8
# Linux counts here how often it killed for want of memory.
_LINUX_COUNTS: Final = Path("/proc/vmstat")


def _available_share() -> float:
    """Return what the system can still give, of all it has; 1 where it doesn't say."""
    try:
        memory = psutil.virtual_memory()
    except (psutil.Error, OSError, RuntimeError):
        return 1.0
    return memory.available / memory.total if memory.total else 1.0


def _oom_kills() -> int:
    try:
        lines = _LINUX_COUNTS.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


class ShortageWatch:
    """Looks now and then, and remembers the last few looks."""

    def __init__(
        self,
        available_share: Callable[[], float] = _available_share,
        oom_kills: Callable[[], int] = _oom_kills,
    ) -> None:
        self._available_share = available_share
        self._oom_kills = oom_kills
        self._looks: deque[tuple[float, int]] = deque(maxlen=_LOOKS_KEPT)

    def look(self) -> None:
        self._looks.append((self._available_share(), self._oom_kills()))

    def evidence(self) -> MemoryEvidence:
        """Return the worst that was seen, and whether the system killed since the oldest look."""
        if not self._looks:
            return MemoryEvidence()
        kills = self._oom_kills() - self._looks[0][1]
        return MemoryEvidence(min(share for share, _ in self._looks), kills)
