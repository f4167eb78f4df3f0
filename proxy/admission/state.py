"""All that admission keeps, in one place, and what can be asked of it. Only this package changes it."""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from proxy.admission.answer import Answer
from proxy.admission.estimate import Calibration, Promises, Restarts
from proxy.admission.lane import Lane
from proxy.admission.ledger import NO_RESERVE, Ledger, Reserve
from proxy.admission.prefixes import Prefixes
from proxy.admission.shares import StepShares
from proxy.admission.speeds import Speeds
from proxy.admission.trials import Trials

# What a row may emit between a decision here and the worker's hearing of it.
MARGIN_TOKENS: Final = 32
_RESERVE_SHARE_MAX: Final = 0.5


@dataclass(slots=True)
class State:
    """`ledger` is the last worker's, and None before the first; `has_worker` says whether it is there.

    `keys_asked` is when each key asked last, the latest at the end.
    """

    lanes: list[Lane] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    lane_of: dict[str, Lane] = field(default_factory=dict)
    ledger: Ledger | None = None
    has_worker: bool = False
    speeds: Speeds = field(default_factory=Speeds)
    restarts: Restarts = field(default_factory=Restarts)
    calibration: Calibration = field(default_factory=Calibration)
    promises: Promises = field(default_factory=Promises)
    trials: Trials = field(default_factory=Trials)
    shares: StepShares = field(default_factory=StepShares)
    prefixes: Prefixes = field(default_factory=Prefixes)
    keys_asked: OrderedDict[str, float] = field(default_factory=OrderedDict)
    house_ms: float = 0.0

    def lane_named(self, name: str) -> Lane:
        """Return a lane; one that was taken out of the configuration meanwhile is the lowest."""
        return next((lane for lane in self.lanes if lane.settings.name == name), self.lanes[-1])

    @property
    def running(self) -> int:
        """Count the answers that hold a row."""
        return sum(len(lane.running) for lane in self.lanes)

    @property
    def holds_rows(self) -> bool:
        """Whether the worker has rows: such as run, or such as it hasn't parked yet."""
        return any(lane.running or lane.parking for lane in self.lanes)

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield lane and name of each answer that holds a row; those that are being parked still do."""
        for lane in self.lanes:
            yield from ((lane.settings.name, name) for name in (*lane.running, *lane.parking))

    @property
    def free_rows(self) -> int:
        return max(0, self.ledger.slots - self.running) if self.has_worker and self.ledger else 0

    def waiting(self) -> list[Answer]:
        """Return all who wait for a row: in their lanes, or for a trial."""
        queued = [answer for lane in self.lanes for answer in lane.queued()]
        return [*queued, *self.trials.waiting.values()]

    def could_ever_fit(self, tokens: int) -> bool:
        return self.ledger is None or self.ledger.could_ever_fit(tokens)

    def fits_now(self, answer: Answer) -> bool:
        """Whether an answer fits in an empty worker with the memory that there is now.

        What doesn't waits for more memory, and holds nobody back meanwhile.
        """
        ledger = self.ledger
        if ledger is None or ledger.budget_bytes == ledger.full_bytes:
            return True
        return ledger.fits_alone(self.tokens_for(answer))

    def fits(self, answer: Answer, reserve: Reserve, without: Collection[str] = ()) -> bool:
        """Whether an answer fits beside those that run, `without` not counted among them."""
        assert self.ledger is not None
        return self.ledger.fits(self.tokens_for(answer), reserve, without, answer.shareable)

    def tokens_for(self, answer: Answer) -> int:
        """Return the tokens to reserve for an answer if it started or grew now."""
        return self.lane_of[answer.name].overcommitted(answer, MARGIN_TOKENS)

    def next_suspect(self) -> Answer | None:
        """Return who is tried next; what doesn't fit in the memory that there is now waits for more."""
        return next(filter(self.fits_now, self.trials.in_order()), None)

    def reserve_above(self, lane: Lane) -> Reserve:
        """Return what must stay free for the lanes above one when it starts something."""
        if self.ledger is None or lane.rank == 0:
            return NO_RESERVE
        above = self.lanes[: lane.rank]
        kv_bytes = sum(_reserved_kv_bytes(each, self.ledger) for each in above)
        most = int(_RESERVE_SHARE_MAX * self.ledger.budget_bytes)
        return Reserve(sum(each.settings.reserved_slots for each in above), min(most, kv_bytes))


def _reserved_kv_bytes(lane: Lane, ledger: Ledger) -> int:
    """Return the bytes kept free for a lane: as set, else of its p95 request for each reserved row."""
    if lane.settings.reserved_mb is not None:
        return lane.settings.reserved_mb << 20
    tokens = lane.sizes.quantile(0.95) if lane.settings.reserved_slots else None
    return lane.settings.reserved_slots * ledger.facts.row_bytes(tokens) if tokens else 0
