"""One life of the worker process, as its reports tell it: whether it moves, serves, or holds too much."""

from dataclasses import dataclass, field, replace
from typing import Final

from shared.config import WorkerSettings
from shared.limits import MIB, PROGRESS_INTERVAL_S
from shared.messages import Care, ManifestRow, Phase, Progress
from worker.death import Death, MemoryEvidence
from worker.journal import Ended, Ran

HEALTHY_S: Final = 120.0
# A planned exit this soon after readiness is a failure: else a worker that does nothing else would spin.
SERVED_S_MIN: Final = 10.0
# So many tokens or one whole answer prove that a worker can serve.
PROOF_TOKENS: Final = 32
# An idle loop reports every PROGRESS_INTERVAL_S, so its silence begins that much earlier than it shows.
IDLE_MARGIN_S: Final = 2 * PROGRESS_INTERVAL_S
EXPECTATION_FACTOR: Final = 4.0
# However long a step is expected to take, nobody waits longer than this for it.
EXPECTED_SILENCE_S_MAX: Final = 600.0
# While a worker is busy, what it runs is written down this often.
RUNNING_INTERVAL_S: Final = 30.0


@dataclass(slots=True)
class Life:
    """The worker process that was spawned last and isn't buried yet.

    `moved_at` is when it last showed a sign of life, `doom` why it is being killed, `parting` why it was
    asked to end and what that is called, `kill_at` when it is killed (again) if it's still there.
    """

    epoch: int
    spawned_at: float
    moved_at: float = field(init=False)
    progress: Progress | None = None
    healthy_since: float | None = None
    over_cap_since: float | None = None
    budget_bytes_max: int = 0
    written_at: float | None = None
    doom: Death | None = None
    parting: Death | None = None
    counts_parting: bool = False
    kill_at: float | None = None

    def __post_init__(self) -> None:
        self.moved_at = self.spawned_at

    def note(self, progress: Progress, at: float) -> None:
        """Take in a report. While loading or busy only a new step is a sign of life, not the report."""
        if self.progress is None or _moved(self.progress, progress):
            self.moved_at = at
        if self.healthy_since is None and progress.phase != "loading":
            self.healthy_since = at
        if progress.phase != "idle" or not progress.wants_recycle:
            self.over_cap_since = None
        elif self.over_cap_since is None:
            self.over_cap_since = at
        self.budget_bytes_max = max(self.budget_bytes_max, progress.budget_bytes)
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

    def find_stopped(self, at: float) -> None:
        """Take note that it was silent because somebody had stopped it."""
        if self.doom is not None and self.doom.cause in ("hang", "stuck_load"):
            silence_s = at - self.moved_at
            self.doom = Death("killed", f"it had been stopped (SIGSTOP) for about {silence_s:.1f} s")

    def has_proved_itself(self, at: float) -> bool:
        """Whether it can serve: it did, or it has been ready for long without anything to do."""
        if self.progress is None or self.healthy_since is None:
            return False
        if self.progress.answers >= 1 or self.progress.tokens >= PROOF_TOKENS:
            return True
        return self.progress.phase == "idle" and at - self.healthy_since >= HEALTHY_S

    def has_served(self, at: float) -> bool:
        return self.healthy_since is not None and at - self.healthy_since >= SERVED_S_MIN

    def recycling(self, at: float, settings: WorkerSettings) -> Death | None:
        """Return why it must be replaced while it has nothing to do, or None."""
        if self.over_cap_since is None or self.progress is None:
            return None
        idle_s, memory = at - self.over_cap_since, self.progress.memory
        if idle_s < settings.recycle_after_s:
            return None
        held = (
            f"footprint {memory.footprint_bytes // MIB} MiB, active {memory.active_bytes // MIB} MiB, "
            f"cached {memory.cache_bytes // MIB} MiB"
        )
        return Death(
            "planned",
            f"recycled: held memory that it couldn't give back for {idle_s:.0f} idle seconds; {held}",
        )

    def evidence(self, seen: MemoryEvidence) -> MemoryEvidence:
        """Add to what was seen of the machine what this life said of its own memory."""
        if self.progress is None or self.progress.phase == "loading":
            return seen
        share = self.progress.budget_bytes / self.budget_bytes_max if self.budget_bytes_max else 1.0
        return replace(seen, budget_share=share, over_cap=self.progress.wants_recycle)

    # --- what the journal gets ---

    def running(self, at: float) -> Ran | None:
        """Return what is to be written down of a busy worker now, if it is time."""
        progress = self.progress
        if progress is None or progress.phase not in ("prefill", "decode"):
            return None
        if self.written_at is not None and at - self.written_at < RUNNING_INTERVAL_S:
            return None
        self.written_at = at
        return Ran(
            self.epoch, progress.phase, progress.step, progress.tokens, progress.answers, progress.memory
        )

    def ended(
        self, death: Death, at: float, care: Care, rows: tuple[ManifestRow, ...], stderr_tail: str
    ) -> Ended:
        progress = self.progress
        return Ended(
            epoch=self.epoch,
            cause=death.cause,
            detail=death.detail,
            lived_s=round(at - self.spawned_at, 3),
            rows=rows,
            phase=progress.phase if progress else None,
            step=progress.step if progress else 0,
            tokens=progress.tokens if progress else 0,
            answers=progress.answers if progress else 0,
            memory=progress.memory if progress else None,
            rung=care.rung,
            breaker=care.breaker,
            stderr_tail=stderr_tail,
        )

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
