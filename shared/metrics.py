"""Every metric, declared once: its name, its labels and what it means. Labels are of few values each."""

from collections.abc import Sequence
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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


class Metrics:
    """One process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._declare_queues()
        self._declare_memory()
        self._declare_survival()
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

    def forget_lanes(self) -> None:
        """Begin the gauges of lanes anew: one that a reload took away has nothing any more."""
        self.queued.clear()
        self.running.clear()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
