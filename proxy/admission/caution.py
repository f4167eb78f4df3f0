"""What a worker is given less of after deaths for want of memory: the rungs of the supervisor's ladder."""

from dataclasses import dataclass
from typing import Final

from shared.limits import RUNG_MAX


@dataclass(frozen=True, slots=True)
class Caution:
    """Shares of what a worker offers. `overcommits` is whether a row may reserve less than it may take."""

    budget_share: float
    slots_share: float
    quantum_share: float
    overcommits: bool

    def slots(self, offered: int) -> int:
        """Return how many rows may run at a time, at least one."""
        return max(1, int(offered * self.slots_share))


RUNGS: Final = (
    Caution(1.0, 1.0, 1.0, True),
    Caution(0.9, 1.0, 1.0, False),
    Caution(0.9, 0.5, 0.5, False),
    Caution(0.9, 0.0, 0.5, False),
)

assert len(RUNGS) == RUNG_MAX + 1
