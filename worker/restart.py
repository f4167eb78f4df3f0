"""What the supervisor decides when its worker reports, falls silent or dies: events in, instructions out.

Pure: no process, no socket, no clock. Every event carries `at`, seconds of one monotonic clock.
"""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

import tenacity

from shared.config import WorkerSettings
from shared.limits import PROGRESS_INTERVAL_S
from shared.messages import BackingOff, DeathCause, Exited, Phase, Progress, Starting
from worker.death import Death, death_of, one_line

BACKOFF_S_MAX: Final = 30.0
BACKOFF_JITTER: Final = 0.25
HEALTHY_S: Final = 120.0
REPEAT_S: Final = 1.0
LATE_TICK_S: Final = 1.0
STOP_GRACE_S: Final = 5.0
KILL_AGAIN_S: Final = 3.0
# An idle loop reports every PROGRESS_INTERVAL_S, so its silence begins that much earlier than it shows.
IDLE_MARGIN_S: Final = 2 * PROGRESS_INTERVAL_S
EXPECTATION_FACTOR: Final = 4.0
# However long a step is expected to take, nobody waits longer than this for it.
EXPECTED_SILENCE_S_MAX: Final = 600.0


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
class ProcessExited:
    """The worker process is gone. `status` is its exit status, or minus the signal that ended it."""

    status: int
    stderr_tail: str
    at: float


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
class StopAsked:
    """The supervisor is to end: after a grace for the worker, or at once."""

    at: float
    at_once: bool = False


Event = Started | Progressed | ProcessExited | SpawnFailed | Ticked | StopAsked


# --- instructions -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a worker process; answered by SpawnFailed, or one day by ProcessExited."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the worker process to end (SIGTERM)."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End the worker process (SIGKILL)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the proxy. `again` marks what was told before, and is repeated in case the proxy is a new one."""

    message: Starting | Exited | BackingOff
    again: bool = False


@dataclass(frozen=True, slots=True)
class Quit:
    """Nothing is left to supervise."""


Instruction = Spawn | Terminate | Kill | Tell | Quit


# --- delays -----------------------------------------------------------------------------------------------


_DELAYS: Final = tenacity.wait_chain(
    tenacity.wait_fixed(0), tenacity.wait_exponential(multiplier=0.5, exp_base=2, max=BACKOFF_S_MAX)
)


def backoff_s(failures: int, jitter: float) -> float:
    """Return the wait after so many deaths in a row: 0, 1, 2, 4, 8, 16, 30 … seconds.

    `jitter` in [0, 1) takes off up to a quarter, so the table's value is never exceeded.
    """
    attempt = tenacity.RetryCallState(tenacity.Retrying(), fn=None, args=(), kwargs={})
    attempt.attempt_number = failures
    return _DELAYS(attempt) * (1.0 - BACKOFF_JITTER * jitter)


# --- the policy -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Life:
    """The worker process that was spawned last and isn't buried yet.

    `moved_at` is when it last showed a sign of life, `doom` why it is being killed, `kill_at` when it is
    killed (again) if it's still there.
    """

    epoch: int
    moved_at: float
    progress: Progress | None = None
    healthy_since: float | None = None
    doom: Death | None = None
    kill_at: float | None = None

    def note(self, progress: Progress, at: float) -> None:
        """Take in a report. While loading or busy only a new step is a sign of life, not the report."""
        if self.progress is None or _moved(self.progress, progress):
            self.moved_at = at
        if self.healthy_since is None and progress.phase != "loading":
            self.healthy_since = at
        self.progress = progress

    def judge(self, at: float, settings: WorkerSettings) -> Death | None:
        """Return why this process must be killed, or None if it may go on."""
        silence_s, limit_s = at - self.moved_at, self._silence_s_max(settings)
        if silence_s <= limit_s:
            return None
        if self.progress is None or self.progress.phase == "loading":
            step = self.progress.step if self.progress else 0
            return Death("stuck_load", f"no progress for {silence_s:.1f} s of loading, at step {step}")
        words = f"no sign of life for {silence_s:.1f} s (limit {limit_s:.1f} s), {self.progress.phase}"
        return Death("hang", f"{words} at step {self.progress.step}")

    def _silence_s_max(self, settings: WorkerSettings) -> float:
        if self.progress is None or self.progress.phase == "loading":
            return settings.load_deadline_s
        if self.progress.phase == "idle":
            return settings.hang_floor_s + IDLE_MARGIN_S
        expected_s = EXPECTATION_FACTOR * self.progress.expected_ms / 1000
        return max(settings.hang_floor_s, min(expected_s, EXPECTED_SILENCE_S_MAX))


def _moved(before: Progress, after: Progress) -> bool:
    if after.phase == "idle":
        return True
    return after.step != before.step or _activity(after.phase) != _activity(before.phase)


def _activity(phase: Phase) -> str:
    """Prefill and decode are parts of one step: going from one to the other is no progress by itself."""
    return "busy" if phase in ("prefill", "decode") else phase


