"""What a check finds: a verdict, what was read, and what to do about it."""

from dataclasses import dataclass
from typing import Final, Literal

from shared.limits import GIB

Verdict = Literal["good", "warn", "bad"]

GB: Final = 10**9


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's. `check` is a stable name for scripts; `do` is empty where all is well."""

    check: str
    verdict: Verdict
    says: str
    do: str = ""


def good(check: str, says: str) -> Finding:
    return Finding(check, "good", says)


def warn(check: str, says: str, do: str) -> Finding:
    return Finding(check, "warn", says, do)


def bad(check: str, says: str, do: str) -> Finding:
    return Finding(check, "bad", says, do)


def gigabytes(size_bytes: float) -> str:
    """Return bytes on a disk in words, as disks are sold: 10^9 of them are a GB."""
    return f"{size_bytes / GB:.1f} GB"


def gibibytes(size_bytes: float) -> str:
    """Return bytes of memory in words, as memory is sold: 2^30 of them are a GiB."""
    return f"{size_bytes / GIB:.1f} GiB"
