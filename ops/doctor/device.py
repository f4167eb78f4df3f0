"""Verdicts on MLX, on what Metal allows, and on the BLAS that MLX has on Linux."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from ops.doctor.finding import Finding, bad, gibibytes, good, warn

_WORKING_SET_SHARE_LOW: Final = 0.5
# Metal says 499000; a model with many rows holds some tens of thousands of buffers.
_BUFFERS_LOW: Final = 100_000


@dataclass(frozen=True, slots=True)
class Said:
    """How a program that was run for its words came out. `status` is None if it didn't end in time."""

    status: int | None
    out: str
    err: str = ""

    @property
    def ending(self) -> str:
        """How it ended, with its last words."""
        last = next((line for line in reversed(self.err.splitlines()) if line.strip()), "it said nothing")
        if self.status is None:
            return "did not answer in time"
        if self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name}: {last}"
        return f"ended with status {self.status}: {last}"


@dataclass(frozen=True, slots=True)
class Device:
    """What MLX says of its default device, in bytes; 0 where it says nothing."""

    version: str
    name: str
    is_gpu: bool
    metal: bool
    working_set_bytes: int
    memory_bytes: int
    resource_limit: int

    @property
    def usable_bytes(self) -> int:
        return self.working_set_bytes or self.memory_bytes

    @classmethod
    def read(cls, said: Said) -> Self:
        """Read what the probe printed; ValueError if it isn't that."""
        told: Any = json.loads(said.out)
        if not isinstance(told, dict) or set(told) != set(cls.__slots__):
            raise ValueError("the probe of MLX printed something else than a device")
        return cls(**told)


def judge_mlx(said: Said, system: str) -> Finding:
    """Judge MLX by how its probe came out, which computes something with it in a process of its own."""
    if said.status is None:
        return bad("mlx", f"MLX {said.ending}", "a GPU may hang: end what uses it, or reboot, and try again")
    if said.status:
        return bad("mlx", f"MLX can't be used; it {said.ending}", "mend that, or install Forebay again")
    device = Device.read(said)
    if device.is_gpu:
        return good("mlx", f"MLX {device.version} computes on the GPU of {device.name}")
    says = f"MLX {device.version} computes on the CPU"
    if system == "Darwin":
        return warn("mlx", says, "it sees no Metal device: a virtual machine? It will be very slow")
    return good("mlx", f"{says}: right for trials and tests, slow for a team")


def judge_limits(device: Device) -> list[Finding]:
    """Judge what Metal says that it can hold; nothing where there is no Metal."""
    if not device.metal or not device.is_gpu:
        return []
    share = device.working_set_bytes / max(1, device.memory_bytes)
    says = (
        f"Metal can hold {gibibytes(device.working_set_bytes)} of {gibibytes(device.memory_bytes)}"
        f" ({share:.0%}) without swapping"
    )
    low = share < _WORKING_SET_SHARE_LOW
    working_set = (
        warn("working_set", says, "Macs with little memory allow less; is iogpu.wired_limit_mb set low?")
        if low
        else good("working_set", says)
    )
    return [working_set, _buffers(device.resource_limit)]


def _buffers(limit: int) -> Finding:
    says = f"Metal allows {limit} buffers at a time" if limit else "Metal names no limit of buffers"
    if 0 < limit < _BUFFERS_LOW:
        return warn("buffers", says, "fewer than is usual: lower slots in [worker] if workers die of it")
    return good("buffers", says)


def judge_wired(text: str) -> Finding:
    """Judge sysctl's iogpu.wired_limit_mb, in MB; 0 is macOS's own limit. ValueError if it's no number."""
    limit_mb = int(text.strip())
    if limit_mb == 0:
        return good("wired_limit", "iogpu.wired_limit_mb is macOS's own")
    return warn(
        "wired_limit",
        f"iogpu.wired_limit_mb is set to {limit_mb}",
        "panics of the whole machine are reported with it: `sudo sysctl iogpu.wired_limit_mb=0`",
    )


def judge_openblas(found: Path | None) -> Finding:
    if found is not None:
        return good("openblas", f"OpenBLAS is there, and workers get it ({found})")
    return warn(
        "openblas",
        "OpenBLAS isn't installed, and MLX's products on the CPU take many times as long",
        "install it (Debian: libopenblas0-pthread), then `forebay restart worker`",
    )
