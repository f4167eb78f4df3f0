"""Every metric, declared once: its name, its labels and what it means. Labels are of few values each."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from shared.readings import NO_PREFIXES, PrefixReading

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_WAIT_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_ERROR_BUCKETS: Final = (-60, -30, -10, -5, -2, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 2, 5, 10, 30, 60)


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
        for name, documentation, value in (
            ("evictions", "Blocks of prompts that were given up for want of memory", self.told.evictions),
            ("disk_reads", "Blocks of prompts that were read from disk", self.told.disk_reads),
            ("disk_writes", "Blocks of prompts that were written to disk", self.told.disk_writes),
            ("disk_bad", "Files of blocks that were damaged or foreign, and not used", self.told.disk_bad),
        ):
            yield CounterMetricFamily(f"forebay_prefix_{name}", documentation, value=value)


class Metrics:
    """One process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._declare_queues()
        self._declare_memory()
        self._declare_survival()
        self._declare_prefixes()
        self.refused = self._counter(
            "refused",
            "Requests refused at arrival, and those that failed later, by error code",
            "lane",
            "code",
        )
        self.connections_ended = self._counter(
            "connections_ended", "Connections that were cut off or turned away, by reason", "reason"
        )

    def _declare_queues(self) -> None:
        self.queue_wait = self._histogram(
            "queue_wait_seconds", "From an answer's arrival to its first start", _WAIT_BUCKETS
        )
        self.estimate_error = self._histogram(
            "estimate_error_seconds",
            "The wait for a first start, less what was estimated at arrival",
            _ERROR_BUCKETS,
        )
        self.parks = self._counter("parks", "Rows that were parked", "lane")
        self.queued = self._gauge("queued", "Answers that wait", "lane")
        self.running = self._gauge("running", "Answers that hold a row", "lane")
        self.house_seconds = self._gauge(
            "house_seconds",
            "Device time for computing again what a park or a death lost; no key pays for it",
        )

    def _declare_memory(self) -> None:
        self.reserved_bytes = self._gauge("kv_reserved_bytes", "What running answers may grow to")
        self.held_bytes = self._gauge("kv_held_bytes", "What the worker's KV caches hold")
        self.budget_bytes = self._gauge("kv_budget_bytes", "What running answers may take now")
        self.footprint_bytes = self._gauge("worker_footprint_bytes", "What the worker's process holds")

    def _declare_survival(self) -> None:
        self.deaths = self._counter("worker_deaths", "Ends of worker processes, by cause", "cause")
        self.rung = self._gauge("rung", "Steps down after deaths for want of memory")
        self.breaker = self._gauge("breaker", "1 for the supervisor's state, 0 for the others", "state")
        self.resumes = self._counter(
            "resumes", "Answers that lost their row to a worker's end and went on", "lane"
        )
        self.resume_seconds = self._histogram(
            "resume_seconds",
            "From losing the row to the next token, of answers that a worker's end interrupted",
            _WAIT_BUCKETS,
        )
        self.suspects = self._gauge("suspects", "Answers that wait to run alone")
        self.quarantined = self._gauge("quarantined", "Requests that are refused for killing the worker")

    def _declare_prefixes(self) -> None:
        self.prompt_tokens = self._counter(
            "prompt_tokens", "Tokens of prompts that were begun, each prompt once", "lane"
        )
        self.cached_tokens = self._counter(
            "prompt_tokens_cached", "Those of them that were there already, and not computed", "lane"
        )
        self._kept_bytes = self._gauge(
            "prefix_kept_bytes", "What beginnings of prompts take that no row reads"
        )
        self._shared_bytes = self._gauge(
            "prefix_shared_bytes", "What beginnings of prompts take that rows read together"
        )
        self._blocks = self._gauge("prefix_blocks", "Blocks of prompts that the worker keeps")
        self._disk_bytes = self._gauge("prefix_disk_bytes", "What beginnings of prompts take on disk")
        self._life = _LifeCounts()
        self.registry.register(self._life)

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"forebay_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"forebay_{name}", documentation, labels, registry=self.registry)

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        """Declare a histogram of seconds, by lane."""
        return Histogram(f"forebay_{name}", documentation, ["lane"], buckets=buckets, registry=self.registry)

    def started(self, start: Started) -> None:
        """Observe a start; those after a park or a death are no waits of a queue."""
        if start.first:
            self.queue_wait.labels(start.lane).observe(start.waited_s)
            self.estimate_error.labels(start.lane).observe(start.waited_s - start.estimated_s)

    def keeps(self, reading: PrefixReading | None) -> None:
        """Take what the worker keeps of prompts, None without one. Its counts stay until the next one's."""
        now = reading or NO_PREFIXES
        self._kept_bytes.set(now.kept_bytes)
        self._shared_bytes.set(now.shared_bytes)
        self._blocks.set(now.blocks)
        self._disk_bytes.set(now.disk_bytes)
        self._life.told = reading or self._life.told

    def forget_lanes(self) -> None:
        """Begin the gauges of lanes anew: one that a reload took away has nothing any more."""
        self.queued.clear()
        self.running.clear()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
