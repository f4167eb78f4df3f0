"""What a plan is asked, and what it says: plain records that go through a pipe as JSON."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Asked:
    """What the operator asks. None: as much as fits, at most the default of slots and the model's context.

    `memory_bytes` None means this machine. `memory_fraction` to `share_tokens` are the worker's settings.
    """

    memory_bytes: int | None
    context_tokens: int | None
    streams: int | None
    kv_bits: int
    memory_fraction: float
    share_tokens: int


@dataclass(frozen=True, slots=True)
class Source:
    """A model as it is told: its config.json as read, the index of its weights, or a folder that has them."""

    name: str
    config: dict[str, Any]
    index: dict[str, Any] | None
    folder: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """One piece of work for the process that plans."""

    asked: Asked
    source: Source


@dataclass(frozen=True, slots=True)
class Machine:
    """What is planned for. `usable_bytes` is the working set, `limit_bytes` what the worker takes of it."""

    name: str
    memory_bytes: int
    usable_bytes: int
    limit_bytes: int
    memory_fraction: float
    assumed: str


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """What a model costs, as the worker's Hello will say; passes are an estimate, all else is exact."""

    name: str
    family: str
    context_tokens: int
    caches: str
    batches: bool
    why_not: str
    weights_bytes: int
    weights_from: str
    kv_bits: int
    kv_bytes_per_token: int
    window_tokens: int
    window_bytes_per_token: int
    fixed_bytes_per_row: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """How many streams of one context fit when the worker is set to just that; memory as it is then."""

    context_tokens: int
    streams: int
    stream_bytes: int
    reserve_bytes: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class WayOut:
    """A change with which what was asked fits."""

    change: str
    kv_bits: int
    streams: int
    context_tokens: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Planned:
    """The settings that were asked for, and where memory goes with them. `headroom_bytes` is left beside.

    Of `kv_bytes` the streams take `asked_bytes` when all of them are at their longest.
    """

    context_tokens: int
    streams: int
    stream_bytes: int
    window_bytes: int
    reserve_bytes: int
    budget_bytes: int
    asked_bytes: int
    headroom_bytes: int
    fits: bool
    warning: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All that `forebay plan` says. `settings` are those of [worker] that bring it about."""

    verdict: Literal["fits", "does not fit"]
    machine: Machine
    model: ModelCosts
    planned: Planned
    table: tuple[Fit, ...]
    settings: dict[str, int]
    ways_out: tuple[WayOut, ...]
