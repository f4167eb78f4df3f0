"""What is counted and measured, in objects made from the table of metrics, and its text for Prometheus."""

from collections import Counter as Counting
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from shared import metrics_table as table
from shared.limits import KEY_CLASSES_MAX
from shared.messages import DeathCause
from shared.metrics_process import ProcessReadings
from shared.metrics_table import OTHER, Metric
from shared.metrics_text import text_of
from shared.metrics_times import TokenCollector, TokenTimes
from shared.readings import NO_PREFIXES, PrefixReading

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_Object = TypeVar("_Object", Counter, Gauge, Histogram)

# They would double the series of every counter, and say what process_start_time_seconds says.
disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations


class Started(Protocol):
    """What is known of an answer when it starts. Times in seconds."""

    @property
    def lane(self) -> str: ...
    @property
    def waited_s(self) -> float: ...
    @property
    def estimated_s(self) -> float: ...
    @property
    def first(self) -> bool: ...


class _LifeCounts(Collector):
    """What the worker counts by itself, from 0 in each of its lives: as it was told last."""

    def __init__(self) -> None:
        self.told = NO_PREFIXES

    def collect(self) -> Iterator[CounterMetricFamily]:
        for metric, value in (
            (table.EVICTIONS, self.told.evictions),
            (table.DISK_READS, self.told.disk_reads),
            (table.DISK_WRITES, self.told.disk_writes),
            (table.DISK_BAD, self.told.disk_bad),
        ):
            yield CounterMetricFamily(metric.name, metric.words, value=value)


class _Bounded:
    """The values of one label: the first `most` of them by their names, and all further ones by one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = {""}

    def label(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) > self._most:  # "" is none of them.
            return OTHER
        self._seen.add(value)
        return value


class Place:
    """What is counted of one lane and key class. Each object is looked up once, when the place is new."""

    def __init__(self, metrics: "Metrics", labels: tuple[str, str], times: TokenTimes) -> None:
        self.labels = labels
        self.times = times
        self.admitted = metrics.counter(table.ADMITTED).labels(*labels)
        self.queue_wait = metrics.histogram(table.QUEUE_WAIT).labels(*labels)
        self.estimate_error = metrics.histogram(table.ESTIMATE_ERROR).labels(*labels)
        self.parks = metrics.counter(table.PARKS).labels(*labels)
        self.resumes = metrics.counter(table.RESUMES).labels(*labels)
        self.whole = metrics.histogram(table.WHOLE).labels(*labels)
        self.goodput = metrics.counter(table.GOODPUT).labels(*labels)
        self.prompt_tokens = metrics.counter(table.PROMPT_TOKENS).labels(*labels)
        self.cached_tokens = metrics.counter(table.CACHED_TOKENS).labels(*labels)
        self.prefilled = metrics.counter(table.PREFILLED).labels(*labels)
        self.ended = {each: metrics.counter(table.ENDED).labels(*labels, each) for each in table.OUTCOMES}
        self.wasted = {each: metrics.counter(table.WASTED).labels(*labels, each) for each in table.WASTES}


class Metrics:
    """One process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._objects: dict[Metric, Counter | Gauge | Histogram] = {
            metric: _made(metric, self.registry) for metric in table.declared() if not metric.collected
        }
        self._lanes = _Bounded(table.LANE_LABELS_MAX)
        self._classes = _Bounded(KEY_CLASSES_MAX)
        self._places: dict[tuple[str, str], Place] = {}
        self._times: dict[tuple[str, str], TokenTimes] = {}
        self._life = _LifeCounts()
        for collector in (TokenCollector(self._times), self._life, ProcessReadings()):
            self.registry.register(collector)
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Show counts of what hasn't happened yet: a series that begins with 1 has not risen, for a rate."""
        for cause in get_args(DeathCause):
            self.counter(table.DEATHS).labels(cause)
        for reason in table.REASONS:
            self.counter(table.CUT_OFF).labels(reason)

    # --- objects ------------------------------------------------------------------------------------------

    def counter(self, metric: Metric) -> Counter:
        return self._object(metric, Counter)

    def gauge(self, metric: Metric) -> Gauge:
        return self._object(metric, Gauge)

    def histogram(self, metric: Metric) -> Histogram:
        return self._object(metric, Histogram)

    def _object(self, metric: Metric, kind: type[_Object]) -> _Object:
        found = self._objects[metric]
        assert isinstance(found, kind), f"{metric.name} is declared as a {metric.kind}"
        return found

    def place(self, lane: str, key_class: str) -> Place:
        """Return what is counted of a lane and a key class."""
        found = self._places.get((lane, key_class))
        return self._new_place(lane, key_class) if found is None else found

    def _new_place(self, lane: str, key_class: str) -> Place:
        """Begin a place, or return the one that all share that are beyond the bounds."""
        labels = self._labels(lane, key_class)
        if labels not in self._places:
            times = self._times[labels] = TokenTimes()
            self._places[labels] = Place(self, labels, times)
        return self._places[labels]

    def _labels(self, lane: str, key_class: str) -> tuple[str, str]:
        return self._lanes.label(lane), self._classes.label(key_class)

    # --- what is told -------------------------------------------------------------------------------------

    def started(self, start: Started, key_class: str) -> None:
        """Observe a start; those after a park or a death are no waits of a queue."""
        if start.first:
            place = self.place(start.lane, key_class)
            place.queue_wait.observe(start.waited_s)
            place.estimate_error.observe(start.waited_s - start.estimated_s)

    def refused(self, lane: str, key_class: str, code: str) -> None:
        self.counter(table.REFUSED).labels(*self._labels(lane, key_class), code).inc()

    def stands(
        self,
        lanes: Sequence[str],
        queued: Iterable[tuple[str, str]],
        running: Iterable[tuple[str, str]],
    ) -> None:
        """Take the lanes that there are, and the lane and key class of each answer that waits or runs now.

        One that a reload took away has nothing any more.
        """
        known = {(lane, "") for lane in map(self._lanes.label, lanes)}
        known |= {labels for labels in self._places if labels[0] in lanes}
        for metric, answers in ((table.QUEUED, queued), (table.RUNNING, running)):
            counts = Counting(self._labels(*each) for each in answers)
            gauge = self.gauge(metric)
            gauge.clear()
            for labels in known | set(counts):
                gauge.labels(*labels).set(counts[labels])

    def keeps(self, reading: PrefixReading | None) -> None:
        """Take what the worker keeps of prompts, None without one. Its counts stay until the next one's."""
        now = reading or NO_PREFIXES
        self.gauge(table.KEPT).set(now.kept_bytes)
        self.gauge(table.SHARED).set(now.shared_bytes)
        self.gauge(table.BLOCKS).set(now.blocks)
        self.gauge(table.DISK).set(now.disk_bytes)
        self._life.told = reading or self._life.told

    # --- the text -----------------------------------------------------------------------------------------

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[bytes]:
        """Yield the same in small parts, so that others can have their turns in between."""
        for family in self.registry.collect():
            yield from text_of(family)


def _made(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    match metric.kind:
        case "counter":
            return Counter(metric.name, metric.words, metric.labels, registry=registry)
        case "gauge":
            return Gauge(metric.name, metric.words, metric.labels, registry=registry)
        case "histogram":
            return Histogram(
                metric.name, metric.words, metric.labels, buckets=metric.buckets, registry=registry
            )
