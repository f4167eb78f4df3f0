"""Every metric, declared once: its name, its kind, its labels and what it means.

The objects of shared/metrics.py are made from this table, and so is ops/metrics.md. Labels are of few values
each, and none of them is a client's word, a key's name or anybody's text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from shared.messages import Breaker, DeathCause

Kind = Literal["counter", "gauge", "histogram"]

OTHER: Final = "other"  # stands for lanes and key classes beyond what is told apart
LANE_LABELS_MAX: Final = 64  # a reload may bring new ones; the counts of those that went stay
COMPLETED, FAILED, LEFT, RECOMPUTED = "completed", "failed", "left", "recomputed"
OUTCOMES: Final = (COMPLETED, FAILED, LEFT)
WASTES: Final = (LEFT, FAILED, RECOMPUTED)
REASONS: Final = ("idle", "turned away", "reads nothing", "largest laggard")

LABELS: Final[Mapping[str, str]] = {
    "lane": f'a lane\'s name; "" where a request was refused before its lane was known; {OTHER!r} for lanes '
    f"beyond the first {LANE_LABELS_MAX} that there were since the start",
    "key_class": 'the class that the key file gives the caller\'s key; "" for keys and callers without one, '
    f"{OTHER!r} for classes beyond the bound",
    "code": "the error's code, as in the body and in `x-forebay-dropped-reason`",
    "outcome": ", ".join(OUTCOMES),
    "cause": f"of a worker's end: {', '.join(get_args(DeathCause))}; of wasted tokens: {', '.join(WASTES)}",
    "state": ", ".join(get_args(Breaker)),
    "reason": ", ".join(REASONS),
    "version": "Forebay's",
    "model": "the name under which the model is served",
    "generation": "0, 1 or 2: of Python's garbage collector",
}

_WAIT_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_ERROR_BUCKETS: Final = (-60, -30, -10, -5, -2, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 2, 5, 10, 30, 60)
_GAP_BUCKETS: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5, 30)
_WHOLE_BUCKETS: Final = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
_STEP_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 5)
_LAG_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_RESTART_BUCKETS: Final = (0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 900)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `name` lacks what its kind adds.

    `collected` ones are read where they are kept, at a scrape; the others are objects that are told.
    """

    name: str
    kind: Kind
    words: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    collected: bool = False

    @property
    def sample_names(self) -> tuple[str, ...]:
        """Names of its series, as they stand in /metrics and in a query."""
        if self.kind == "counter":
            return (f"{self.name}_total",)
        if self.kind == "histogram":
            # A sum of values of both signs says nothing, and isn't told.
            parts = ("bucket", "count") if self.buckets[0] < 0 else ("bucket", "sum", "count")
            return tuple(f"{self.name}_{part}" for part in parts)
        return (self.name,)


class Section:
    """Metrics that belong together; each of the three methods declares one, and returns it."""

    def __init__(self, title: str, prefix: str = "forebay_") -> None:
        self.title = title
        self.metrics: list[Metric] = []
        self._prefix = prefix

    def counter(self, name: str, words: str, *labels: str, collected: bool = False) -> Metric:
        return self._declare(Metric(self._prefix + name, "counter", words, labels, collected=collected))

    def gauge(self, name: str, words: str, *labels: str, collected: bool = False) -> Metric:
        return self._declare(Metric(self._prefix + name, "gauge", words, labels, collected=collected))

    def histogram(
        self, name: str, words: str, buckets: tuple[float, ...], *labels: str, collected: bool = False
    ) -> Metric:
        full = self._prefix + name
        return self._declare(Metric(full, "histogram", words, labels, buckets, collected=collected))

    def _declare(self, metric: Metric) -> Metric:
        self.metrics.append(metric)
        return metric


_LANE: Final = ("lane",)
_PLACE: Final = ("lane", "key_class")

# --- lanes and their queues -------------------------------------------------------------------------------

_QUEUES: Final = Section("Lanes and their queues")
QUEUED: Final = _QUEUES.gauge("queued", "Answers that wait", *_PLACE)
RUNNING: Final = _QUEUES.gauge("running", "Answers that hold a row", *_PLACE)
QUEUE_PLACES: Final = _QUEUES.gauge("queue_places", "Answers that may wait, as configured", *_LANE)
OLDEST_WAIT: Final = _QUEUES.gauge("oldest_wait_seconds", "How long the lane's oldest has waited", *_LANE)
TARGET_WAIT: Final = _QUEUES.gauge(
    "lane_target_wait_seconds",
    "The wait that the lane is to keep to; only of lanes that have a target",
    *_LANE,
)
OVERLOADED: Final = _QUEUES.gauge(
    "lane_overloaded", "1 while waits have been over the lane's target for long", *_LANE
)
ADMITTED: Final = _QUEUES.counter("admitted", "Requests that were let in", *_PLACE)
REFUSED: Final = _QUEUES.counter(
    "refused", "Requests refused at arrival, and those that failed later, by error code", *_PLACE, "code"
)
QUEUE_WAIT: Final = _QUEUES.histogram(
    "queue_wait_seconds", "From an answer's arrival to its first start", _WAIT_BUCKETS, *_PLACE
)
ESTIMATE_ERROR: Final = _QUEUES.histogram(
    "estimate_error_seconds",
    "The wait for a first start, less what was estimated at arrival",
    _ERROR_BUCKETS,
    *_PLACE,
)
PARKS: Final = _QUEUES.counter("parks", "Rows that were parked", *_PLACE)

