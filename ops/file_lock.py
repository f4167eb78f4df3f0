"""A lock between processes that ends with its holder, however that ends."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from ops.screen import Screen

_POLL_S: Final = 0.1


@contextmanager
def held(path: Path, screen: Screen, waiting_for: str) -> Iterator[None]:
    """Hold the lock `path`; while another process has it, show `waiting_for`.

    The file stays where it is afterwards: removing it would let two processes lock two different files.
    """
    with path.open("a") as file:
        if not _taken(file):
            with screen.step(waiting_for) as step:
                while not _taken(file):
                    step.tick()
                    time.sleep(_POLL_S)
        yield


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
