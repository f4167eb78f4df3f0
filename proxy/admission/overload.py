"""When a wait has become a standing queue: CoDel's idea, at the pace of answers.

Nichols and Jacobson, "Controlling Queue Delay" (2012): a queue is harmful when even its shortest wait stays
above a target for a whole interval. From then on a lane admits only what would wait no longer than the
target, and serves a key's newest first, until one answer has started within the target again.
"""


class Overload:
    """One lane's state. A target of None means that the lane's waits are nobody's concern."""

    def __init__(self, target_s: float | None = None, interval_s: float = 10.0) -> None:
        self._target_s = target_s
        self._interval_s = interval_s
        self._above_since: float | None = None
        self.lasting = False

    def started(self, wait_s: float, now: float) -> None:
        """Take note of how long an answer waited for its start."""
        if self._target_s is None or wait_s <= self._target_s:
            self._above_since = None
            self.lasting = False
        elif self._above_since is None:
            self._above_since = now
        elif now - self._above_since >= self._interval_s:
            self.lasting = True

    def configure(self, target_s: float | None, interval_s: float) -> None:
        """Take other settings; what is known of the queue stays."""
        self._target_s = target_s
        self._interval_s = interval_s
        self.lasting = self.lasting and target_s is not None

    def admissible_wait_s(self, deadline_s: float) -> float:
        """Return the longest wait that a newcomer may be admitted to."""
        if self.lasting and self._target_s is not None:
            return min(deadline_s, self._target_s)
        return deadline_s
