"""The planned end: SIGTERM lets the steps under way be read and sent; a second one ends at once."""

from collections.abc import Callable


class PlannedEnd:
    """A flag that SIGTERM sets. `exit_now` ends the process: a second time, and while nothing is served yet.

    `ask` runs in the thread that waits for signals, so it works while the loop's thread is busy.
    """

    def __init__(self, exit_now: Callable[[], object]) -> None:
        self._exit_now = exit_now
        self._serving = False
        self.asked = False

    def serve(self) -> None:
        """From now on there may be tokens to send: the loop ends by itself when it is asked to."""
        self._serving = True

    def ask(self) -> None:
        if self.asked or not self._serving:
            self._exit_now()
        self.asked = True