# --- answers ----------------------------------------------------------------------------------------------

_ANSWERS: Final = Section("Answers and their tokens")
TTFT: Final = _ANSWERS.histogram(
    "ttft_seconds",
    "From a request's arrival to an answer's first token",
    _WAIT_BUCKETS,
    *_PLACE,
    collected=True,
)
GAPS: Final = _ANSWERS.histogram(
    "inter_token_seconds",
    "From one token of an answer to the next, parks and restarts in between included",
    _GAP_BUCKETS,
    *_PLACE,
    collected=True,
)
TOKENS: Final = _ANSWERS.counter("tokens", "Tokens that answers were given", *_PLACE, collected=True)
ENDED: Final = _ANSWERS.counter(
    "answers", "Answers that are over: complete, failed, or left by their clients", *_PLACE, "outcome"
)
WHOLE: Final = _ANSWERS.histogram(
    "answer_seconds", "From a request's arrival to the end of a complete answer", _WHOLE_BUCKETS, *_PLACE
)
GOODPUT: Final = _ANSWERS.counter("goodput_tokens", "Tokens of answers that came to their end", *_PLACE)
WASTED: Final = _ANSWERS.counter(
    "wasted_tokens",
    "Tokens of answers that nobody got whole (left, failed), and tokens that were computed again after "
    "a park or a death (recomputed)",
    *_PLACE,
    "cause",
)
PROMPT_TOKENS: Final = _ANSWERS.counter(
    "prompt_tokens", "Tokens of prompts that were begun, each prompt once", *_PLACE
)
CACHED_TOKENS: Final = _ANSWERS.counter(
    "prompt_tokens_cached", "Those of them that were there already, and not computed", *_PLACE
)
PREFILLED: Final = _ANSWERS.counter(
    "prefill_tokens", "Tokens that the worker computed before answers could go on", *_PLACE
)

# --- the worker -------------------------------------------------------------------------------------------

_WORKER: Final = Section("The worker")
READY: Final = _WORKER.gauge("worker_ready", "1 while a worker is there that has loaded its model")
STEP: Final = _WORKER.histogram("step_seconds", "A decode step's time on the device", _STEP_BUCKETS)
ROWS: Final = _WORKER.gauge("worker_rows", "Rows that decode")
GROUPS: Final = _WORKER.gauge("worker_groups", "Groups of rows of like lengths, which run one after another")
SPEED: Final = _WORKER.gauge(
    "estimated_tokens_per_second",
    "What the rows that run should make, by the times of earlier steps; 0 without rows. What they do make is "
    "`rate(forebay_tokens_total[1m])`",
)
PREFILL_SPEED: Final = _WORKER.gauge(
    "estimated_prefill_tokens_per_second", "How fast prompts should be computed, by what was seen of it"
)
HOUSE: Final = _WORKER.gauge(
    "house_seconds", "Device time for computing again what a park or a death lost; no key pays for it"
)

# --- memory -----------------------------------------------------------------------------------------------

_MEMORY: Final = Section("Memory")
RESERVED: Final = _MEMORY.gauge("kv_reserved_bytes", "What running answers may grow to")
HELD: Final = _MEMORY.gauge("kv_held_bytes", "What the worker's KV caches hold")
BUDGET: Final = _MEMORY.gauge("kv_budget_bytes", "What running answers may take now")
BUDGET_FULL: Final = _MEMORY.gauge(
    "kv_budget_full_bytes", "What they may take while memory is plenty; 0 before the first worker"
)
WEIGHTS: Final = _MEMORY.gauge("worker_weights_bytes", "What the model's weights take")
ACTIVE: Final = _MEMORY.gauge("worker_active_bytes", "What the worker's arrays take on the device")
CACHE: Final = _MEMORY.gauge("worker_cache_bytes", "What its allocator keeps for arrays to come")
PEAK: Final = _MEMORY.gauge("worker_peak_bytes", "The most that its arrays took")
FOOTPRINT: Final = _MEMORY.gauge("worker_footprint_bytes", "What the worker's process holds")
ARRAYS: Final = _MEMORY.gauge(
    "worker_arrays", "Arrays alive on the device; 0 where nothing bounds their number"
)
ARRAYS_MAX: Final = _MEMORY.gauge("worker_arrays_max", "How many of them there may be; 0 for no bound")
OVER_MEMORY: Final = _MEMORY.gauge(
    "worker_over_memory", "1 while the worker holds more than it may and can't give it back"
)

