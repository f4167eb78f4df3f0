"""The restart policy against false workers of every kind: what must hold whatever happens."""

import itertools
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.config import WorkerSettings
from shared.messages import BackingOff, Exited, MemoryReading, Phase, Progress
from worker.launch import EXIT_PLANNED
from worker.restart import (
    HEALTHY_S,
    IDLE_MARGIN_S,
    Event,
    Kill,
    ProcessExited,
    Progressed,
    Quit,
    RestartPolicy,
    Spawn,
    SpawnFailed,
    Started,
    StopAsked,
    Tell,
    Terminate,
    Ticked,
)

SETTINGS = WorkerSettings(hang_floor_s=5, load_deadline_s=20)
TICK_S = 0.25
TABLE_S = (0, 1, 2, 4, 8, 16, 30)
NO_MEMORY = MemoryReading(0, 0, 0, 0)

# What a worker does next: wait so long, then report (step, phase, expected_ms) or end with a status.
Deed = tuple[float, tuple[int, Phase, float] | int]


@dataclass(frozen=True)
class Script:
    """One life. `turns` are (is busy, share of what is allowed) for each turn of the loop; then comes `end`.

    An end is an exit status, or a way of falling silent: "hang", "livelock", "freeze" (while idle), "mute"
    (never reports) or "stuck" (in the load). `reaped_s` is what a kill takes.
    """

    load_turns: int
    turns: tuple[tuple[bool, float], ...]
    end: int | str
    reaped_s: float

    @property
    def never_served(self) -> bool:
        return self.end in ("mute", "stuck")

    def deeds(self) -> Iterator[Deed]:
        """Yield a healthy life's deeds, each within what it said to expect, and then its end."""
        if self.end == "mute":
            return
        steps = itertools.count()
        for _ in range(self.load_turns + 1):
            yield 15.0, (next(steps), "loading", 0.0)
        if self.end == "stuck":
            return
        pause_s = 0.0
        for busy, share in self.turns:
            expected_ms = 15_000 * share if busy else 0.0
            yield pause_s, (next(steps), "decode" if busy else "idle", expected_ms)
            pause_s = max(4.0, 3.8 * expected_ms / 1000) if busy else 1.0
        yield from self._ending(next(steps), pause_s)

    def _ending(self, step: int, pause_s: float) -> Iterator[Deed]:
        if isinstance(self.end, int):
            yield pause_s, self.end
            return
        yield pause_s, (step, "idle" if self.end == "freeze" else "prefill", 1000.0)
        while self.end == "livelock":
            yield 1.0, (step, "prefill", 1000.0)


ends = st.one_of(
    st.sampled_from((1, 70, EXIT_PLANNED, 78, -signal.SIGKILL, -signal.SIGABRT)),
    st.sampled_from(("hang", "livelock", "freeze", "mute", "stuck")),
)
scripts = st.builds(
    Script,
    load_turns=st.integers(0, 3),
    turns=st.lists(st.tuples(st.booleans(), st.floats(0, 1)), max_size=60).map(tuple),
    end=ends,
    reaped_s=st.floats(0, 8),
)


