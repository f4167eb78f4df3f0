"""What admission tells the dispatcher to do."""

from dataclasses import dataclass

from shared.errors import Refusal


@dataclass(frozen=True, slots=True)
class Start:
    """Submit this answer. It waited for `waited_s`; when it came it was expected to for `estimated_s`."""

    name: str
    lane: str
    waited_s: float
    estimated_s: float
    first: bool


@dataclass(frozen=True, slots=True)
class Park:
    """Ask the worker to give up this answer's row, before anything that follows; tell when it has."""

    name: str
    lane: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """End this answer, which was queued, with a refusal."""

    name: str
    lane: str
    refusal: Refusal


Instruction = Start | Park | Refuse
