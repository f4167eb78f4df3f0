"""The wire's words. Each names the epoch it belongs to: one life of the worker process.

The proxy accepts only the current epoch, the current attempt and the next index, so a zombie's words and
duplicates are harmless. A sequence is one answer in the making: a request for n answers to p prompts is n*p
sequences. `attempt` counts how often it was submitted, from 1.
"""

from dataclasses import dataclass
from typing import Final, Literal

from shared.limits import (
    ATTEMPTS_MAX,
    CONTEXT_TOKENS_MAX,
    LANES_MAX,
    NAME_CHARS_MAX,
    PREFIX_NEWS_MAX,
    QUANTUM_MS_MAX,
    RECORDS_MAX,
    RUNG_MAX,
    SALT_CHARS_MAX,
    SLOTS_MAX,
    TOP_LOGPROBS_MAX,
    VOCABULARY_MAX,
    require,
)
from shared.model_facts import ModelFacts
from shared.prefix_chain import NAME_BITS
from shared.readings import NO_PREFIXES, NO_ROWS, EngineReading, MemoryReading, PrefixReading
from shared.sampling import Sampling

PROTOCOL_VERSION: Final = 8

FinishReason = Literal["stop", "length"]
Phase = Literal["loading", "idle", "prefill", "decode"]
DeathCause = Literal[
    "memory", "crash", "loop_exception", "hang", "killed", "stuck_load", "planned", "cannot_load"
]
Breaker = Literal["closed", "open", "half_open"]

# Causes for which what ran may be to blame. A process that was killed from outside, was replaced on purpose
# or never served says nothing about its rows.
BLAMED_CAUSES: Final[frozenset[DeathCause]] = frozenset({"memory", "crash", "loop_exception", "hang"})


def _require_ids(ids: tuple[int, ...], what: str) -> None:
    require(len(ids) <= CONTEXT_TOKENS_MAX, f"{what}: too many ids")
    require(not ids or (min(ids) >= 0 and max(ids) < VOCABULARY_MAX), f"{what}: id out of range")


def _require_place(sequence: str, attempt: int) -> None:
    require(0 < len(sequence) <= NAME_CHARS_MAX, "sequence: bad length")
    require(1 <= attempt <= ATTEMPTS_MAX, "attempt out of range")


# --- proxy → worker ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """Run this sequence: prefill prompt and emitted ids, then go on at index len(emitted_ids).

    `rank` is its lane's place in the order of lanes, 0 for the first; `quantum_ms` is what one piece of its
    prefill may take, which is what others wait for. What is kept of prompts is shared among those of one
    `salt` only.
    """

    epoch: int
    sequence: str
    attempt: int
    prompt_ids: tuple[int, ...]
    emitted_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    sampling: Sampling
    rank: int
    quantum_ms: float
    salt: str = ""

    def __post_init__(self) -> None:
        _require_place(self.sequence, self.attempt)
        require(len(self.salt) <= SALT_CHARS_MAX, "salt: too long")
        require(len(self.prompt_ids) >= 1, "prompt_ids: empty")
        _require_ids(self.prompt_ids, "prompt_ids")
        _require_ids(self.emitted_ids, "emitted_ids")
        _require_ids(self.stop_ids, "stop_ids")
        require(len(self.emitted_ids) < self.max_tokens <= CONTEXT_TOKENS_MAX, "max_tokens out of range")
        require(0 <= self.rank < LANES_MAX, "rank out of range")
        require(0 < self.quantum_ms <= QUANTUM_MS_MAX, "quantum_ms out of range")


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget this sequence at the next step; unknown ones are ignored."""

    epoch: int
    sequence: str


@dataclass(frozen=True, slots=True)
class Park:
    """Give up this sequence's row and memory at the next step, and say Parked; unknown ones are ignored.

    It comes back as a Submit of the next attempt. What was kept of it meanwhile is the worker's affair.
    """

    epoch: int
    sequence: str


@dataclass(frozen=True, slots=True)
class Ping:
    """The proxy lives. `number` grows; Progress echoes the last one seen, which orders the two directions."""

    epoch: int
    number: int


# --- proxy → supervisor -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restart:
    """Replace the worker of this epoch on purpose; one of any other epoch has been replaced already."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the worker, whatever its epoch, and then the supervisor itself."""

    epoch: int


# --- worker → proxy ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker has loaded its model (or met a new proxy) and runs nothing.

    The two times are what its warm-up measured: a token's share of a prefill, and a decode step of one row.
    """

    epoch: int
    worker: str
    facts: ModelFacts
    budget_bytes: int
    slots: int
    prefill_ms_per_token: float
    decode_ms_per_step: float

    def __post_init__(self) -> None:
        require(1 <= self.slots <= SLOTS_MAX, "slots out of range")
        require(self.budget_bytes >= 0, "budget_bytes must not be negative")
        require(min(self.prefill_ms_per_token, self.decode_ms_per_step) >= 0, "times must not be negative")


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row's token of a step; `index` is its place in the answer, from 0."""

    sequence: str
    attempt: int
    index: int
    token: int

    def __post_init__(self) -> None:
        _require_place(self.sequence, self.attempt)
        require(0 <= self.index < CONTEXT_TOKENS_MAX, "index out of range")
        require(0 <= self.token < VOCABULARY_MAX, "token out of range")


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """The log probability of the token of a step's row `place`, and of the most likely ones, highest first.

    Only rows that asked for it have one; `top_ids` and `top_logprobs` have as many entries as were asked for.
    """

    place: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        require(0 <= self.place < RECORDS_MAX, "place out of range")
        require(len(self.top_ids) == len(self.top_logprobs) <= TOP_LOGPROBS_MAX, "top_ids: bad length")
        _require_ids(self.top_ids, "top_ids")
        require(max((self.logprob, *self.top_logprobs)) <= 0, "logprobs must not be positive")


