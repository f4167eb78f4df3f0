"""The gateway at one moment, as the status page, `forebay top` and `forebay status` show it.

It has no words of prompts or answers and no keys: whoever reaches the gateway may read it. Of a quarantined
request it has the fingerprint. The JSON form has these fields by these names; new ones are added, none
changes its meaning.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewayView:
    """`status` is ready, loading, restarting, absent or draining; `since_s` is how long it has been so.

    `held` means that nothing new starts, for a planned restart; `live` counts answers, queued and running.
    """

    status: str
    since_s: float
    uptime_s: float
    version: str
    model: str
    draining: bool
    held: bool
    live: int
    resumed: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    """The worker, as far as there is one. `rung`, `breaker`, `starts_in_s`: how cautious its supervisor is.

    `rows` are in its batch now, in `groups` of like lengths. `step` counts the steps of this life. Of its
    `slots` the gateway fills `slots_now` at most: fewer on a higher rung, of which `rung_max` is the highest.
    """

    status: str
    epoch: int | None
    family: str | None
    caches: str | None
    context_tokens: int | None
    slots: int | None
    rows: int | None
    groups: int | None
    step: int | None
    rung: int
    breaker: str
    starts_in_s: float | None
    deaths: int
    slots_now: int | None
    rung_max: int


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane, the highest first. `oldest_wait_s` is of what waits in it.

    While it is overloaded nothing is let in that would wait longer than `target_wait_s`, else than
    `deadline_s`.
    """

    name: str
    queued: int
    running: int
    queue_places: int
    oldest_wait_s: float
    overloaded: bool
    target_wait_s: float | None
    deadline_s: float


@dataclass(frozen=True, slots=True)
class RowView:
    """An answer that holds a row: its lane, its length now and what it may grow to, in tokens."""

    lane: str
    tokens: int
    tokens_max: int
    attempt: int


@dataclass(frozen=True, slots=True)
class MemoryView:
    """Bytes; None where no worker tells.

    Beside the weights there is a budget for KV caches: `kv_budget_bytes` now, of `kv_budget_full_bytes` while
    memory is plenty. Of it there are: what is reserved for running answers (what these hold now is in it),
    and what is kept of prompts in case somebody begins with it. The rest of the budget is headroom.
    """

    weights_bytes: int | None
    kv_budget_full_bytes: int | None
    kv_budget_bytes: int | None
    kv_reserved_bytes: int
    kv_held_bytes: int | None
    prefix_kept_bytes: int | None
    prefix_shared_bytes: int | None
    prefix_disk_bytes: int | None
    active_bytes: int | None
    cache_bytes: int | None
    peak_bytes: int | None
    footprint_bytes: int | None
    arrays: int | None
    arrays_max: int | None


@dataclass(frozen=True, slots=True)
class SpeedView:
    """The last ten seconds: tokens a second of all answers; times to first token, None where none began."""

    tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    refused: int


@dataclass(frozen=True, slots=True)
class DeathView:
    """One end of a worker, `at` in Unix seconds. `restart_s` is None until the next one is there."""

    at: float
    epoch: int
    cause: str
    detail: str
    rows: int
    restart_s: float | None


@dataclass(frozen=True, slots=True)
class QuarantinedView:
    """A request that isn't run because it killed the worker. Times in Unix seconds."""

    fingerprint: str
    at: float
    until: float
    cause: str
    lane: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class HistoryView:
    """A quarter of an hour in columns of equal length, the oldest first; `time` in Unix seconds."""

    interval_s: float
    time: tuple[float, ...]
    tokens_per_s: tuple[float, ...]
    ttft_p50_s: tuple[float | None, ...]
    ttft_p95_s: tuple[float | None, ...]
    queued: tuple[int, ...]
    running: tuple[int, ...]
    kv_bytes: tuple[int, ...]
    refused: tuple[int, ...]
    deaths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it; `time` in Unix seconds. Lists are bounded, the newest kept; `quarantined` counts all.

    `recent` are the history's last intervals, so that whoever asks each few seconds misses none.
    """

    time: float
    gateway: GatewayView
    worker: WorkerView
    lanes: tuple[LaneView, ...]
    rows: tuple[RowView, ...]
    memory: MemoryView
    speed: SpeedView
    deaths: tuple[DeathView, ...]
    quarantined: int
    quarantine: tuple[QuarantinedView, ...]
    suspects: int
    prompt_tokens: int
    cached_tokens: int
    recent: HistoryView
