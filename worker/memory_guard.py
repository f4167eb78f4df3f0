"""What to give back while memory is short, and in which order. Pure: what is seen in, orders out.

The worker is tight when it holds more than its cap, or when other programs have left the machine almost
nothing. As long as it stays tight, each look takes one measure more: give up what is kept of prompts in case
somebody needs it (where there is such), let go of MLX's spare buffers, halve the pieces of prefill, lower the
budget for KV caches to what fits (the proxy then parks, queues and refuses). What is idle, over its cap or
left with little room for caches, and can't give that back asks to be replaced.

Beginnings of prompts are kept again in calm, once there is room for as much as was given up; what has to fit
shrinks with time, as the budget grows. So a cache that doesn't fit isn't filled and given up in every second.

What is held: on Metal, buffers count both with MLX and in the process's footprint, and neither has all (the
interpreter isn't MLX's, a buffer that was never touched isn't resident), so the larger one counts. A card's
memory isn't the process's: there only MLX's figure counts. On Linux the footprint includes pages of files,
which the kernel could take back; they count, since they are few and nearly all there from the start.
"""

from dataclasses import dataclass
from typing import Final

from shared.limits import MIB
from shared.readings import MemoryReading

# Of the full budget, in a second of calm.
GROWTH_SHARE: Final = 0.05
# Other programs don't bring the budget below this share: somebody has to be served, and it isn't our memory.
FLOOR_SHARE: Final = 0.05
CLEAR_INTERVAL_S: Final = 1.0
# If what the worker itself holds leaves less than this share of the budget, the next life serves better.
_USEFUL_SHARE: Final = 0.25
_CALM_SHARE: Final = 0.02
_CALM_RESERVE: Final = 1.2
_ARRAYS_CLEAR_SHARE: Final = 0.5
_ARRAYS_RECYCLE_SHARE: Final = 0.8
_KEEP_NOTHING, _CLEAR, _SMALL_CHUNKS, _LESS_BUDGET = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the worker may hold, in bytes, and how many arrays (0: as many as it likes).

    `reserve_bytes` of the machine's memory should stay available to anybody (0: not watched).
    `shares_memory` says whether the device's memory is the system's.
    """

    limit_bytes: int
    budget_bytes: int
    reserve_bytes: int = 0
    arrays_max: int = 0
    shares_memory: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """One look: what is held, how much of that is KV caches, and whether anything runs or waits to run.

    `kept_bytes` are kept of prompts beside the caches of rows, and can be given up at any time.
    `available_bytes` and `arrays` are None in looks that didn't ask for them.
    """

    now: float
    reading: MemoryReading
    kv_bytes: int
    is_idle: bool
    available_bytes: int | None = None
    arrays: int | None = None
    kept_bytes: int = 0

    @property
    def caches_bytes(self) -> int:
        """What the budget is for: the caches of rows, and what is kept in the room that they leave."""
        return self.kv_bytes + self.kept_bytes


@dataclass(frozen=True, slots=True)
class Orders:
    """What to do now, and what holds until the next look."""

    clear_cache: bool
    collect: bool
    quantum_share: float
    budget_bytes: int
    wants_recycle: bool
    keeps_prefixes: bool = True


class MemoryGuard:
    """Looks once a turn. `ready` is what was seen when the worker became ready.

    The cap is the limit, or, where that is more, what was held when ready and the budget on top of it: who is
    over the limit from the start was let serve knowingly, and the next life would be no smaller.
    """

    def __init__(self, bounds: Bounds, ready: Seen) -> None:
        held_bytes = self._firm_bytes(bounds, ready.reading)
        self._bounds = bounds
        self.cap_bytes = max(bounds.limit_bytes, held_bytes + bounds.budget_bytes)
        self.warning = _warning(held_bytes, bounds.limit_bytes)
        self._margin_bytes = min(int(_CALM_SHARE * self.cap_bytes), bounds.budget_bytes // 2)
        self._arrays = _ArrayGuard(bounds.arrays_max, ready.arrays or 0)
        self._budget_bytes = float(bounds.budget_bytes)
        self._system_fits_bytes = float("inf")
        self._system_short = False
        self._measures = 0
        self._keeps = True
        self._given_up_bytes = 0.0
        self._collected = False
        self._looked_at = ready.now
        self._cleared_at = float("-inf")

    @property
    def is_tight(self) -> bool:
        """Whether measures are in force."""
        return self._measures > 0

    def look(self, seen: Seen) -> Orders:
        """Decide what to give back. Time doesn't go back."""
        over_bytes = self._firm_bytes(self._bounds, seen.reading) - self.cap_bytes
        spare_bytes = seen.reading.cache_bytes
        fresh_short = self._ask_system(seen)
        kept = self._keeps
        fits_bytes = seen.caches_bytes - over_bytes
        if over_bytes > 0 or fresh_short:
            self._tighten(fits_bytes, seen.kept_bytes)
        elif over_bytes <= -self._margin_bytes and not self._system_short:
            self._relax(fits_bytes, seen.now - self._looked_at)
            self._keeps = self._keeps or self._has_room(seen, over_bytes)
        self._looked_at = seen.now
        self._arrays.look(seen.arrays)
        leaks = seen.is_idle and self._leaks(fits_bytes, over_bytes)
        collect = leaks and not self._collected
        wants_recycle = (leaks and self._collected) or (seen.is_idle and self._arrays.due)
        self._collected = leaks
        gave_up = kept and not self._keeps and seen.kept_bytes > 0
        # What is given up becomes spare buffers, which the next look lets go of, once in a while only.
        wants_clear = not gave_up and (
            over_bytes + spare_bytes > 0 or self._system_short or self._arrays.many
        )
        return Orders(
            clear_cache=collect or (wants_clear and spare_bytes > 0 and self._clears(seen.now)),
            collect=collect,
            quantum_share=0.5 if self._measures >= _SMALL_CHUNKS else 1.0,
            budget_bytes=int(self._budget_bytes),
            wants_recycle=wants_recycle,
            keeps_prefixes=self._keeps,
        )

    @staticmethod
    def _firm_bytes(bounds: Bounds, reading: MemoryReading) -> int:
        """Return what is held beside the spare buffers, which can be let go of at any time."""
        footprint_bytes = reading.footprint_bytes - reading.cache_bytes if bounds.shares_memory else 0
        return max(reading.active_bytes, footprint_bytes)

    def _ask_system(self, seen: Seen) -> bool:
        """Learn what other programs leave, in looks that asked for it; True if that is too little.

        Between two such looks nothing is concluded from the last one: caches may have shrunk since.
        """
        if seen.available_bytes is None or not self._bounds.reserve_bytes:
            return False
        reserve_bytes = self._bounds.reserve_bytes
        floor_bytes = FLOOR_SHARE * self._bounds.budget_bytes
        fits_bytes = seen.caches_bytes + seen.available_bytes - reserve_bytes
        self._system_fits_bytes = max(floor_bytes, fits_bytes)
        enough_bytes = _CALM_RESERVE * reserve_bytes if self._system_short else reserve_bytes
        self._system_short = seen.available_bytes < enough_bytes
        return seen.available_bytes < reserve_bytes

    def _leaks(self, fits_bytes: int, over_bytes: int) -> bool:
        """Whether it is over its cap, or so near it that it would serve little for the rest of its life."""
        if over_bytes > 0:
            return self._measures == _LESS_BUDGET
        return fits_bytes < _USEFUL_SHARE * self._bounds.budget_bytes

    def _tighten(self, fits_bytes: int, kept_bytes: int) -> None:
        """Take one measure more; the last one is a budget of what fits.

        That is the caches as they are, less what is over; as they shrink so does that, so the budget doesn't
        fall further while the proxy has yet to follow. To keep nothing takes no look where nothing is kept.
        """
        if self._keeps:
            self._keeps, self._given_up_bytes = False, float(min(kept_bytes, self._bounds.budget_bytes))
            self._measures = _KEEP_NOTHING if kept_bytes else _CLEAR
        else:
            self._measures = min(max(self._measures + 1, _CLEAR), _LESS_BUDGET)
        if self._measures == _LESS_BUDGET:
            fits = min(float(max(0, fits_bytes)), self._system_fits_bytes)
            self._budget_bytes = min(self._budget_bytes, fits)

    def _relax(self, fits_bytes: int, passed_s: float) -> None:
        """Let the budget grow, slowly, and never beyond what would fit."""
        self._measures = 0
        full_bytes = self._bounds.budget_bytes
        growth_bytes = GROWTH_SHARE * full_bytes * passed_s
        most_bytes = min(self._budget_bytes + growth_bytes, full_bytes, fits_bytes, self._system_fits_bytes)
        self._budget_bytes = max(self._budget_bytes, most_bytes)
        self._given_up_bytes = max(0.0, self._given_up_bytes - growth_bytes)

    def _has_room(self, seen: Seen, over_bytes: int) -> bool:
        """Whether what was given up of prompts would fit again, as far as this look can tell."""
        room_bytes = float(-over_bytes - self._margin_bytes)
        if self._bounds.reserve_bytes:
            if seen.available_bytes is None:
                return False
            room_bytes = min(room_bytes, seen.available_bytes - _CALM_RESERVE * self._bounds.reserve_bytes)
        return room_bytes >= self._given_up_bytes

    def _clears(self, now: float) -> bool:
        """Whether spare buffers may be let go of again: each time the next steps have to allocate anew."""
        if now - self._cleared_at < CLEAR_INTERVAL_S:
            return False
        self._cleared_at = now
        return True


class _ArrayGuard:
    """Metal refuses a buffer when there are too many, however small: so replace the worker before that.

    Who has too many from the start isn't replaced: the next life would have as many.
    """

    def __init__(self, arrays_max: int, ready: int) -> None:
        self._most = _ARRAYS_RECYCLE_SHARE * arrays_max if arrays_max else float("inf")
        self._fair = ready <= self._most
        self._many_from = _ARRAYS_CLEAR_SHARE * arrays_max if arrays_max else float("inf")
        self.many = False
        self.due = False

    def look(self, arrays: int | None) -> None:
        if arrays is not None:
            self.many = arrays > self._many_from
            self.due = self.due or (self._fair and arrays > self._most)


def _warning(held_bytes: int, limit_bytes: int) -> str:
    if held_bytes <= limit_bytes:
        return ""
    return (
        f"{held_bytes // MIB} MiB are held before anything runs, "
        f"more than the {limit_bytes // MIB} MiB that the worker may take"
    )
