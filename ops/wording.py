"""How numbers, spans and foreign text look in a terminal."""

import re
from typing import Final

_MEBIBYTE: Final = 1 << 20
_GIBIBYTE: Final = 1 << 30
_GAPS: Final = re.compile(r"(?<=\S) {3,}")
_COLOURS: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def printable(text: str) -> str:
    """Return it without what could steer a terminal, and without a log's wide columns."""
    plain = _COLOURS.sub("", text).expandtabs()
    return _GAPS.sub("  ", "".join(char if char.isprintable() else " " for char in plain))


def span(seconds: float) -> str:
    """Return a time as people say it: 12.3 s, 4 min 05 s, 2 h 07 min, 3 d 4 h."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days} d {hours_left} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest_s:02} s"


def size(held_bytes: int) -> str:
    if held_bytes < _GIBIBYTE:
        return f"{held_bytes / _MEBIBYTE:.0f} MiB"
    return f"{held_bytes / _GIBIBYTE:.2f} GiB"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
