"""What the table compares: the same load under other settings of the lanes, and nothing else changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shared.lane_settings import LaneSettings
from tests.simulation.loads import FOREVER_S

# A chunk of 2048 tokens, at the false device's speed.
_LARGE_MS: Final = 2048 / 0.9
_NEVER_S: Final = FOREVER_S


@dataclass(frozen=True, slots=True)
class Policy:
    """Lanes, and which of the two loads comes."""

    name: str
    what: str
    lanes: tuple[LaneSettings, ...]
    interactive: bool = True
    batch: bool = True


def _lanes(
    reserved_slots: int, quantum_ms: float | None, *, parkable: bool, **more: object
) -> tuple[LaneSettings, ...]:
    """Return the two lanes as they come, with some mechanisms off; nobody is refused for waiting."""
    quantum = {} if quantum_ms is None else {"prefill_quantum_ms": quantum_ms}
    return (
        LaneSettings(name="interactive", reserved_slots=reserved_slots, target_wait_s=None, **quantum),
        LaneSettings(name="batch", parkable=parkable, queue_s=1e6, **quantum),
    )


_ONE_LANE: Final = LaneSettings(
    name="interactive",
    reserved_slots=0,
    target_wait_s=None,
    queue_places=512,
    queue_s=1e6,
    ages_after_s=0.001,
    prefill_quantum_ms=_LARGE_MS,
)
_DEFAULT: Final = _lanes(1, None, parkable=True)

POLICIES: Final[Sequence[Policy]] = (
    Policy("unloaded", "interactive only, as it comes", _DEFAULT, batch=False),
    Policy("batch alone", "batch only, as it comes", _DEFAULT, interactive=False),
    Policy("fcfs", "one queue, chunks of 2048", (_ONE_LANE,)),
    Policy("priority", "a lane for each, chunks of 2048", _lanes(0, _LARGE_MS, parkable=False)),
    Policy("reserve", "+ one row and a p95 request kept free", _lanes(1, _LARGE_MS, parkable=False)),
    Policy("quantum", "+ small pieces of prefill", _lanes(1, None, parkable=False)),
    Policy("parking", "+ parking: as it comes", _DEFAULT),
)
