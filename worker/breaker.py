"""The breaker: too many deaths in too short a time, and no worker is started for a while; then one is tried.

Pure: every time is given, in seconds of one monotonic clock. Deaths are forgotten only as they grow old, not
when the breaker closes: apart from trials, no window sees more than restarts_max + 1 restarts.
"""

from collections import deque

from shared.config import WorkerSettings
from shared.messages import Breaker as BreakerState


class Breaker:
    """Closed, workers are restarted; open, none is; half open, one is on trial."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._deaths: deque[float] = deque(maxlen=settings.restarts_max + 1)
        self._state: BreakerState = "closed"
        self._until = 0.0

    @property
    def state(self) -> BreakerState:
        return self._state

    def count_death(self, at: float) -> None:
        """Take note of an end that nobody planned: one too many opens, and so does the end of a trial."""
        self._deaths.append(at)
        while at - self._deaths[0] >= self._settings.restarts_window_s:
            self._deaths.popleft()
        if self._state == "half_open" or len(self._deaths) > self._settings.restarts_max:
            self.open(at)

    def open(self, at: float) -> None:
        """Start no worker for breaker_open_s, whatever was counted."""
        self._state = "open"
        self._until = at + self._settings.breaker_open_s

    def rest_s(self, at: float) -> float:
        """Return how long it stays open."""
        return max(0.0, self._until - at) if self._state == "open" else 0.0

    def begin_trial(self) -> None:
        """Take note that a worker is started: if the breaker was open, that is a trial."""
        if self._state == "open":
            self._state = "half_open"

    def pass_trial(self) -> None:
        """Close after a trial that went well."""
        if self._state == "half_open":
            self._state = "closed"