class World:
    """Runs scripts one after the other under a policy, and checks each of its orders."""

    def __init__(self, lives: list[Script], jitter: float, spawn_fails: set[int]) -> None:
        self.policy = RestartPolicy(SETTINGS, first_epoch=1, jitter=lambda: jitter)
        self.lives = itertools.cycle(lives)
        self.spawn_fails = spawn_fails
        self.now = 0.0
        self.epoch = 0
        self.script: Script | None = None
        self.deeds: Iterator[Deed] = iter(())
        self.next_deed: Deed | None = None
        self.lived_s = self.deed_at_s = 0.0
        self.killed_at: float | None = None
        self.silent_since: float | None = None
        self.ready_at: float | None = None
        self.failures = 0
        self.earliest = 0.0
        self.stopping = self.over = False
        self.handle(Started(0.0))

    def handle(self, event: Event) -> None:
        for instruction in self.policy.handle(event):
            assert not self.over, "an order after Quit"
            self.obey(instruction)

    def obey(self, instruction: object) -> None:
        match instruction:
            case Spawn(epoch):
                assert self.script is None, "two live processes"
                assert epoch > self.epoch, "an epoch came twice"
                assert self.now >= self.earliest, "a life before its time"
                assert not self.stopping, "a life after the stop"
                self.begin(epoch)
            case Kill():
                assert self.script is not None, "nothing to kill"
                assert self.stopping or self.silent_since is not None, "a healthy worker was killed"
                self.killed_at = self.now if self.killed_at is None else self.killed_at
            case Terminate():
                assert self.stopping
                self.killed_at = self.now
            case Tell(BackingOff(epoch, delay_s), False):
                self.check_delay(epoch, delay_s)
            case Tell(Exited(epoch), False):
                assert epoch == self.epoch
                self.earliest = self.now
            case Quit():
                assert self.script is None, "quit with a live process"
                self.over = True

    def begin(self, epoch: int) -> None:
        self.epoch, self.script = epoch, next(self.lives)
        self.deeds = self.script.deeds()
        self.lived_s = self.deed_at_s = 0.0
        self.killed_at = self.ready_at = None
        self.silent_since = self.now if self.script.end == "mute" else None
        self.fetch()

    def fetch(self) -> None:
        self.next_deed = next(self.deeds, None)
        if self.next_deed is not None:
            self.deed_at_s += self.next_deed[0]

    def check_delay(self, epoch: int, delay_s: float) -> None:
        assert epoch == self.epoch
        most_s = TABLE_S[min(self.failures, len(TABLE_S)) - 1]
        assert 0.75 * most_s <= delay_s <= most_s, f"{delay_s} s after {self.failures} deaths"
        self.earliest = self.now + delay_s

    def tick(self, seconds: float, *, machine_sleeps: bool) -> None:
        """Let time pass for the supervisor, and for the worker too unless both were asleep."""
        self.now += seconds
        if seconds > 1 and self.silent_since is not None:
            self.silent_since = self.now
        self.live(TICK_S if machine_sleeps else seconds)
        self.handle(Ticked(self.now))
        self.check_that_silence_ends()

    def live(self, seconds: float) -> None:
        if self.script is None:
            return
        if self.epoch in self.spawn_fails:
            self.spawn_fails.discard(self.epoch)
            self.die(None)
        elif self.killed_at is not None:
            if self.now >= self.killed_at + self.script.reaped_s:
                self.die(-signal.SIGKILL)
        else:
            self.lived_s += seconds
            self.do_deeds()

    def do_deeds(self) -> None:
        """Do what is due. Only a life that ends in silence ever reports a prefill, or has no more deeds."""
        while self.script is not None and self.next_deed is not None and self.deed_at_s <= self.lived_s:
            deed = self.next_deed[1]
            if isinstance(deed, int):
                self.die(deed)
                return
            self.report(*deed)
            self.fetch()
            if self.next_deed is None or deed[1] == "prefill":
                self.silent_since = self.silent_since or self.now

    def report(self, step: int, phase: Phase, expected_ms: float) -> None:
        if phase != "loading":
            self.ready_at = self.now if self.ready_at is None else self.ready_at
            if self.now - self.ready_at >= HEALTHY_S:
                self.failures = 0
        message = Progress(self.epoch, step, phase, expected_ms, 0, (), 0, NO_MEMORY)
        self.handle(Progressed(message, self.now))

    def die(self, status: int | None) -> None:
        free = status == EXIT_PLANNED and self.ready_at is not None
        self.failures += 0 if free else 1
        self.script = self.killed_at = self.silent_since = None
        if status is None:
            self.handle(SpawnFailed("no", self.now))
        else:
            self.handle(ProcessExited(status, "", self.now))

    def check_that_silence_ends(self) -> None:
        if self.script is None or self.silent_since is None or self.stopping:
            return
        limit_s = SETTINGS.load_deadline_s if self.script.never_served else 5.0 + IDLE_MARGIN_S
        silence_s = self.now - self.silent_since
        assert self.killed_at is not None or silence_s <= limit_s + 2 * TICK_S, "a hang was left alone"


held_up = st.lists(st.tuples(st.integers(0, 2000), st.floats(1.1, 1000), st.booleans()), max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    lives=st.lists(scripts, min_size=1, max_size=8),
    jitter=st.floats(0, 1, exclude_max=True),
    spawn_fails=st.sets(st.integers(1, 10), max_size=3),
    held_up=held_up,
    stop_at=st.integers(1, 2000),
)
def test_one_healthy_process_at_a_time_and_no_hang_for_long(
    lives: list[Script],
    jitter: float,
    spawn_fails: set[int],
    held_up: list[tuple[int, float, bool]],
    stop_at: int,
) -> None:
    world = World(lives, jitter, set(spawn_fails))
    delays = {tick: (seconds, asleep) for tick, seconds, asleep in held_up}
    for tick in range(stop_at):
        seconds, asleep = delays.get(tick, (TICK_S, False))
        world.tick(seconds, machine_sleeps=asleep)
    world.stopping = True
    world.handle(StopAsked(world.now))
    for _ in range(200):
        world.tick(TICK_S, machine_sleeps=False)
    assert world.over, "the supervisor never ends"
