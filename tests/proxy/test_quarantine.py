"""The quarantine: bounded, for a while, kept over a restart, and not put out by clocks and disks."""

import json
import stat
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import capture_logs

from proxy.quarantine import Quarantine, file_of
from shared.clock import FalseClock
from shared.errors import Quarantined

PLACES, LASTS_S = 3, 3600.0
HOUR_S = 3600.0


class Machine:
    """A home folder, a wall clock that anybody may set, and a clock that only grows."""

    def __init__(self, home):
        self.path = file_of(home, 8000)
        self.wall = SimpleNamespace(now_s=1e9)
        self.clock = FalseClock(5.0)

    def begin(self):
        """Let a proxy start."""
        log = structlog.get_logger()
        return Quarantine(self.path, PLACES, LASTS_S, log, lambda: self.wall.now_s, clock=self.clock)

    def wait(self, seconds):
        self.wall.now_s += seconds
        self.clock.advance(seconds)

    def restart(self, quarantine):
        """Let the proxy end, and another one start, whose clock begins anew."""
        quarantine.close()
        self.clock = FalseClock(1.0)
        return self.begin()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def quarantine(machine):
    return machine.begin()


def add(quarantine, *fingerprints, detail="out of memory"):
    for each in fingerprints:
        quarantine.add(each, cause="memory", detail=detail, key="k", lane="batch", prompt_tokens=7)


def names(quarantine):
    return [entry.fingerprint for entry in quarantine.entries()]


def refused(quarantine, *fingerprints):
    try:
        quarantine.refuse(fingerprints)
    except Quarantined:
        return True
    return False


# --- what is refused ----------------------------------------------------------------------------------------


def test_what_is_quarantined_is_refused_with_its_cause_and_nothing_else_is(quarantine):
    add(quarantine, "a")
    with pytest.raises(Quarantined, match="cause: memory"):
        quarantine.refuse(["b", "a"])
    quarantine.refuse(["b"])


def test_an_entry_says_what_was_asked_and_what_happened(machine, quarantine):
    add(quarantine, "a", detail="x" * 1000)
    (entry,) = quarantine.entries()
    assert (entry.fingerprint, entry.cause, entry.key, entry.lane) == ("a", "memory", "k", "batch")
    assert (entry.prompt_tokens, entry.detail) == (7, "x" * 400)
    assert (entry.at, entry.until) == (machine.wall.now_s, machine.wall.now_s + LASTS_S)


def test_the_oldest_is_forgotten_when_all_places_are_taken(quarantine):
    add(quarantine, "a", "b", "c", "d")
    assert names(quarantine) == ["b", "c", "d"]
    assert not refused(quarantine, "a")


def test_one_that_is_quarantined_again_is_the_newest(quarantine):
    add(quarantine, "a", "b", "c", "a", "d")
    assert names(quarantine) == ["c", "a", "d"]


def test_an_entry_lasts_for_its_time(machine, quarantine):
    add(quarantine, "a")
    machine.wait(LASTS_S - 1)
    assert refused(quarantine, "a")
    assert names(quarantine) == ["a"]
    machine.wait(1)
    assert not refused(quarantine, "a")
    assert names(quarantine) == []


def test_one_that_is_quarantined_again_lasts_from_then_on(machine, quarantine):
    add(quarantine, "a")
    machine.wait(LASTS_S - 1)
    add(quarantine, "a")
    machine.wait(LASTS_S - 1)
    assert refused(quarantine, "a")


def test_one_is_cleared_by_its_fingerprint_or_all_are(quarantine):
    add(quarantine, "a", "b", "c")
    assert quarantine.clear(["b", "no such"]) == {"b"}
    assert names(quarantine) == ["a", "c"]
    assert quarantine.clear(["b"]) == set()
    assert len(quarantine.clear(None)) == 2
    assert names(quarantine) == []
    assert quarantine.clear(None) == set()
    assert not refused(quarantine, "a", "b", "c")


# --- clocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_wall_clock_that_is_set_changes_nothing_while_the_proxy_runs(machine, quarantine, hours):
    add(quarantine, "a")
    machine.wall.now_s += hours * HOUR_S
    assert refused(quarantine, "a")
    machine.wait(LASTS_S - 1)
    assert refused(quarantine, "a")
    (entry,) = quarantine.entries()
    assert entry.until == pytest.approx(machine.wall.now_s + 1)
    machine.wait(1)
    assert not refused(quarantine, "a")


def test_the_file_has_what_is_left_by_the_clock_as_it_was_set(machine, quarantine):
    add(quarantine, "a")
    machine.wall.now_s += 5 * HOUR_S
    add(quarantine, "b")
    later = machine.restart(quarantine)
    assert names(later) == ["a", "b"]


def test_a_clock_that_was_set_back_while_nothing_ran_makes_no_entry_last_longer(machine, quarantine):
    add(quarantine, "a")
    quarantine.close()
    machine.wall.now_s -= 24 * HOUR_S
    later = machine.begin()
    machine.wait(LASTS_S - 1)
    assert refused(later, "a")
    machine.wait(1)
    assert not refused(later, "a")