# --- prefixes ---------------------------------------------------------------------------------------------

_PREFIXES: Final = Section("Beginnings of prompts")
KEPT: Final = _PREFIXES.gauge("prefix_kept_bytes", "What beginnings of prompts take that no row reads")
SHARED: Final = _PREFIXES.gauge(
    "prefix_shared_bytes", "What beginnings of prompts take that rows read together"
)
BLOCKS: Final = _PREFIXES.gauge("prefix_blocks", "Blocks of prompts that the worker keeps")
DISK: Final = _PREFIXES.gauge("prefix_disk_bytes", "What beginnings of prompts take on disk")
EVICTIONS: Final = _PREFIXES.counter(
    "prefix_evictions", "Blocks of prompts that were given up for want of memory", collected=True
)
DISK_READS: Final = _PREFIXES.counter(
    "prefix_disk_reads", "Blocks of prompts that were read from disk", collected=True
)
DISK_WRITES: Final = _PREFIXES.counter(
    "prefix_disk_writes", "Blocks of prompts that were written to disk", collected=True
)
DISK_BAD: Final = _PREFIXES.counter(
    "prefix_disk_bad", "Files of blocks that were damaged or foreign, and not used", collected=True
)

# --- survival ---------------------------------------------------------------------------------------------

_SURVIVAL: Final = Section("Survival")
STARTS: Final = _SURVIVAL.counter("worker_starts", "Workers that came and said they were ready")
DEATHS: Final = _SURVIVAL.counter("worker_deaths", "Ends of worker processes, by cause", "cause")
RESTART: Final = _SURVIVAL.histogram(
    "restart_seconds", "From losing a worker to the next one's being ready", _RESTART_BUCKETS
)
RUNG: Final = _SURVIVAL.gauge("rung", "Steps down after deaths for want of memory")
BREAKER: Final = _SURVIVAL.gauge("breaker", "1 for the supervisor's state, 0 for the others", "state")
RESUMES: Final = _SURVIVAL.counter(
    "resumes", "Answers that lost their row to a worker's end and went on", *_PLACE
)
RESUME: Final = _SURVIVAL.histogram(
    "resume_seconds",
    "From losing the row to the next token, of answers that a worker's end interrupted",
    _WAIT_BUCKETS,
    *_LANE,
)
SUSPECTS: Final = _SURVIVAL.gauge("suspects", "Answers that wait to run alone")
QUARANTINED: Final = _SURVIVAL.gauge("quarantined", "Requests that are refused for killing the worker")

# --- the gateway ------------------------------------------------------------------------------------------

_GATEWAY: Final = Section("The gateway")
INFO: Final = _GATEWAY.gauge("gateway_info", "Always 1; its labels say what runs", "version", "model")
DRAINING: Final = _GATEWAY.gauge("draining", "1 while nothing new is taken")
IS_HELD: Final = _GATEWAY.gauge("held", "1 while nothing new is started, for a planned restart")
LAG: Final = _GATEWAY.histogram(
    "loop_lag_seconds",
    "How late the proxy's clock ticks, four times a second: its loop was busy",
    _LAG_BUCKETS,
)
CONNECTIONS: Final = _GATEWAY.gauge("connections", "Connections that are open")
UNDELIVERED: Final = _GATEWAY.gauge("undelivered_bytes", "What clients have still to take of their answers")
CUT_OFF: Final = _GATEWAY.counter(
    "connections_ended", "Connections that were cut off or turned away, by reason", "reason"
)

# By the names that all programs have them by.
_PROCESS: Final = Section("The proxy's process", prefix="")
CPU: Final = _PROCESS.counter("process_cpu_seconds", "Processor time, of user and system", collected=True)
RESIDENT: Final = _PROCESS.gauge("process_resident_memory_bytes", "Memory that it holds", collected=True)
OPEN_FDS: Final = _PROCESS.gauge("process_open_fds", "Descriptors that are open", collected=True)
BEGAN: Final = _PROCESS.gauge("process_start_time_seconds", "When it began, in Unix seconds", collected=True)
GC_RUNS: Final = _PROCESS.counter(
    "python_gc_collections", "The garbage collector's runs", "generation", collected=True
)
GC_FREED: Final = _PROCESS.counter(
    "python_gc_objects_collected", "Objects that it freed", "generation", collected=True
)
GC_STUCK: Final = _PROCESS.counter(
    "python_gc_objects_uncollectable", "Objects that it found and couldn't free", "generation", collected=True
)

SECTIONS: Final = (_QUEUES, _ANSWERS, _WORKER, _MEMORY, _PREFIXES, _SURVIVAL, _GATEWAY, _PROCESS)


def declared() -> Iterator[Metric]:
    """Yield all metrics, in the order of the table."""
    for section in SECTIONS:
        yield from section.metrics
