"""What the restart policy hears and what it orders: its events and its instructions.

Every event carries `at`, seconds of one monotonic clock.
"""

from dataclasses import dataclass

from shared.messages import BackingOff, Exited, ManifestRow, Progress, Starting
from worker.death import MemoryEvidence
from worker.journal import BecameReady, CareChanged, Ended, Ran, Spawned

NO_EVIDENCE = MemoryEvidence()

# --- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The supervisor has begun its work."""

    at: float


@dataclass(frozen=True, slots=True)
class Progressed:
    """The worker process reported."""

    progress: Progress
    at: float


@dataclass(frozen=True, slots=True)
class FoundStopped:
    """The worker process that is about to be killed for its silence turned out to be stopped (SIGSTOP)."""

    at: float


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The worker process is gone. `status` is its exit status, or minus the signal that ended it.

    `rows` are those of its last step, `evidence` what was seen of the machine's memory just before.
    """

    status: int
    stderr_tail: str
    at: float
    rows: tuple[ManifestRow, ...] = ()
    evidence: MemoryEvidence = NO_EVIDENCE


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The system would not start the process that was to be spawned."""

    problem: str
    at: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Some time went by: a quarter of a second, unless the supervisor itself was held up."""

    at: float


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """The worker of this epoch is to be replaced; one of any other epoch has been already."""

    epoch: int
    at: float


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The supervisor is to end: after a grace for the worker, or at once."""

    at: float
    at_once: bool = False


Event = Started | Progressed | FoundStopped | ProcessExited | SpawnFailed | Ticked | RestartAsked | StopAsked


# --- instructions -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a worker process; answered by SpawnFailed, or one day by ProcessExited.

    `keeps_prefixes` is whether it may keep beginnings of prompts, if it is set to.
    """

    epoch: int
    keeps_prefixes: bool = True


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the worker process to end (SIGTERM)."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End the worker process (SIGKILL); if it is found stopped, that is answered by FoundStopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the proxy. `again` marks what was told before, and is repeated in case the proxy is a new one."""

    message: Starting | Exited | BackingOff
    again: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Put this in the journal. The rows of a Ran are filled in by who can read the manifest."""

    entry: Spawned | BecameReady | Ran | Ended | CareChanged


@dataclass(frozen=True, slots=True)
class Quit:
    """Nothing is left to supervise."""


Instruction = Spawn | Terminate | Kill | Tell | Write | Quit
