"""A restart policy, and a clock that a test moves; ticks come every quarter second, as the real ones do."""

import signal

from shared.config import WorkerSettings
from shared.messages import BackingOff, Care, Exited, Phase, Progress, Starting
from shared.readings import MemoryReading
from worker.restart import RestartPolicy
from worker.supervision import (
    Event,
    FoundStopped,
    Instruction,
    ProcessExited,
    Progressed,
    RestartAsked,
    Spawn,
    Started,
    StopAsked,
    Tell,
    Ticked,
    Write,
)

FIRST = 1000
SETTINGS = WorkerSettings(hang_floor_s=5, load_deadline_s=60)
MIB = 1 << 20


class Bench:
    """`written` gathers what was meant for the journal, which no method returns."""

    def __init__(self, settings: WorkerSettings = SETTINGS, rung: int = 0) -> None:
        self.policy = RestartPolicy(settings, first_epoch=FIRST, jitter=lambda: 0.0, rung=rung)
        self.now = 0.0
        self.epoch = FIRST
        self.written: list[object] = []
        self.told: list[Starting | Exited | BackingOff] = []
        self.said = self.handle(Started(0.0))

    def handle(self, event: Event) -> list[Instruction]:
        said = self.policy.handle(event)
        self.written += [it.entry for it in said if isinstance(it, Write)]
        self.told += [it.message for it in said if isinstance(it, Tell)]
        self.epoch = max([self.epoch, *(it.epoch for it in said if isinstance(it, Spawn))])
        return [it for it in said if not isinstance(it, Write)]

    def order(self, event: Event) -> list[Instruction]:
        """Handle an event; return what was ordered, without repetitions."""
        return [it for it in self.handle(event) if not (isinstance(it, Tell) and it.again)]

    @property
    def care(self) -> Care:
        return next(it.care for it in reversed(self.told) if not isinstance(it, Exited))

    def report(
        self,
        step: int,
        phase: Phase = "decode",
        expected_ms: float = 50.0,
        *,
        tokens: int = 0,
        answers: int = 0,
        wants_recycle: bool = False,
        budget_mib: int = 0,
    ) -> None:
        progress = Progress(
            epoch=self.epoch,
            step=step,
            phase=phase,
            expected_ms=expected_ms,
            ping=0,
            running=(),
            kv_bytes=0,
            budget_bytes=budget_mib * MIB,
            tokens=tokens,
            answers=answers,
            wants_recycle=wants_recycle,
            memory=MemoryReading(1 * MIB, 2 * MIB, 3 * MIB, 900 * MIB),
        )
        assert self.handle(Progressed(progress, self.now)) == []

    def wait(self, seconds: float) -> list[Instruction]:
        """Let time pass; return what was ordered meanwhile, without repetitions."""
        said: list[Instruction] = []
        for _ in range(round(seconds * 4)):
            self.now += 0.25
            said += self.order(Ticked(self.now))
        return said

    def idle(self, seconds: int, **report: int) -> list[Instruction]:
        """Let the worker be ready and have nothing to do for so long."""
        said: list[Instruction] = []
        for _ in range(seconds):
            self.report(1, "idle", **report)
            said += self.wait(1)
        return said

    def sleep(self, seconds: float) -> list[Instruction]:
        """Let the supervisor itself be held up, so that its next tick is late."""
        self.now += seconds
        return self.order(Ticked(self.now))

    def exit(self, status: int, stderr_tail: str = "", **more: object) -> list[Instruction]:
        return self.order(ProcessExited(status, stderr_tail, self.now, **more))

    def find_stopped(self) -> None:
        assert self.handle(FoundStopped(self.now)) == []

    def restart(self, epoch: int | None = None) -> list[Instruction]:
        return self.order(RestartAsked(self.epoch if epoch is None else epoch, self.now))

    def stop(self, *, at_once: bool = False) -> list[Instruction]:
        return self.order(StopAsked(self.now, at_once))

    def die(self, status: int = 1, stderr_tail: str = "") -> float:
        """Let the worker die; return the delay until the next one was spawned, and let it pass."""
        said = self.exit(status, stderr_tail)
        waits = [
            it.message.delay_s for it in said if isinstance(it, Tell) and isinstance(it.message, BackingOff)
        ]
        if not waits:
            assert self.epoch in spawned(said)
            return 0.0
        assert self.wait(waits[0] - 0.25) == []
        assert self.epoch + 1 in spawned(self.wait(0.5))
        return waits[0]

    def die_of_memory(self) -> float:
        """Let the worker be ready, and die."""
        self.report(1, "idle")
        return self.die(-signal.SIGABRT, "out of memory\n")


def cause_of(instructions: list[Instruction]) -> tuple[str, str]:
    told = [it.message for it in instructions if isinstance(it, Tell)]
    exited = next(message for message in told if isinstance(message, Exited))
    return exited.cause, exited.detail


def spawned(said: list[Instruction]) -> list[int]:
    """Return the epochs of the workers that these instructions start."""
    return [each.epoch for each in said if isinstance(each, Spawn)]
