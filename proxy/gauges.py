"""Sets the gauges of what is there now: who waits and runs, what memory holds, how the worker is."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Final, Protocol, get_args

from proxy.admission.answer import Answer
from proxy.admission.state import State
from proxy.dispatch import Dispatcher
from proxy.observer import Observer
from proxy.worker_link import WorkerLink
from shared import metrics_table as table
from shared.clock import Clock
from shared.messages import Breaker
from shared.metrics_table import Metric
from shared.readings import NO_ROWS, MemoryReading

_NO_MEMORY: Final = MemoryReading(0, 0, 0, 0)


class Door(Protocol):
    """Where clients come in."""

    @property
    def connections(self) -> int: ...
    @property
    def undelivered_bytes(self) -> int: ...


class Gauges:
    """Reads them all from where they are kept. What no worker tells is 0."""

    def __init__(
        self, observer: Observer, link: WorkerLink, dispatcher: Dispatcher, clock: Clock, model: str
    ) -> None:
        self._observer = observer
        self._metrics = observer.metrics
        self._link = link
        self._dispatcher = dispatcher
        self._clock = clock
        self._metrics.gauge(table.INFO).labels(version("forebay"), model).set(1)

    def read(self, door: Door | None) -> None:
        """Set every gauge as of now."""
        self._read_lanes()
        self._read_worker()
        self._read_memory()
        self._read_survival()
        self._set(table.DRAINING, self._dispatcher.draining)
        self._set(table.IS_HELD, self._dispatcher.held)
        self._set(table.CONNECTIONS, door.connections if door else 0)
        self._set(table.UNDELIVERED, door.undelivered_bytes if door else 0)

    def _set(self, metric: Metric, value: float) -> None:
        self._metrics.gauge(metric).set(value)

    @property
    def _state(self) -> State:
        return self._dispatcher.admission.state

    # --- lanes --------------------------------------------------------------------------------------------

    def _read_lanes(self) -> None:
        lanes, now = self._state.lanes, self._clock.now()
        self._metrics.stands(
            [lane.settings.name for lane in lanes],
            (place for lane in lanes for place in self._places(lane.settings.name, lane.queued())),
            (place for lane in lanes for place in self._places(lane.settings.name, [*lane.running.values()])),
        )
        by_lane = {
            metric: self._metrics.gauge(metric)
            for metric in (table.QUEUE_PLACES, table.OLDEST_WAIT, table.TARGET_WAIT, table.OVERLOADED)
        }
        for gauge in by_lane.values():
            gauge.clear()
        for lane in lanes:
            name, target_s = lane.settings.name, lane.settings.target_wait_s
            by_lane[table.QUEUE_PLACES].labels(name).set(lane.settings.queue_places)
            by_lane[table.OLDEST_WAIT].labels(name).set(lane.waits_s(now))
            by_lane[table.OVERLOADED].labels(name).set(lane.overload.lasting)
            if target_s is not None:
                by_lane[table.TARGET_WAIT].labels(name).set(target_s)

    def _places(self, lane: str, answers: list[Answer]) -> Iterator[tuple[str, str]]:
        for answer in answers:
            yield lane, self._observer.key_class_of(answer.name)

    # --- the worker ---------------------------------------------------------------------------------------

    def _read_worker(self) -> None:
        progress, speeds = self._link.state.progress, self._state.speeds
        engine, rows = progress.engine if progress else NO_ROWS, self._state.running
        step_ms, token_ms = speeds.step_ms(rows), speeds.prefill_ms_per_token
        self._set(table.READY, self._link.state.status == "ready")
        self._set(table.ROWS, engine.rows)
        self._set(table.GROUPS, engine.groups)
        self._set(table.ARRAYS, engine.arrays)
        self._set(table.ARRAYS_MAX, engine.arrays_max)
        self._set(table.SPEED, 1000 * rows / step_ms if rows and step_ms else 0)
        self._set(table.PREFILL_SPEED, 1000 / token_ms if token_ms else 0)
        self._set(table.HOUSE, self._state.house_ms / 1000)
        self._metrics.keeps(progress.prefixes if progress else None)

    def _read_memory(self) -> None:
        progress, ledger = self._link.state.progress, self._state.ledger
        memory = progress.memory if progress else _NO_MEMORY
        self._set(table.RESERVED, self._dispatcher.admission.reserved_bytes)
        self._set(table.HELD, progress.kv_bytes if progress else 0)
        self._set(table.BUDGET, ledger.budget_bytes if ledger else 0)
        self._set(table.BUDGET_FULL, ledger.full_bytes if ledger else 0)
        self._set(table.WEIGHTS, ledger.facts.weights_bytes if ledger else 0)
        self._set(table.ACTIVE, memory.active_bytes)
        self._set(table.CACHE, memory.cache_bytes)
        self._set(table.PEAK, memory.peak_bytes)
        self._set(table.FOOTPRINT, memory.footprint_bytes)
        self._set(table.OVER_MEMORY, bool(progress and progress.wants_recycle))

    def _read_survival(self) -> None:
        care = self._link.state.care
        self._set(table.RUNG, care.rung)
        for state in get_args(Breaker):
            self._metrics.gauge(table.BREAKER).labels(state).set(state == care.breaker)
        self._set(table.SUSPECTS, len(self._state.trials.waiting))
        self._set(table.QUARANTINED, len(self._dispatcher.quarantine))
