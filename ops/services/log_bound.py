"""A service's log under launchd, kept bounded by the service itself: put aside once, and cut.

launchd opens the file before the process begins, and never looks at it again. Only whoever writes can see to
it that it doesn't grow for ever without losing its place in it.
"""

import contextlib
import fcntl
import os
import shutil
import threading
from pathlib import Path
from typing import Final

LOG_BYTES_MAX: Final = 10_000_000
_LOOK_S: Final = 10.0
_OUTPUTS: Final = (1, 2)


def keep_bounded(log: Path, look_s: float = _LOOK_S) -> threading.Event:
    """Look after this process's log from a thread, until the event that is returned is set."""
    for descriptor in _OUTPUTS:
        append_always(descriptor)
    ended = threading.Event()

    def look() -> None:
        bound(log)
        while not ended.wait(look_s):
            bound(log)

    threading.Thread(target=look, name="log bound", daemon=True).start()
    return ended


def append_always(descriptor: int) -> None:
    """Have every write go to the file's end, wherever that is by then: a cut file would begin with a hole."""
    with contextlib.suppress(OSError):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)


def bound(log: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Put a log that has grown beyond `bytes_max` aside as `.1`, over the last one, and cut it.

    What is written between the copy and the cut is lost: some lines in ten megabytes. On a full disk the copy
    is given up, and the log is cut all the same.
    """
    try:
        if log.stat().st_size <= bytes_max:
            return False
    except OSError:
        return False
    aside = log.with_name(f"{log.name}.1")
    try:
        shutil.copyfile(log, aside)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
    with contextlib.suppress(OSError):
        os.truncate(log, 0)
        return True
    return False
