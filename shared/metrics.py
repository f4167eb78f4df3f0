"""Every metric, declared once: its name, its labels and what it means. Labels are of few values each."""

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
        self.queue_wait = Histogram(
            "forebay_queue_wait_seconds",
            "From an answer's arrival to its first start",
            ["lane"],
            buckets=_WAIT_BUCKETS,
            registry=self.registry,
        )
        self.estimate_error = Histogram(
            "forebay_estimate_error_seconds",
            "The wait for a first start, less what was estimated at arrival",
            ["lane"],
            buckets=_ERROR_BUCKETS,
            registry=self.registry,
        )
        self.refused = Counter(
            "forebay_refused",
            "Requests refused at arrival, and those that failed later, by error code",
            ["lane", "code"],
            registry=self.registry,
        )
        self.parks = Counter("forebay_parks", "Rows that were parked", ["lane"], registry=self.registry)
        self.queued = Gauge("forebay_queued", "Answers that wait", ["lane"], registry=self.registry)
        self.running = Gauge("forebay_running", "Answers that hold a row", ["lane"], registry=self.registry)
        self.reserved_bytes = Gauge(
            "forebay_kv_reserved_bytes", "What running answers may grow to", registry=self.registry
        )
        self.held_bytes = Gauge(
            "forebay_kv_held_bytes", "What the worker's KV caches hold", registry=self.registry
        )
        self.house_seconds = Gauge(
            "forebay_house_seconds",
            "Device time for computing again what a park or a death lost; no key pays for it",
            registry=self.registry,
        )

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
