"""How cautious the supervisor is about memory: down with each death for want of it, up with healthy time.

Pure. What each rung means is the proxy's affair, but for one thing: a worker that starts on the lowest keeps
nothing of prompts.
"""

from shared.limits import RUNG_MAX


class Ladder:
    """Rung 0 is the top, where nothing is held back; RUNG_MAX is the lowest."""

    def __init__(self, climb_s: float, rung: int = 0) -> None:
        assert 0 <= rung <= RUNG_MAX, "no such rung"
        self._climb_s = climb_s
        self._healthy_s = 0.0
        self._rung = rung

    @property
    def rung(self) -> int:
        return self._rung

    @property
    def keeps_prefixes(self) -> bool:
        """Whether a worker that starts now may keep beginnings of prompts, which takes memory."""
        return self._rung < RUNG_MAX

    def step_down(self) -> bool:
        """Take note of a death for want of memory. False on the lowest rung: caution alone doesn't help."""
        self._healthy_s = 0.0
        if self._rung == RUNG_MAX:
            return False
        self._rung += 1
        return True

    def pass_healthy(self, seconds: float) -> None:
        """Let a worker be healthy for so long; deaths of other kinds neither count nor set back."""
        if self._rung == 0:
            return
        self._healthy_s += seconds
        if self._healthy_s >= self._climb_s:
            self._healthy_s = 0.0
            self._rung -= 1
