"""What the supervisor saw of the machine's memory just before a death."""

from worker.death import MemoryEvidence
from worker.shortage import ShortageWatch


class Machine:
    def __init__(self) -> None:
        self.share = 0.5
        self.kills = 7
        self.watch = ShortageWatch(lambda: self.share, lambda: self.kills)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.watch.look()


def test_without_a_look_nothing_is_known() -> None:
    assert Machine().watch.evidence() == MemoryEvidence()


def test_the_worst_of_the_last_looks_counts_though_the_death_gave_memory_back() -> None:
    machine = Machine()
    machine.look()
    machine.share = 0.01
    machine.look()
    machine.share = 0.9
    machine.look(3)
    assert machine.watch.evidence() == MemoryEvidence(available_share=0.01)


def test_a_kill_by_the_system_since_the_last_looks_counts() -> None:
    machine = Machine()
    machine.look(3)
    machine.kills += 1
    assert machine.watch.evidence() == MemoryEvidence(available_share=0.5, oom_kills=1)


def test_what_is_long_ago_is_forgotten() -> None:
    machine = Machine()
    machine.share = 0.01
    machine.look()
    machine.share, machine.kills = 0.5, 8
    machine.look(100)
    assert machine.watch.evidence() == MemoryEvidence(available_share=0.5)


def test_this_machine_can_be_looked_at() -> None:
    watch = ShortageWatch()
    watch.look()
    evidence = watch.evidence()
    assert 0 < evidence.available_share <= 1
    assert evidence.oom_kills >= 0
