"""The lanes that requests queue in: their order, what each may take, and how long it may wait."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.limits import CONTEXT_TOKENS_MAX, LANES_MAX, QUANTUM_MS_MAX, SLOTS_MAX

# What lanes of these names have where their own settings are silent.
_BUILT_IN: Final[Mapping[str, Mapping[str, Any]]] = {
    "interactive": {
        "tiers": ("default", "auto", "priority"),
        "reserved_slots": 1,
        "deadline_s": 30.0,
        "target_wait_s": 2.0,
        "ages_after_s": 10.0,
        "parkable": False,
    },
    "batch": {"tiers": ("flex",), "prefill_quantum_ms": 150.0},
}


class LaneSettings(BaseModel):
    """One lane. Lanes stand in order: slots, bytes and prefill time go to the first before the second.

    Lanes named interactive and batch have defaults of their own, whichever of their settings are given.

    `reserved_slots` and `reserved_mb` are kept free of lower lanes; `reserved_mb` unset means the bytes of
    this lane's p95 request, if it reserves a slot at all. A head that has waited `ages_after_s` isn't passed
    by smaller ones of its lane, and goes before higher lanes once in that time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")
    tiers: tuple[str, ...] = Field((), max_length=8, description="values of service_tier that ask for it")
    reserved_slots: int = Field(0, ge=0, lt=SLOTS_MAX, description="rows that lower lanes may not take")
    reserved_mb: int | None = Field(None, ge=0, description="KV bytes that lower lanes may not take")
    queue_places: int = Field(256, ge=1, le=100_000, description="answers that may wait")
    queue_mb: int = Field(64, ge=1, le=1 << 20, description="memory that waiting prompts may take")
    queue_s: float = Field(3600.0, gt=0, le=1e6, description="device time that may wait")
    deadline_s: float = Field(300.0, gt=0, le=86_400, description="longest wait for a start")
    target_wait_s: float | None = Field(
        None, gt=0, le=86_400, description="under lasting overload, the wait allowed"
    )
    ages_after_s: float = Field(120.0, gt=0, le=86_400, description="a head as old is not passed any more")
    step_share_min: float = Field(0.05, ge=0, le=0.5, description="of the device's time, while it waits")
    context_tokens: int | None = Field(None, ge=16, le=CONTEXT_TOKENS_MAX, description="prompt and answer")
    max_tokens: int | None = Field(None, ge=1, le=CONTEXT_TOKENS_MAX, description="most that may be asked")
    max_tokens_default: int = Field(4096, ge=1, le=CONTEXT_TOKENS_MAX, description="when none is asked for")
    prefill_quantum_ms: float = Field(250.0, ge=10, le=QUANTUM_MS_MAX, description="one piece of prefill")
    parkable: bool = Field(True, description="rows may be parked for a higher lane, and overcommit memory")

    @model_validator(mode="before")
    @classmethod
    def _from_built_in(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            return given
        return {**_BUILT_IN.get(given["name"], {}), **given}

    @property
    def answer_tier(self) -> str:
        """What answers of this lane say in service_tier."""
        return self.tiers[0] if self.tiers else self.name


INTERACTIVE: Final = LaneSettings(name="interactive")
BATCH: Final = LaneSettings(name="batch")


class AdmissionSettings(BaseModel):
    """What all lanes share."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key_queue_share: float = Field(0.25, gt=0, le=1, description="of a lane's queue that one key may fill")
    overload_after_s: float = Field(10.0, gt=0, le=600, description="waits over a lane's target for so long")


class LaneProblem(ValueError):
    """Lanes that contradict each other."""


def check_lanes(lanes: Sequence[LaneSettings]) -> None:
    """Raise LaneProblem unless the lanes can stand side by side."""
    if not 1 <= len(lanes) <= LANES_MAX:
        raise LaneProblem(f"1 to {LANES_MAX} lanes are possible, not {len(lanes)}")
    for what, values in (
        ("name", [lane.name for lane in lanes]),
        ("service tier", [tier for lane in lanes for tier in lane.tiers]),
    ):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise LaneProblem(f"two lanes have the {what} {twice[0]!r}")
