"""What an earlier supervisor left behind in writing: the last epoch, and whether its life ended in order."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shared.limits import RUNG_MAX
from worker.journal import BecameReady, Ended, Ran, Record, Spawned, SupervisorStopped, read_records

EPOCH_FILE_NAME: Final = "epoch"
RUNG_AFTER_A_PANIC: Final = 2

# Each supervisor's epochs exceed those before it, so the newest records tell.
_RECORDS_READ_MAX: Final = 1000
# Beyond it lies no millisecond of any clock, and arithmetic of some readers ends.
_EPOCH_MAX: Final = 1 << 52

# The newest of these tells whether a life was under way. Its beginning may be long out of the journal.
_ENDS: Final = (Ended.kind, SupervisorStopped.kind)
_OF_A_LIFE: Final = (Spawned.kind, BecameReady.kind, Ran.kind, *_ENDS)

assert RUNG_AFTER_A_PANIC <= RUNG_MAX


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier supervisors of this worker mean for the next one.

    `lost_epoch` is their last life, if nobody saw its end; `machine_went_down` tells that the whole machine
    went down with it, so the worker may have taken the machine along: the next one starts on `rung`.
    """

    first_epoch: int
    lost_epoch: int | None = None
    machine_went_down: bool = False

    @property
    def rung(self) -> int:
        return RUNG_AFTER_A_PANIC if self.machine_went_down else 0


def look_back(folder: Path, *, port: int, now_ms: int, boot: str) -> Past:
    """Read what is left in the folder of logs.

    Epochs are milliseconds of the wall clock, since no life is that short. A clock that was set back must not
    let old epochs come again, so the first one exceeds whatever was written down, too.
    """
    records = _records(folder, port)
    epochs = [record.epoch for record in records if record.epoch is not None]
    last = max([_stored(folder), *(epoch for epoch in epochs if epoch < _EPOCH_MAX)])
    first_epoch = max(now_ms, last + 1)
    newest = next((record for record in records if record.kind in _OF_A_LIFE), None)
    if newest is None or newest.kind in _ENDS:
        return Past(first_epoch)
    return Past(first_epoch, newest.epoch, machine_went_down=newest.boot != boot)


def store_epoch(folder: Path, epoch: int) -> None:
    """Write an epoch down, all of it or nothing. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f"{EPOCH_FILE_NAME}.{os.getpid()}"
    try:
        draft.write_text(f"{epoch}\n", "ascii")
        draft.replace(folder / EPOCH_FILE_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def _records(folder: Path, port: int) -> list[Record]:
    try:
        return read_records(folder, _RECORDS_READ_MAX, port=port)
    except OSError:
        return []


def _stored(folder: Path) -> int:
    try:
        epoch = int((folder / EPOCH_FILE_NAME).read_text("ascii"))
    except (OSError, ValueError):
        return 0
    return epoch if 0 <= epoch < _EPOCH_MAX else 0
