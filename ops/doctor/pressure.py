"""Verdicts on memory pressure: macOS's own level, Linux's pressure stall information, swap in use."""

import re
from typing import Final

from ops.doctor.finding import Finding, bad, gibibytes, good, warn

_END_OTHERS: Final = "end what else takes memory, or give the worker less: memory_fraction in [worker]"
# macOS: DISPATCH_MEMORYPRESSURE_NORMAL, _WARN and _CRITICAL.
_MAC_LEVELS: Final = {1: "normal", 2: "warning", 4: "critical"}
_FULL: Final = re.compile(r"^full avg10=(\d+(?:\.\d+)?)\b", re.MULTILINE)
# Percent of the last ten seconds in which nothing that wanted to could run for want of memory.
_STALLED_WARN: Final = 1.0
_STALLED_BAD: Final = 10.0
_SWAP_SHARE: Final = 0.05


def judge_mac_level(text: str) -> Finding:
    """Judge what sysctl says of kern.memorystatus_vm_pressure_level; ValueError if it is no known level."""
    level = int(text.strip())
    if level not in _MAC_LEVELS:
        raise ValueError(f"macOS says a level of memory pressure that isn't known: {level}")
    says = f"memory pressure is {_MAC_LEVELS[level]}"
    if level == 1:
        return good("pressure", says)
    return warn("pressure", says, _END_OTHERS) if level == 2 else bad("pressure", says, _END_OTHERS)


def judge_stalls(text: str) -> Finding:
    """Judge /proc/pressure/memory; ValueError if it isn't that."""
    found = _FULL.search(text)
    if found is None:
        raise ValueError("/proc/pressure/memory has no line that begins with full avg10=")
    share = float(found[1])
    says = f"memory pressure: everything stood still for {share:g} % of the last ten seconds"
    if share < _STALLED_WARN:
        return good("pressure", says)
    return (warn if share < _STALLED_BAD else bad)("pressure", says, _END_OTHERS)


def judge_swap(used_bytes: int, memory_bytes: int) -> Finding:
    says = f"{gibibytes(used_bytes)} of swap are in use"
    if used_bytes > _SWAP_SHARE * memory_bytes:
        return warn("swap", says, f"a model that is swapped answers very slowly: {_END_OTHERS}")
    return good("swap", says)
