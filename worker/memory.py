"""How much memory there is, and how much of it KV caches may take. Decisions are pure; reports come in.

The working set is what the device says it can hold without swapping. On Metal that is
`max_recommended_working_set_size`; where a device reports none (the CPU build), it is the machine's memory. A
card's is what other processes have left of it when the worker begins.
No wired limit is ever set: whole-machine panics are reported with it, and none without.
"""

import functools
import gc
from dataclasses import dataclass, replace
from typing import Final

import mlx.core as mx
import psutil

from shared.limits import MIB
from shared.readings import MemoryReading

_CACHE_LIMIT_SHARE: Final = 0.05
_HEADROOM_SHARE_WARN: Final = 0.2
_SAME_SHARE: Final = 0.01
_KEPT_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What the device says of itself, in bytes; 0 where it says nothing.

    `resource_limit` is how many buffers may be alive at a time, which Metal bounds. `shares_memory` says
    whether the device's memory is the system's: that of a card is its own, and `free_bytes` is what other
    processes have left of it. `is_gpu` says whether it is one.
    """

    name: str
    working_set_bytes: int
    memory_bytes: int
    resource_limit: int = 0
    shares_memory: bool = True
    free_bytes: int = 0
    is_gpu: bool = False

    @property
    def usable_bytes(self) -> int:
        most_bytes = self.working_set_bytes or self.memory_bytes
        return min(most_bytes, self.free_bytes or most_bytes)

    @property
    def alone(self) -> "DeviceReport":
        """The device as it is when no other process holds any of its memory."""
        return replace(self, free_bytes=0)


@dataclass(frozen=True, slots=True)
class Budget:
    """How the usable memory is shared out. `kv_bytes` may be 0: then nothing can be served."""

    kv_bytes: int
    headroom_share: float
    warning: str


def device_report() -> DeviceReport:
    """Ask MLX's default device, and the system where the device is silent.

    Before anything is loaded: what this process holds itself would count as taken by others.
    """
    info = dict(mx.device_info()) if mx.default_device() == mx.gpu else {}
    return report_of(info, system_bytes())


def report_of(info: dict[str, str | int], system_bytes: int) -> DeviceReport:
    """Read a device's own dictionary: Metal's and CUDA's have different keys."""
    memory = int(info.get("memory_size") or info.get("total_memory") or system_bytes)
    return DeviceReport(
        name=str(info.get("device_name", "cpu")),
        working_set_bytes=int(info.get("max_recommended_working_set_size", 0)),
        memory_bytes=memory,
        resource_limit=int(info.get("resource_limit", 0)),
        shares_memory="total_memory" not in info,
        # A chip without memory of its own calls pages of files taken, which the system would give back.
        free_bytes=0 if _same(memory, system_bytes) else int(info.get("free_memory", 0)),
        is_gpu=bool(info),
    )


def _same(memory_bytes: int, system_bytes: int) -> bool:
    return abs(memory_bytes - system_bytes) <= _SAME_SHARE * system_bytes


def limit_bytes(report: DeviceReport, fraction: float) -> int:
    """Return what the worker may hold, all told."""
    return int(fraction * report.usable_bytes)


def budget(
    report: DeviceReport, fraction: float, configured_mb: int | None, weights_bytes: int, reserve_bytes: int
) -> Budget:
    """Share out fraction x usable, less weights and what is set aside beside; at most `configured_mb`."""
    limit = limit_bytes(report, fraction)
    free = max(0, limit - weights_bytes - reserve_bytes)
    kv_bytes = free if configured_mb is None else min(free, configured_mb * MIB)
    headroom = free / limit if limit else 0.0
    warning = ""
    if headroom < _HEADROOM_SHARE_WARN:
        warning = (
            f"only {free // MIB} MiB of {limit // MIB} MiB are left for KV caches after "
            f"{weights_bytes // MIB} MiB of weights and {reserve_bytes // MIB} MiB for forward passes"
        )
    return Budget(kv_bytes, headroom, warning)


def kept_bytes(budget: Budget, configured_mb: int | None) -> int:
    """Return how much of the budget for KV caches may be kept in case that somebody begins with it."""
    if configured_mb is None:
        return int(_KEPT_SHARE * budget.kv_bytes)
    return min(budget.kv_bytes, configured_mb * MIB)


def bound_buffer_cache(report: DeviceReport) -> None:
    """Bound the buffers MLX keeps for reuse; unbounded, they count against the machine for ever."""
    mx.set_cache_limit(int(_CACHE_LIMIT_SHARE * report.usable_bytes))


def reading() -> MemoryReading:
    """Read what MLX and the process hold now, in about 15 microseconds."""
    return MemoryReading(
        active_bytes=int(mx.get_active_memory()),
        cache_bytes=int(mx.get_cache_memory()),
        peak_bytes=int(mx.get_peak_memory()),
        footprint_bytes=int(_this_process().memory_info().rss),
    )


def system_bytes() -> int:
    """Return the machine's memory."""
    return int(psutil.virtual_memory().total)


def available_bytes() -> int:
    """Return what any program could still get without swapping.

    On macOS psutil counts inactive pages as available: some of them have to be compressed or written first,
    so the figure is on the high side there.
    """
    return int(psutil.virtual_memory().available)


def give_back(*, collect: bool) -> None:
    """Let go of the buffers that MLX keeps for reuse; before that, of cycles that nothing refers to."""
    if collect:
        gc.collect()
    mx.clear_cache()


@functools.cache
def _this_process() -> psutil.Process:
    return psutil.Process()
