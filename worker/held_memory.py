"""Carries out what the memory guard orders: reads what is held once a turn, and gives back what it says."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shared.clock import Clock
from shared.logs import Logger
from shared.readings import MemoryReading
from worker.engine.batch_engine import BatchEngine
from worker.memory_guard import Bounds, MemoryGuard, Orders, Seen

ASK_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class MemorySources:
    """How memory is read and given back: `reading` in some microseconds, `available_bytes` in some more."""

    reading: Callable[[], MemoryReading]
    available_bytes: Callable[[], int]
    give_back: Callable[..., None]


class HeldMemory:
    """The guard and its hands. Make it when the worker is ready to serve: what is held then is the start.

    `parameters` is how many arrays the model itself has. `arrays` are alive, counted once a second, of
    `arrays_max` at most; both are 0 where nothing bounds them.
    """

    def __init__(
        self,
        bounds: Bounds,
        sources: MemorySources,
        engine: BatchEngine,
        parameters: int,
        *,
        clock: Clock,
        log: Logger,
    ) -> None:
        self._sources = sources
        self._engine = engine
        self._parameters = parameters
        self.arrays_max = bounds.arrays_max
        self.arrays = 0
        self._clock = clock
        self._log = log
        self._asked_at = float("-inf")
        self.reading = sources.reading()
        ready = Seen(clock.now(), self.reading, engine.kv_bytes, is_idle=True, arrays=self._arrays())
        self._guard = MemoryGuard(bounds, ready)
        self.orders = Orders(
            clear_cache=False,
            collect=False,
            quantum_share=1.0,
            budget_bytes=bounds.budget_bytes,
            wants_recycle=False,
        )
        if self._guard.warning:
            log.warning("memory is tight", problem=self._guard.warning)

    def look(self, *, is_idle: bool) -> Orders:
        """Read what is held, and give back what can be given back here; the loop does the rest."""
        was_tight, before = self._guard.is_tight, self.orders
        self.reading = self._sources.reading()
        self.orders = self._guard.look(self._seen(is_idle))
        if self.orders.keeps_prefixes != before.keeps_prefixes:
            self._engine.limit_prefixes(keeps=self.orders.keeps_prefixes)
        if self.orders.clear_cache:
            self._sources.give_back(collect=self.orders.collect)
        if self.orders.budget_bytes != before.budget_bytes:
            self._engine.limit_bytes(self.orders.budget_bytes)
        if was_tight != self._guard.is_tight or self.orders.wants_recycle > before.wants_recycle:
            self._tell()
        return self.orders

    def _seen(self, is_idle: bool) -> Seen:
        now = self._clock.now()
        kv_bytes, kept_bytes = self._engine.kv_bytes, self._engine.prefixes.kept_bytes
        if now - self._asked_at < ASK_INTERVAL_S:
            return Seen(now, self.reading, kv_bytes, is_idle, kept_bytes=kept_bytes)
        self._asked_at = now
        available_bytes = self._sources.available_bytes()
        return Seen(now, self.reading, kv_bytes, is_idle, available_bytes, self._arrays(), kept_bytes)

    def _arrays(self) -> int | None:
        """Count the arrays that are alive, None where nothing bounds them."""
        if not self.arrays_max:
            return None
        self.arrays = self._parameters + self._engine.arrays
        return self.arrays

    def _tell(self) -> None:
        if self.orders.wants_recycle:
            say, what = self._log.warning, "asking to be replaced: memory can't be given back"
        elif self._guard.is_tight:
            say, what = self._log.warning, "memory is short"
        else:
            say, what = self._log.info, "memory is no longer short"
        say(
            what,
            active_mb=self.reading.active_bytes >> 20,
            footprint_mb=self.reading.footprint_bytes >> 20,
            cap_mb=self._guard.cap_bytes >> 20,
            budget_mb=self.orders.budget_bytes >> 20,
            keeps_prefixes=self.orders.keeps_prefixes,
        )
