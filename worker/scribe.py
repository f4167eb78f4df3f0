"""A thread that does what goes to disk, so that a disk that is stuck or full delays nobody else."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

_JOBS_MAX: Final = 1024


class Scribe:
    """Does jobs one after the other. A job deals with its own errors; none may raise.

    The thread is a daemon: if the disk never answers, the process can end all the same.
    """

    def __init__(self) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(_JOBS_MAX)
        self._thread = threading.Thread(target=self._work, name="scribe", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> bool:
        """Have a job done. False, without waiting, if too many wait already."""
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def close(self, timeout_s: float) -> bool:
        """End after the jobs that wait. False if they weren't done in time."""
        deadline = time.monotonic() + timeout_s
        try:
            self._jobs.put(None, timeout=timeout_s)
        except queue.Full:
            return False
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