@dataclass(frozen=True, slots=True)
class PrefillShare:
    """What prefilling `tokens` of one sequence took of the device since the last Step, in milliseconds.

    `cached` tokens before them were there already; it is told once, with the first share of an attempt.
    """

    sequence: str
    attempt: int
    tokens: int
    gpu_ms: float
    cached: int = 0

    def __post_init__(self) -> None:
        _require_place(self.sequence, self.attempt)
        require(0 <= self.tokens <= CONTEXT_TOKENS_MAX, "tokens out of range")
        require(0 <= self.cached <= CONTEXT_TOKENS_MAX, "cached out of range")
        require(self.gpu_ms >= 0, "gpu_ms must not be negative")


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step: a token for each row that has one, and what was prefilled since the step before.

    `step_ms` is the step's time on the device, `row_ms` each row's share of it. They are 0 where prefill has
    brought the tokens, and where a turn that only prefills says so in a Step without rows.
    """

    epoch: int
    step: int
    step_ms: float
    row_ms: float
    rows: tuple[StepRow, ...]
    prefills: tuple[PrefillShare, ...]
    logprobs: tuple[RowLogprobs, ...] = ()

    def __post_init__(self) -> None:
        require(min(self.step_ms, self.row_ms) >= 0, "times must not be negative")
        places = [each.place for each in self.logprobs]
        require(len(set(places)) == len(places), "logprobs: a row twice")
        require(all(place < len(self.rows) for place in places), "logprobs: place out of range")


@dataclass(frozen=True, slots=True)
class Finished:
    """The sequence ended by itself after `index` tokens; a stop id is not counted and not sent."""

    epoch: int
    sequence: str
    attempt: int
    index: int
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker can't run this sequence, though it goes on with others."""

    epoch: int
    sequence: str
    attempt: int
    message: str


@dataclass(frozen=True, slots=True)
class Parked:
    """The sequence gave up its row after `index` tokens, all of which were sent before."""

    epoch: int
    sequence: str
    attempt: int
    index: int

    def __post_init__(self) -> None:
        _require_place(self.sequence, self.attempt)
        require(0 <= self.index < CONTEXT_TOKENS_MAX, "index out of range")


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life from the loop itself: what it is about to do and how long that should take.

    `running` names every sequence the worker holds, so that the proxy can find what got lost on the wire.
    `kv_bytes` is what their caches hold now, to be compared with what was reserved for them; `budget_bytes`
    what they may hold now, which is less than Hello said while memory is short. `tokens` and `answers` count
    what this life has emitted and finished. `wants_recycle` asks to be replaced while nothing runs: it holds
    more than it may and can't give it back.
    """

    epoch: int
    step: int
    phase: Phase
    expected_ms: float
    ping: int
    running: tuple[str, ...]
    kv_bytes: int
    budget_bytes: int
    tokens: int
    answers: int
    wants_recycle: bool
    memory: MemoryReading
    prefixes: PrefixReading = NO_PREFIXES
    engine: EngineReading = NO_ROWS


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Blocks of prompts that this worker keeps from now on, and such as it keeps no more, by their names.

    A name is shared.prefix_chain's, of everything up to the block's end. After each Hello all are told anew.
    """

    epoch: int
    added: tuple[int, ...]
    gone: tuple[int, ...]

    def __post_init__(self) -> None:
        require(max(len(self.added), len(self.gone)) <= PREFIX_NEWS_MAX, "too many names")
        names = (*self.added, *self.gone)
        require(not names or (min(names) >= 0 and max(names) < 1 << NAME_BITS), "name out of range")


# --- supervisor → proxy -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Care:
    """How cautious the supervisor is.

    `rung` is how far it has stepped down after deaths for want of memory, 0 for not at all; what each rung
    means is the proxy's affair. `breaker` says whether workers are started: half open, one is on trial.
    """

    rung: int
    breaker: Breaker

    def __post_init__(self) -> None:
        require(0 <= self.rung <= RUNG_MAX, "rung out of range")


CALM: Final = Care(rung=0, breaker="closed")


@dataclass(frozen=True, slots=True)
class Starting:
    """A worker process was spawned; said again each second while it lives."""

    epoch: int
    care: Care


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """A row of the step that ran when the worker died: it was to make the token at `index`, or prefilled."""

    sequence: str
    attempt: int
    index: int
    prefilling: bool

    def __post_init__(self) -> None:
        _require_place(self.sequence, self.attempt)
        require(0 <= self.index <= CONTEXT_TOKENS_MAX, "index out of range")


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker process is gone. Its sequences are orphans from now on; `rows` were in its last step."""

    epoch: int
    cause: DeathCause
    detail: str
    rows: tuple[ManifestRow, ...]


@dataclass(frozen=True, slots=True)
class BackingOff:
    """The next worker is started after `delay_s`; `epoch` is the last one's."""

    epoch: int
    delay_s: float
    care: Care


Message = (
    Submit
    | Cancel
    | Ping
    | Hello
    | Step
    | Finished
    | Failed
    | Progress
    | Starting
    | Exited
    | BackingOff
    | Park
    | Parked
    | Restart
    | Stop
    | Prefixes
)
