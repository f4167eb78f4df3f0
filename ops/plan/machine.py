"""The machine that is planned for: this one as its device reports it, or a Mac of which a size is told."""

from dataclasses import dataclass
from typing import Final

from shared.limits import GIB
from worker.memory import DeviceReport, device_report

# What Metal recommends as a working set: about two thirds of smaller memories, three quarters of larger ones.
# Known from reports, not measured: a Mac says it itself (`max_recommended_working_set_size`).
_SMALL_BYTES_MAX: Final = 36 * GIB
MAC_SIZES_GIB: Final = (16, 24, 32, 36, 48, 64, 96, 128, 192, 256, 512)


@dataclass(frozen=True, slots=True)
class Target:
    """A device to plan for. `is_metal` says that it attends as Metal does; `assumed` what nobody measured."""

    device: DeviceReport
    is_metal: bool
    assumed: str = ""


def working_set_bytes(memory_bytes: int) -> int:
    """Return the working set that Metal recommends on a Mac of so much memory, by rule of thumb."""
    if memory_bytes <= _SMALL_BYTES_MAX:
        return memory_bytes * 2 // 3
    return memory_bytes * 3 // 4


def mac_of(memory_bytes: int) -> Target:
    """Return a Mac of a size."""
    share = "2/3" if memory_bytes <= _SMALL_BYTES_MAX else "3/4"
    name = f"a Mac of {memory_bytes / GIB:g} GiB"
    device = DeviceReport(name, working_set_bytes(memory_bytes), memory_bytes, is_gpu=True)
    return Target(device, is_metal=True, assumed=f"its working set is taken to be {share} of its memory")


def this_machine() -> Target:
    """Return the machine that this runs on, as the worker will find it."""
    device = device_report()
    is_metal = device.is_gpu and device.shares_memory and bool(device.working_set_bytes)
    return Target(device, is_metal)
