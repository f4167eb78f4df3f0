"""The restart policy against false workers of every kind: what must hold whatever happens."""

import itertools
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.config import WorkerSettings
from shared.limits import RUNG_MAX
from shared.messages import BackingOff, Care, Exited, Phase, Progress, Starting
from shared.readings import MemoryReading
from worker.journal import CareChanged
from worker.launch import EXIT_CANNOT_LOAD, EXIT_PLANNED
from worker.life import HEALTHY_S, IDLE_MARGIN_S, SERVED_S_MIN
from worker.restart import RESTART_GRACE_S, RestartPolicy
from worker.supervision import (
    Event,
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

SETTINGS = WorkerSettings(
    hang_floor_s=5, load_deadline_s=20, restarts_max=3, restarts_window_s=400, climb_s=30
)
TICK_S = 0.25
ROUNDING_S = 1e-6
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
    st.sampled_from((1, 70, EXIT_PLANNED, EXIT_CANNOT_LOAD, -signal.SIGKILL, -signal.SIGABRT)),
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
        self.parted_at: float | None = None
        self.failures = 0
        self.died_at = self.earliest = 0.0
        self.care = Care(0, "closed")
        self.fallen = 0
        self.next_start = "first"
        self.starts: list[tuple[float, str]] = []
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
                patient = self.parted_at is not None and self.now >= self.parted_at + RESTART_GRACE_S
                assert self.stopping or self.silent_since is not None or patient, (
                    "a healthy worker was killed"
                )
                self.killed_at = self.now if self.killed_at is None else self.killed_at
            case Terminate():
                self.parted_at = self.now
            case Tell(Starting(epoch, care), False):
                self.check_start(epoch, care)
            case Tell(BackingOff(epoch, delay_s, care), False):
                self.check_delay(epoch, delay_s, care)
            case Write(CareChanged(_, rung, breaker)):
                self.check_care(Care(rung, breaker))
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
        self.killed_at = self.ready_at = self.parted_at = None
        self.silent_since = self.now if self.script.end == "mute" else None
        self.fetch()

    def fetch(self) -> None:
        self.next_deed = next(self.deeds, None)
        if self.next_deed is not None:
            self.deed_at_s += self.next_deed[0]

    def check_delay(self, epoch: int, delay_s: float, care: Care) -> None:
        assert epoch == self.epoch
        self.check_care(care)
        assert care.breaker != "half_open", "on trial without a worker"
        if care.breaker == "open":
            assert abs(delay_s - SETTINGS.breaker_open_s) < ROUNDING_S
            self.next_start = "trial"
        else:
            most_s = TABLE_S[min(self.failures, len(TABLE_S)) - 1]
            assert 0.75 * most_s <= delay_s <= most_s, f"{delay_s} s after {self.failures} deaths"
        self.earliest = self.now + delay_s

    def check_start(self, epoch: int, care: Care) -> None:
        """Hold the intensity: but for trials and planned starts, few in any window, and trials far apart."""
        assert epoch == self.epoch
        self.check_care(care)
        assert care.breaker != "open", "started while the breaker was open"
        assert self.next_start != "trial" or care.breaker == "half_open", "a trial that isn't called one"
        if self.next_start == "unplanned":
            least_s = 0.75 * TABLE_S[min(self.failures, len(TABLE_S)) - 1]
            assert self.now - self.died_at > least_s - ROUNDING_S, "a failure that costs nothing"
        self.starts.append((self.now, self.next_start))
        recent = [kind for at, kind in self.starts if at > self.now - SETTINGS.restarts_window_s + ROUNDING_S]
        assert recent.count("unplanned") <= SETTINGS.restarts_max + 1, "too many restarts"
        trials = [at for at, kind in self.starts if kind == "trial"]
        gaps = [after - before for before, after in itertools.pairwise(trials)]
        assert all(gap > SETTINGS.breaker_open_s - ROUNDING_S for gap in gaps), "trials too close"

    def check_care(self, care: Care) -> None:
        """A rung lower only for a memory death of a worker that was ready, and then one at a time."""
        assert care.rung <= min(self.care.rung + self.fallen, RUNG_MAX), "a rung down for nothing"
        assert not self.fallen or care.rung == min(self.care.rung + 1, RUNG_MAX), "no rung for a memory death"
        self.care, self.fallen = care, 0

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
        elif self.parted_at is not None and self.silent_since is None:
            if self.now >= self.parted_at + self.script.reaped_s:
                self.die(EXIT_PLANNED)
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
        answers = int(phase == "decode")
        message = Progress(self.epoch, step, phase, expected_ms, 0, (), 0, 0, 0, answers, False, NO_MEMORY)
        self.handle(Progressed(message, self.now))

    def die(self, status: int | None) -> None:
        served = self.ready_at is not None and self.now - self.ready_at >= SERVED_S_MIN
        ordered = self.parted_at is not None and status in (EXIT_PLANNED, -signal.SIGKILL)
        free = ordered or (status == EXIT_PLANNED and served)
        self.failures += 0 if free else 1
        was_ready = self.ready_at is not None
        self.fallen = int(status == -signal.SIGABRT and was_ready and not self.stopping)
        self.next_start = "planned" if free else "unplanned"
        self.died_at = self.now
        self.script = self.killed_at = self.silent_since = None
        if status is None:
            self.handle(SpawnFailed("no", self.now))
        else:
            self.handle(ProcessExited(status, "", self.now))

    def order_restart(self) -> None:
        if self.script is None:
            self.earliest, self.next_start = self.now, "planned"
        self.handle(RestartAsked(self.epoch, self.now))

    def check_that_silence_ends(self) -> None:
        if self.script is None or self.silent_since is None or self.stopping or self.parted_at is not None:
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
    restarts=st.sets(st.integers(0, 2000), max_size=3),
    stop_at=st.integers(1, 2000),
)
def test_one_healthy_process_at_a_time_no_hang_for_long_and_no_storm_of_restarts(
    lives: list[Script],
    jitter: float,
    spawn_fails: set[int],
    held_up: list[tuple[int, float, bool]],
    restarts: set[int],
    stop_at: int,
) -> None:
    world = World(lives, jitter, set(spawn_fails))
    delays = {tick: (seconds, asleep) for tick, seconds, asleep in held_up}
    for tick in range(stop_at):
        seconds, asleep = delays.get(tick, (TICK_S, False))
        if tick in restarts:
            world.order_restart()
        world.tick(seconds, machine_sleeps=asleep)
    world.stopping = True
    world.handle(StopAsked(world.now))
    for _ in range(200):
        world.tick(TICK_S, machine_sleeps=False)
    assert world.over, "the supervisor never ends"