# --- the file -----------------------------------------------------------------------------------------------


def test_it_is_kept_over_a_restart_with_the_time_that_is_left(machine, quarantine):
    add(quarantine, "a")
    machine.wait(1000.0)
    add(quarantine, "b")
    before = quarantine.entries()
    later = machine.restart(quarantine)
    assert later.entries() == before
    machine.wait(LASTS_S - 1000.0)
    assert names(later) == ["b"]


def test_what_ended_while_nothing_ran_is_not_taken_up(machine, quarantine):
    add(quarantine, "a")
    machine.wall.now_s += LASTS_S
    later = machine.restart(quarantine)
    assert (names(later), refused(later, "a")) == ([], False)


def test_what_was_cleared_stays_so_over_a_restart(machine, quarantine):
    add(quarantine, "a", "b")
    quarantine.clear(["a"])
    assert names(machine.restart(quarantine)) == ["b"]


def test_of_a_file_with_more_entries_than_places_the_newest_are_taken(machine, quarantine):
    add(quarantine, "a", "b", "c")
    quarantine.close()
    entries = [dict(each, at=each["at"] + number) for number, each in enumerate(read(machine))]
    entries.insert(0, dict(entries[0], fingerprint="newest", at=entries[0]["at"] + 9))
    machine.path.write_text(json.dumps(entries))
    assert names(machine.begin()) == ["b", "c", "newest"]


def read(machine):
    return json.loads(machine.path.read_text())


def test_only_its_owner_may_read_the_file_and_nothing_lies_beside_it(machine, quarantine):
    left_over = machine.path.with_name(f"{machine.path.name}.new")
    left_over.write_text("half")
    left_over.chmod(0o644)
    add(quarantine, "a")
    quarantine.close()
    assert stat.S_IMODE(machine.path.stat().st_mode) == 0o600
    assert [each.name for each in machine.path.parent.iterdir()] == [machine.path.name]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[{}]", b"\xff\xfe", b'[{"fingerprint": 1}]', b"[" * 10_000, b'["a"]']
)
def test_a_file_that_can_not_be_understood_is_put_aside_and_said(machine, content):
    machine.path.write_bytes(content)
    with capture_logs() as said:
        quarantine = machine.begin()
    assert [each["log_level"] for each in said] == ["warning"]
    assert names(quarantine) == []
    assert machine.path.with_name(f"{machine.path.name}.unreadable").read_bytes() == content
    add(quarantine, "a")
    assert names(machine.restart(quarantine)) == ["a"]


@pytest.mark.parametrize("until", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_no_time_in_a_file_makes_an_entry_last_for_ever(machine, quarantine, until):
    add(quarantine, "a")
    quarantine.close()
    entry = json.dumps(dict(read(machine)[0], until=0)).replace('"until": 0', f'"until": {until}')
    machine.path.write_text(f"[{entry}]")
    later = machine.begin()
    machine.wait(LASTS_S)
    assert names(later) == []


def test_a_full_disk_costs_the_memory_over_a_restart_and_nothing_else(machine, quarantine, monkeypatch):
    add(quarantine, "a")
    quarantine._saving.result()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, capture_logs() as said:
        patched.setattr("os.fsync", full)
        add(quarantine, "b")
        quarantine._saving.result()
    assert [(each["log_level"], "No space" in each["problem"]) for each in said] == [("error", True)]
    assert names(quarantine) == ["a", "b"]
    assert [each["fingerprint"] for each in read(machine)] == ["a"]
    assert [each.name for each in machine.path.parent.iterdir()] == [machine.path.name]
    add(quarantine, "c")
    assert names(machine.restart(quarantine)) == ["a", "b", "c"]


def test_a_folder_that_is_gone_is_said_and_survived(machine, quarantine):
    machine.path.parent.rmdir()
    with capture_logs() as said:
        add(quarantine, "a")
        quarantine.close()
    assert [each["log_level"] for each in said] == ["error"]
    assert refused(quarantine, "a")


def test_the_newest_are_the_end_of_all_that_there_is(quarantine):
    add(quarantine, "a", "b", "c")
    assert [each.fingerprint for each in quarantine.newest(2)] == ["b", "c"]
    assert quarantine.newest(100) == quarantine.entries()
    assert quarantine.newest(0) == []


def test_entries_end_one_by_one_in_their_own_time(machine, quarantine):
    left = []
    for name in "abc":
        add(quarantine, name)
        machine.wait(10.0)
    machine.wait(LASTS_S - 30.0)
    for _ in range(4):
        left.append(names(quarantine))
        assert len(quarantine) == len(left[-1])
        machine.wait(10.0)
    assert left == [["b", "c"], ["c"], [], []]
    add(quarantine, "d")
    machine.wait(LASTS_S)
    assert len(quarantine) == 0
