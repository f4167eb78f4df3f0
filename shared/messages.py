"""The wire's words. Each names the epoch it belongs to: one life of the worker process.

The proxy accepts only the current epoch, the current attempt and the next index, so a zombie's words and
duplicates are harmless. A sequence is one answer in the making: a request for n answers to p prompts is n*p
sequences. `attempt` counts how often it was submitted, from 1.
"""

from dataclasses import dataclass
from typing import Final, Literal

from shared.limits import ATTEMPTS_MAX, CONTEXT_TOKENS_MAX, NAME_CHARS_MAX, SLOTS_MAX, VOCABULARY_MAX
from shared.sampling import Sampling

PROTOCOL_VERSION: Final = 1

FinishReason = Literal["stop", "length"]
Phase = Literal["loading", "idle", "prefill", "decode"]
DeathCause = Literal["memory", "crash", "loop_exception", "hang", "stuck_load", "planned", "cannot_load"]


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


def _require_ids(ids: tuple[int, ...], what: str) -> None:
    _require(len(ids) <= CONTEXT_TOKENS_MAX, f"{what}: too many ids")
    _require(not ids or (min(ids) >= 0 and max(ids) < VOCABULARY_MAX), f"{what}: id out of range")


def _require_place(sequence: str, attempt: int) -> None:
    _require(0 < len(sequence) <= NAME_CHARS_MAX, "sequence: bad length")
    _require(1 <= attempt <= ATTEMPTS_MAX, "attempt out of range")


# --- what a model is and costs ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the worker measured and classified when it loaded the model.

    `kv_bytes_per_token` is for one row. The batch has places for a multiple of `kv_pad_rows` rows, each of a
    multiple of `kv_pad_tokens` tokens. `fixed_bytes_per_row` is state that doesn't grow (SSM, convolutions).
    `batches` False means that one row runs at a time, and `why_not` says why.
    """

    fingerprint: str
    family: str
    context_tokens: int
    vocabulary: int
    weights_bytes: int
    kv_bytes_per_token: int
    kv_pad_tokens: int
    kv_pad_rows: int
    fixed_bytes_per_row: int
    batches: bool
    why_not: str

    def __post_init__(self) -> None:
        _require(1 <= self.context_tokens <= CONTEXT_TOKENS_MAX, "context_tokens out of range")
        _require(1 <= self.vocabulary <= VOCABULARY_MAX, "vocabulary out of range")
        _require(self.kv_pad_tokens >= 1 and self.kv_pad_rows >= 1, "padding must be positive")
        costs = (self.weights_bytes, self.kv_bytes_per_token, self.fixed_bytes_per_row)
        _require(min(costs) >= 0, "bytes must not be negative")

    def batch_bytes(self, rows: int, longest: int) -> int:
        """Return what a padded batch of `rows` takes, the longest having `longest` tokens, in bytes.

        One row more is counted than the batch has places for: it is being prefilled or copied in.
        """
        if not rows:
            return 0
        places = -(-rows // self.kv_pad_rows) * self.kv_pad_rows + 1
        tokens = -(-(longest + 1) // self.kv_pad_tokens) * self.kv_pad_tokens
        return places * (tokens * self.kv_bytes_per_token + self.fixed_bytes_per_row)


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """What the device and the process hold at one moment, in bytes."""

    active_bytes: int
    cache_bytes: int
    peak_bytes: int
    footprint_bytes: int


# --- proxy → worker ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """Run this sequence: prefill prompt and emitted ids, then go on at index len(emitted_ids)."""

    epoch: int
    sequence: str
    attempt: int
    prompt_ids: tuple[int, ...]
    emitted_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    sampling: Sampling

    def __post_init__(self) -> None:
        _require_place(self.sequence, self.attempt)
        _require(len(self.prompt_ids) >= 1, "prompt_ids: empty")
        _require_ids(self.prompt_ids, "prompt_ids")
        _require_ids(self.emitted_ids, "emitted_ids")
        _require_ids(self.stop_ids, "stop_ids")
        _require(len(self.emitted_ids) < self.max_tokens <= CONTEXT_TOKENS_MAX, "max_tokens out of range")


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget this sequence at the next step; unknown ones are ignored."""

    epoch: int
    sequence: str


@dataclass(frozen=True, slots=True)
class Ping:
    """The proxy lives. `number` grows; Progress echoes the last one seen, which orders the two directions."""

    epoch: int
    number: int


# --- worker → proxy ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker has loaded its model (or met a new proxy) and runs nothing."""

    epoch: int
    worker: str
    facts: ModelFacts
    budget_bytes: int
    slots: int

    def __post_init__(self) -> None:
        _require(1 <= self.slots <= SLOTS_MAX, "slots out of range")
        _require(self.budget_bytes >= 0, "budget_bytes must not be negative")


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row's token of a step; `index` is its place in the answer, from 0."""

    sequence: str
    attempt: int
    index: int
    token: int

    def __post_init__(self) -> None:
        _require_place(self.sequence, self.attempt)
        _require(0 <= self.index < CONTEXT_TOKENS_MAX, "index out of range")
        _require(0 <= self.token < VOCABULARY_MAX, "token out of range")


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step: a token for each row that has one. `step_ms` is the time since the last step."""

    epoch: int
    step: int
    step_ms: float
    rows: tuple[StepRow, ...]


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
class Progress:
    """A sign of life from the loop itself: what it is about to do and how long that should take.

    `running` names every sequence the worker holds, so that the proxy can find what got lost on the wire.
    """

    epoch: int
    step: int
    phase: Phase
    expected_ms: float
    ping: int
    running: tuple[str, ...]
    memory: MemoryReading


# --- supervisor → proxy -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Starting:
    """A worker process was spawned and loads its model."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker process is gone. Its sequences are orphans from now on."""

    epoch: int
    cause: DeathCause
    detail: str


@dataclass(frozen=True, slots=True)
class BackingOff:
    """The next worker is started after `delay_s`; `epoch` is the last one's."""

    epoch: int
    delay_s: float


Message = (
    Submit | Cancel | Ping | Hello | Step | Finished | Failed | Progress | Starting | Exited | BackingOff
)
