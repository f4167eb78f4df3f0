"""How many bytes may still be written today: a worn drive costs more than a prompt that is computed again.

The count outlives restarts in a small file. It runs ahead of what was written, by steps, so that it needn't
be saved with each block; after a death what was left of a step counts as written.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from shared.limits import MIB

_STEP_BYTES_MAX: Final = 64 * MIB
_STEPS_A_DAY_MIN: Final = 16


@dataclass(frozen=True, slots=True)
class Spent:
    """What was written on a day, which is counted in days since 1970."""

    day: int
    nbytes: int


class DayBudget:
    """Counts what is written, and says what has to be saved before."""

    def __init__(self, bytes_a_day: int) -> None:
        self._bytes_a_day = bytes_a_day
        self._step_bytes = max(1, min(_STEP_BYTES_MAX, bytes_a_day // _STEPS_A_DAY_MIN))
        self._spent = Spent(0, 0)
        self._saved_bytes = 0

    def adopt(self, saved: Spent) -> None:
        """Go on from what a file says."""
        self._spent = saved
        self._saved_bytes = saved.nbytes

    def left(self, day: int) -> int:
        """Return how many bytes may be written on a day."""
        spent = self._spent.nbytes if day <= self._spent.day else 0
        return max(0, self._bytes_a_day - spent)

    def spend(self, day: int, nbytes: int) -> Spent | None:
        """Count bytes; return what has to be saved before they are written, None if enough is saved.

        On a new day the count begins anew. If the clock was set back, what was counted counts for the day
        that it shows now, so that neither an hour repeated nor a year too many sets the bound aside.
        """
        spent = self._spent.nbytes if day <= self._spent.day else 0
        if day != self._spent.day:
            self._saved_bytes = 0
        self._spent = Spent(day, spent + nbytes)
        if self._spent.nbytes <= self._saved_bytes:
            return None
        return Spent(day, self._spent.nbytes + self._step_bytes)

    def saved(self, ahead: Spent) -> None:
        """Take note that the file says so now."""
        self._saved_bytes = ahead.nbytes

    def exactly(self) -> Spent | None:
        """Return what was written, for an end in good order; None if that is what was saved last."""
        return None if self._spent.nbytes == self._saved_bytes else self._spent


def to_text(spent: Spent) -> bytes:
    """Return the file that says so."""
    numbers = f"{spent.day} {spent.nbytes}"
    return f"{numbers} {_digest(numbers)}\n".encode()


def from_text(text: bytes, today: int) -> Spent:
    """Return what a file says.

    A damaged one stands for more than any bound: since it is put in place as a whole, a crash can't have
    damaged it, and a drive that did is none to write much to. It costs a day without writes.
    """
    numbers, _, digest = text.decode("ascii", "replace").strip().rpartition(" ")
    if not numbers or digest != _digest(numbers):
        return Spent(today, 1 << 62)
    day, nbytes = numbers.split(" ")
    return Spent(int(day), int(nbytes))


def _digest(numbers: str) -> str:
    return hashlib.blake2b(numbers.encode(), digest_size=8, person=b"forebay written").hexdigest()
