"""What the supervisor decides when its worker reports, falls silent or dies: events in, instructions out.

Pure: no process, no socket, no clock. It puts together what is known of the worker's life (life.py), how its
death reads (death.py), how cautious to be about memory (ladder.py), and when to stop trying (breaker.py).
"""

import signal
from collections.abc import Callable
from typing import Final, assert_never

import tenacity

from shared.config import WorkerSettings
from shared.messages import BackingOff, Care, Exited, ManifestRow, Progress, Starting
from worker.breaker import Breaker
from worker.death import Death, death_of, one_line
from worker.journal import BecameReady, CareChanged, Spawned
from worker.ladder import Ladder
from worker.launch import EXIT_PLANNED
from worker.life import HEALTHY_S, Life
from worker.supervision import (
    Event,
    FoundStopped,
    Instruction,
    Kill,
    ProcessExited,
    Progressed,
    Quit,
    RestartAsked,
    Spawn,
    SpawnFailed,
    Started,
    StopAsked,
    Tell,
    Terminate,
    Ticked,
    Write,
)

BACKOFF_S_MAX: Final = 30.0
BACKOFF_JITTER: Final = 0.25
REPEAT_S: Final = 1.0
LATE_TICK_S: Final = 1.0
STOP_GRACE_S: Final = 5.0
# A worker that is replaced on purpose finishes its turn first.
RESTART_GRACE_S: Final = 10.0
KILL_AGAIN_S: Final = 3.0

# How a worker ends that was asked to: in order, without a handler yet, or killed after its grace.
_ENDS_ASKED_FOR: Final = (EXIT_PLANNED, 0, -signal.SIGTERM, -signal.SIGKILL)

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


