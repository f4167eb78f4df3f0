"""How long until a newcomer would start, from what past answers took. Seconds."""

from dataclasses import dataclass
from typing import Final

_ALPHA: Final = 0.1
_ANSWER_S_UNSEEN: Final = 5.0
_RESTART_S_UNSEEN: Final = 10.0


@dataclass(slots=True)
class Estimate:
    """Moving averages of an answer's time in the worker and of a restart's time to ready."""

    answer_s: float = _ANSWER_S_UNSEEN
    restart_s: float = _RESTART_S_UNSEEN

    def answer_took(self, seconds: float) -> None:
        self.answer_s += _ALPHA * (seconds - self.answer_s)

    def restart_took(self, seconds: float) -> None:
        self.restart_s += 0.5 * (seconds - self.restart_s)

    def wait_s(self, ahead: int, slots: int) -> float:
        """Return the wait of one who comes behind `ahead` others: rounds of `slots` answers at a time."""
        return self.answer_s * (ahead + 1) / max(1, slots)