class RestartPolicy:
    """Keeps one worker alive: at most one process at a time, restarted with back-off, killed when it hangs.

    Epochs count up from `first_epoch`. `jitter` returns a number in [0, 1).
    """

    def __init__(self, settings: WorkerSettings, *, first_epoch: int, jitter: Callable[[], float]) -> None:
        assert first_epoch > 0, "epochs are positive"
        self._settings = settings
        self._next_epoch = first_epoch
        self._jitter = jitter
        self._life: _Life | None = None
        self._exited: Exited | None = None
        self._due: float | None = None
        self._failures = 0
        self._stopping = False
        self._ticked_at = 0.0
        self._told_at = 0.0

    def handle(self, event: Event) -> list[Instruction]:
        match event:
            case Started(at):
                self._ticked_at = at
                return self._spawn(at)
            case Progressed(progress, at):
                self._note(progress, at)
                return []
            case ProcessExited(status, stderr_tail, at):
                return self._bury(self._explain(status, stderr_tail), at)
            case SpawnFailed(problem, at):
                return self._bury(Death("crash", one_line(f"could not be started: {problem}")), at)
            case Ticked(at):
                return self._tick(at)
            case StopAsked(at, at_once):
                return self._stop(at, at_once=at_once)
            case _:
                assert_never(event)

    def _spawn(self, at: float) -> list[Instruction]:
        assert self._life is None, "two worker processes at a time"
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self._life, self._due, self._told_at = _Life(epoch, moved_at=at), None, at
        return [Spawn(epoch), Tell(Starting(epoch))]

    def _note(self, progress: Progress, at: float) -> None:
        life = self._life
        if life is None or progress.epoch != life.epoch:
            return
        life.note(progress, at)
        if life.healthy_since is not None and at - life.healthy_since >= HEALTHY_S:
            self._failures = 0

    def _explain(self, status: int, stderr_tail: str) -> Death:
        assert self._life is not None, "a process ended that was never spawned"
        if self._life.doom is not None and status == -signal.SIGKILL:
            return self._life.doom
        if self._stopping:
            return Death("planned", "the supervisor was asked to stop")
        return death_of(status, stderr_tail)

    def _bury(self, death: Death, at: float) -> list[Instruction]:
        life, self._life = self._life, None
        assert life is not None, "nothing to bury"
        self._exited = Exited(life.epoch, death.cause, death.detail)
        if self._stopping:
            return [Tell(self._exited), Quit()]
        delay_s = self._delay_s(death.cause, life)
        if delay_s == 0:
            return [Tell(self._exited), *self._spawn(at)]
        self._due, self._told_at = at + delay_s, at
        return [Tell(self._exited), Tell(BackingOff(life.epoch, delay_s))]

    def _delay_s(self, cause: DeathCause, life: _Life) -> float:
        """Return the wait before the next life. A recycle costs nothing, if the worker had begun to serve."""
        if cause == "planned" and life.healthy_since is not None:
            return 0.0
        self._failures += 1
        return backoff_s(self._failures, self._jitter())

    def _tick(self, at: float) -> list[Instruction]:
        late = at - self._ticked_at > LATE_TICK_S
        self._ticked_at = at
        if self._life is not None:
            return [*self._check(self._life, at, late=late), *self._repeat(at)]
        if self._due is not None and at >= self._due:
            return self._spawn(at)
        return self._repeat(at)

    def _check(self, life: _Life, at: float, *, late: bool) -> list[Instruction]:
        if life.kill_at is not None:
            return self._kill(life, at, "it is still there") if at >= life.kill_at else []
        if late:
            # The supervisor itself was held up (the machine slept), so it can't say who was silent.
            life.moved_at = at
            return []
        life.doom = life.judge(at, self._settings)
        return [] if life.doom is None else self._kill(life, at, f"{life.doom.cause}: {life.doom.detail}")

    def _kill(self, life: _Life, at: float, reason: str) -> list[Instruction]:
        life.kill_at = at + KILL_AGAIN_S
        return [Kill(reason)]

    def _stop(self, at: float, *, at_once: bool) -> list[Instruction]:
        again, self._stopping, self._due = self._stopping, True, None
        if self._life is None:
            return [] if again else [Quit()]
        if at_once or again:
            return self._kill(self._life, at, "the supervisor was asked to stop at once")
        if self._life.kill_at is not None:
            return []
        self._life.kill_at = at + STOP_GRACE_S
        return [Terminate()]

    def _repeat(self, at: float) -> list[Instruction]:
        """Tell the present state again: a proxy that was started meanwhile knows nothing."""
        if at - self._told_at < REPEAT_S:
            return []
        self._told_at = at
        return [Tell(message, again=True) for message in self._present(at)]

    def _present(self, at: float) -> list[Starting | Exited | BackingOff]:
        if self._life is not None:
            return [Starting(self._life.epoch)]
        if self._exited is None or self._due is None:
            return []
        return [self._exited, BackingOff(self._exited.epoch, max(0.0, self._due - at))]