class RestartPolicy:
    """Keeps one worker alive: at most one process at a time, restarted with back-off, killed when it hangs.

    Epochs count up from `first_epoch`; `rung` is the ladder's first. `jitter` returns a number in [0, 1).
    """

    def __init__(
        self, settings: WorkerSettings, *, first_epoch: int, jitter: Callable[[], float], rung: int = 0
    ) -> None:
        assert first_epoch > 0, "epochs are positive"
        self._settings = settings
        self._next_epoch = first_epoch
        self._jitter = jitter
        self._ladder = Ladder(settings.climb_s, rung)
        self._breaker = Breaker(settings)
        self._told_care = self._care
        self._life: Life | None = None
        self._exited: Exited | None = None
        self._due: float | None = None
        self._failures = 0
        self._stopping = False
        self._ticked_at = 0.0
        self._told_at = 0.0

    def handle(self, event: Event) -> list[Instruction]:
        return [*self._decide(event), *self._note_care()]

    def _decide(self, event: Event) -> list[Instruction]:  # noqa: PLR0911 (one line for each event)
        match event:
            case Started(at):
                self._ticked_at = at
                return self._spawn(at)
            case Progressed(progress, at):
                return self._note(progress, at)
            case FoundStopped(at):
                return self._find_stopped(at)
            case ProcessExited(_, stderr_tail, at, rows):
                return self._bury(self._explain(event), at, rows, stderr_tail)
            case SpawnFailed(problem, at):
                return self._bury(Death("crash", one_line(f"could not be started: {problem}")), at)
            case Ticked(at):
                return self._tick(at)
            case RestartAsked(epoch, at):
                return self._restart(epoch, at)
            case StopAsked(at, at_once):
                return self._stop(at, at_once=at_once)
            case _:
                assert_never(event)

    # --- a life begins, reports, ends ---

    def _spawn(self, at: float) -> list[Instruction]:
        assert self._life is None, "two worker processes at a time"
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        self._life, self._due, self._told_at = Life(epoch, at), None, at
        self._breaker.begin_trial()
        care = self._care
        return [
            Spawn(epoch, self._ladder.keeps_prefixes),
            Tell(Starting(epoch, care)),
            Write(Spawned(epoch, care.rung, care.breaker)),
        ]

    def _note(self, progress: Progress, at: float) -> list[Instruction]:
        life = self._life
        if life is None or progress.epoch != life.epoch:
            return []
        was_ready = life.healthy_since is not None
        life.note(progress, at)
        if life.healthy_since is not None and at - life.healthy_since >= HEALTHY_S:
            self._failures = 0
        if life.has_proved_itself(at):
            self._breaker.pass_trial()
        if was_ready or life.healthy_since is None:
            return []
        return [Write(BecameReady(life.epoch, round(at - life.spawned_at, 3)))]

    def _find_stopped(self, at: float) -> list[Instruction]:
        if self._life is not None:
            self._life.find_stopped(at)
        return []

    def _explain(self, exited: ProcessExited) -> Death:
        life = self._life
        assert life is not None, "a process ended that was never spawned"
        if life.doom is not None and exited.status == -signal.SIGKILL:
            return life.doom
        if self._stopping:
            return Death("planned", "the supervisor was asked to stop")
        if life.parting is not None and exited.status in _ENDS_ASKED_FOR:
            return life.parting
        return death_of(exited.status, exited.stderr_tail, life.evidence(exited.evidence))

    def _bury(
        self, death: Death, at: float, rows: tuple[ManifestRow, ...] = (), stderr_tail: str = ""
    ) -> list[Instruction]:
        life, self._life = self._life, None
        assert life is not None, "nothing to bury"
        delay_s = None if self._stopping else self._learn(death, life, at)
        self._exited = Exited(life.epoch, death.cause, death.detail, rows)
        said: list[Instruction] = [
            Tell(self._exited),
            Write(life.ended(death, at, self._care, rows, stderr_tail)),
        ]
        if delay_s is None:
            return [*said, Quit()]
        if delay_s == 0:
            return [*said, *self._spawn(at)]
        self._due, self._told_at = at + delay_s, at
        return [*said, Tell(BackingOff(life.epoch, delay_s, self._care))]

    def _learn(self, death: Death, life: Life, at: float) -> float:
        """Become more cautious after a death, and return the wait before the next life."""
        # Who never got ready found no room for the model itself, which no caution of ours makes smaller.
        by_memory = death.cause == "memory" and life.healthy_since is not None
        helpless = by_memory and not self._ladder.step_down()
        delay_s = 0.0
        if not self._was_planned(death, life, at):
            self._failures += 1
            self._breaker.count_death(at)
            delay_s = backoff_s(self._failures, self._jitter())
        # It may take so long to die that no window sees too many deaths.
        in_vain = life.healthy_since is None and self._failures > self._settings.restarts_max
        # A model that can't be loaded doesn't mend itself in seconds, nor does memory on the lowest rung.
        if helpless or in_vain or death.cause == "cannot_load":
            self._breaker.open(at)
        return self._breaker.rest_s(at) or delay_s

    def _was_planned(self, death: Death, life: Life, at: float) -> bool:
        """Whether an end costs nothing. A worker that does nothing but leave would spin, if it did."""
        if death.cause != "planned":
            return False
        if life.parting is death:
            return not life.counts_parting
        return life.has_served(at)

    # --- time passes ---

    def _tick(self, at: float) -> list[Instruction]:
        passed_s, self._ticked_at = at - self._ticked_at, at
        if self._life is not None:
            return [*self._check(self._life, at, passed_s), *self._repeat(at)]
        if self._due is not None and at >= self._due:
            return self._spawn(at)
        return self._repeat(at)

    def _check(self, life: Life, at: float, passed_s: float) -> list[Instruction]:
        if life.kill_at is not None:
            return self._kill(life, at, "it is still there") if at >= life.kill_at else []
        if passed_s > LATE_TICK_S:
            # The supervisor itself was held up (the machine slept), so it can't say who was silent.
            life.moved_at = at
            return []
        life.doom = life.judge(at, self._settings)
        if life.doom is not None:
            return self._kill(life, at, f"{life.doom.cause}: {life.doom.detail}")
        if life.healthy_since is not None:
            self._ladder.pass_healthy(passed_s)
        recycling = life.recycling(at, self._settings)
        if recycling is not None:
            # One that never answered anything is over its cap by nature: to replace it gains nothing.
            useless = not life.has_served(at) or not (life.progress and life.progress.tokens)
            return self._part(life, at, recycling, counts=useless)
        running = life.running(at)
        return [] if running is None else [Write(running)]

    def _kill(self, life: Life, at: float, reason: str) -> list[Instruction]:
        life.kill_at = at + KILL_AGAIN_S
        return [Kill(reason)]

    def _part(self, life: Life, at: float, why: Death, *, counts: bool) -> list[Instruction]:
        """Ask a worker to end in order; `counts` says whether that is a failure."""
        life.parting, life.counts_parting = why, counts
        life.kill_at = at + RESTART_GRACE_S
        return [Terminate()]

    # --- orders ---

    def _restart(self, epoch: int, at: float) -> list[Instruction]:
        life = self._life
        if self._stopping or epoch != self._next_epoch - 1:
            return []
        if life is None:
            # Between two lives: what is to be replaced is gone, and whoever asks wants the next one now.
            return self._spawn(at)
        if life.kill_at is not None:
            return []
        return self._part(life, at, Death("planned", "restarted by an operator's order"), counts=False)

    def _stop(self, at: float, *, at_once: bool) -> list[Instruction]:
        again, self._stopping, self._due = self._stopping, True, None
        life = self._life
        if life is None:
            return [] if again else [Quit()]
        if at_once or again:
            return self._kill(life, at, "the supervisor was asked to stop at once")
        if life.kill_at is not None:
            life.kill_at = min(life.kill_at, at + STOP_GRACE_S)
            return []
        life.kill_at = at + STOP_GRACE_S
        return [Terminate()]

    # --- what the proxy is told ---

    @property
    def _care(self) -> Care:
        return Care(self._ladder.rung, self._breaker.state)

    def _note_care(self) -> list[Instruction]:
        """Write down that care has changed; the proxy hears it with the next word, which comes at once."""
        if self._care == self._told_care:
            return []
        self._told_care = care = self._care
        self._told_at = -REPEAT_S
        return [Write(CareChanged(self._next_epoch - 1, care.rung, care.breaker))]

    def _repeat(self, at: float) -> list[Instruction]:
        """Tell the present state again: a proxy that was started meanwhile knows nothing."""
        if at - self._told_at < REPEAT_S:
            return []
        self._told_at = at
        return [Tell(message, again=True) for message in self._present(at)]

    def _present(self, at: float) -> list[Starting | Exited | BackingOff]:
        if self._life is not None:
            return [Starting(self._life.epoch, self._care)]
        if self._exited is None or self._due is None:
            return []
        return [self._exited, BackingOff(self._exited.epoch, max(0.0, self._due - at), self._care)]
