"""The journal: what is written is read, whatever happened in the middle."""

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages import ManifestRow
from shared.readings import MemoryReading
from worker import journal_file
from worker.journal import (
    FILE_NAME,
    FILE_NAMES,
    BecameReady,
    CareChanged,
    Ended,
    Entry,
    Life,
    Ran,
    Spawned,
    SupervisorStarted,
    SupervisorStopped,
    read_lives,
    read_records,
)
from worker.journal_file import Journal, JournalFile
from worker.scribe import Scribe

MIB = 1 << 20
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
READING = MemoryReading(1, 2, 3, 4)
ROWS = (ManifestRow("s-1", 2, 30, prefilling=False), ManifestRow("é\u2028", 1, 0, prefilling=True))
# A journal in a process whose files can't grow beyond some bytes: folder, bytes.
CRAMPED = """
import resource, sys
from pathlib import Path
from shared import logs
from shared.config import LogSettings
from worker.journal import Spawned
from worker.journal_file import Journal, JournalFile
from worker.scribe import Scribe
logs.configure(LogSettings(format="json"))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
scribe = Scribe()
journal = Journal(JournalFile(Path(sys.argv[1]), 1 << 20), scribe, boot="b", port=8000)
def flush():
    import threading
    done = threading.Event()
    scribe.submit(done.set)
    done.wait()
for epoch in range(1, 21):
    journal.write(Spawned(epoch, 0, "closed"))
flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for epoch in (21, 22):
    journal.write(Spawned(epoch, 0, "closed"))
print(scribe.close(10), journal.lost)
"""


def ended(epoch: int, **more: Any) -> Ended:
    facts: dict[str, Any] = {
        "cause": "memory",
        "detail": "exit status 1: MemoryError",
        "lived_s": 9.5,
        "rows": ROWS,
        "phase": "decode",
        "step": 7,
        "tokens": 40,
        "answers": 3,
        "memory": READING,
        "rung": 1,
        "breaker": "closed",
        "stderr_tail": "line\nMemoryError \x00\ud800\n",
        **more,
    }
    return Ended(epoch, **facts)


class Desk:
    """A journal with a wall clock that moves a second with each entry."""

    def __init__(
        self, folder: Path, journal_bytes: int = MIB, port: int = 8000, boot: str = "boot-1"
    ) -> None:
        self.folder = folder
        self.now = NOON
        self.scribe = Scribe()
        self.journal = Journal(
            JournalFile(folder, journal_bytes), self.scribe, boot=boot, port=port, wall_clock=self.look
        )

    def look(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    def write(self, *entries: Entry) -> None:
        for entry in entries:
            self.journal.write(entry)
        self.flush()

    def flush(self) -> None:
        done = threading.Event()
        assert self.scribe.submit(done.set)
        assert done.wait(20)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "logs")


# --- what is written is read ------------------------------------------------------------------------------


def test_a_life_is_read_as_it_was_written(desk: Desk) -> None:
    desk.write(
        SupervisorStarted(1, None, machine_went_down=False),
        Spawned(5, 0, "closed"),
        BecameReady(5, 1.5),
        Ran(5, "prefill", 3, 4, 0, READING, ROWS),
        ended(5),
        CareChanged(5, 1, "closed"),
        SupervisorStopped(),
    )
    assert read_lives(desk.folder) == [
        Life(
            port=8000,
            epoch=5,
            spawned_at=NOON + timedelta(seconds=2),
            ready_after_s=1.5,
            ended_at=NOON + timedelta(seconds=5),
            lived_s=9.5,
            cause="memory",
            detail="exit status 1: MemoryError",
            rows=ROWS,
            phase="decode",
            step=7,
            tokens=40,
            answers=3,
            memory=READING,
            rung=1,
            breaker="closed",
            stderr_tail="line\nMemoryError \x00?\n",
        )
    ]


def test_lives_and_records_come_newest_first_and_as_many_as_asked(desk: Desk) -> None:
    for epoch in range(1, 6):
        desk.write(Spawned(epoch, 0, "closed"), ended(epoch))
    assert [life.epoch for life in read_lives(desk.folder)] == [5, 4, 3, 2, 1]
    assert [life.epoch for life in read_lives(desk.folder, 2)] == [5, 4]
    newest = [(record.epoch, record.kind) for record in read_records(desk.folder, 3)]
    assert newest == [(5, "exited"), (5, "spawned"), (4, "exited")]


def test_a_life_that_goes_on_has_no_end(desk: Desk) -> None:
    desk.write(Spawned(5, 2, "half_open"), Ran(5, "decode", 3, 4, 1, READING, ROWS))
    (life,) = read_lives(desk.folder)
    assert (life.ended_at, life.cause, life.detail) == (None, None, "")
    assert (life.rows, life.memory, life.tokens) == (ROWS, READING, 4)
    assert (life.rung, life.breaker) == (2, "half_open")


@pytest.mark.parametrize(
    ("panic", "words"), [(True, "the whole machine went down"), (False, "its supervisor")]
)
def test_a_life_whose_end_nobody_saw_says_what_is_known(desk: Desk, panic: bool, words: str) -> None:
    """After a panic of the machine, what ran in its last noted moment is still to be read."""
    desk.write(
        Spawned(5, 0, "closed"),
        Ran(5, "decode", 3, 4, 1, READING, ROWS),
        SupervisorStarted(2, 5, machine_went_down=panic),
        Spawned(6, 2, "closed"),
    )
    lives = read_lives(desk.folder)
    assert [life.detail for life in lives if life.epoch == 6] == [""]
    (lost,) = [life for life in lives if life.epoch == 5]
    assert lost.detail.startswith(words)
    assert (lost.cause, lost.rows) == (None, ROWS)


def test_a_life_whose_end_is_missing_is_no_loss_of_a_supervisor_that_went_on(desk: Desk) -> None:
    """A full disk costs records: of an end, and of what its supervisor did after it."""
    panic = "the whole machine went down while it lived"
    desk.write(Spawned(5, 0, "closed"), Spawned(6, 0, "closed"))
    desk.write(SupervisorStarted(2, 6, machine_went_down=True))
    assert [life.detail for life in read_lives(desk.folder)] == [panic, ""]
    desk.write(Spawned(7, 0, "closed"), SupervisorStopped())
    desk.write(SupervisorStarted(3, None, machine_went_down=False))
    assert [life.detail for life in read_lives(desk.folder)] == ["", panic, ""]


def test_a_write_that_fails_cuts_off_nothing_of_another_ports(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = JournalFile(desk.folder, MIB)
    desk.write(Spawned(1, 0, "closed"))
    line = json.dumps({"at": NOON.isoformat(), "boot": "b", "port": 8001, "kind": "spawned", "epoch": 2})
    others = threading.Thread(target=other.append, args=(line.encode(),))
    write_all = journal_file._write_all

    def fail(descriptor: int, data: bytes) -> None:
        monkeypatch.setattr(journal_file, "_write_all", write_all)
        others.start()
        others.join(0.2)
        os.write(descriptor, data[:5])
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(journal_file, "_write_all", fail)
    desk.write(Spawned(3, 0, "closed"))
    others.join()
    assert [record.epoch for record in read_records(desk.folder)] == [2, 1]


def test_lives_whose_beginning_was_turned_over_are_told_all_the_same(desk: Desk) -> None:
    desk.write(*(ended(epoch) for epoch in (1, 2, 3)))
    lives = read_lives(desk.folder, 2)
    assert [(life.epoch, life.spawned_at, life.cause) for life in lives] == [
        (3, None, "memory"),
        (2, None, "memory"),
    ]


def test_supervisors_of_one_home_are_told_apart(tmp_path: Path) -> None:
    for port in (8000, 8001):
        Desk(tmp_path, port=port).write(Spawned(5, 0, "closed"), ended(5, detail=str(port)))
    assert [(life.port, life.detail) for life in read_lives(tmp_path)] == [(8001, "8001"), (8000, "8000")]
    assert [life.port for life in read_lives(tmp_path, port=8000)] == [8000]


def test_no_journal_has_no_lives(tmp_path: Path) -> None:
    assert read_lives(tmp_path / "nowhere") == []
    assert read_records(tmp_path / "nowhere") == []


def test_records_are_lines_of_json_for_the_owner_alone(desk: Desk) -> None:
    desk.write(ended(5))
    file = desk.folder / FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (line,) = file.read_text("utf-8").split("\n")[:-1]
    record = json.loads(line)
    assert (record["at"], record["boot"]) == ("2026-01-01T12:00:01.000+00:00", "boot-1")
    assert (record["port"], record["kind"], record["epoch"]) == (8000, "exited", 5)


def test_reading_imports_nothing_heavy() -> None:
    probe = "import worker.journal, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run((sys.executable, "-c", probe), capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & {"mlx", "mlx_lm", "numpy", "aiohttp", "zmq", "tokenizers"}


# --- damage -----------------------------------------------------------------------------------------------


def test_half_a_line_is_passed_over_and_nothing_is_glued_to_it(desk: Desk) -> None:
    desk.write(Spawned(1, 0, "closed"), Spawned(2, 0, "closed"))
    file = desk.folder / FILE_NAME
    os.truncate(file, file.stat().st_size - 20)
    assert [record.epoch for record in read_records(desk.folder)] == [1]
    desk.write(Spawned(3, 0, "closed"))
    assert [record.epoch for record in read_records(desk.folder)] == [3, 1]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "5",
        "null",
        "[" * 100_000,
        '{"at": 5, "boot": "b", "port": 1, "kind": "spawned"}',
        '{"at": "soon", "boot": "b", "port": 1, "kind": "spawned"}',
        '{"at": "2026-01-01", "boot": "b", "port": "x", "kind": "spawned"}',
        '{"at": "2026-01-01", "boot": "b", "port": 1, "kind": "spawned", "epoch": "x"}',
        '{"at": "2026-01-01", "boot": "b", "port": 1, "kind": "exited", "epoch": 7, "rows": 5}',
    ],
)
def test_lines_that_make_no_sense_are_passed_over(desk: Desk, line: str) -> None:
    desk.write(Spawned(1, 0, "closed"))
    with (desk.folder / FILE_NAME).open("a") as file:
        file.write(line + "\n")
    desk.write(Spawned(2, 0, "closed"))
    assert [life.epoch for life in read_lives(desk.folder)] == [2, 1]


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_at_all_break_the_reader(data: bytes) -> None:
    from tempfile import TemporaryDirectory  # noqa: PLC0415 (a fixture would be shared by all examples)

    with TemporaryDirectory() as folder:
        (Path(folder) / FILE_NAME).write_bytes(data)
        read_records(Path(folder))
        read_lives(Path(folder))


def test_lines_longer_than_a_block_are_read_whole(desk: Desk) -> None:
    for epoch in (1, 2, 3):
        desk.write(ended(epoch, stderr_tail=str(epoch) * 70_000))
    assert [record.fields["stderr_tail"] for record in read_records(desk.folder)] == [
        digit * 70_000 for digit in "321"
    ]


# --- bounds and full disks --------------------------------------------------------------------------------


def test_all_files_together_stay_within_bounds_and_the_newest_records_are_kept(tmp_path: Path) -> None:
    desk = Desk(tmp_path, journal_bytes=20_000)
    for epoch in range(200):
        desk.write(ended(epoch))
    sizes = [(tmp_path / name).stat().st_size for name in FILE_NAMES]
    assert sum(sizes) <= 20_000
    assert {file.name for file in tmp_path.iterdir()} == set(FILE_NAMES)
    epochs = [record.epoch for record in read_records(tmp_path)]
    assert epochs == list(range(199, 199 - len(epochs), -1))
    assert len(epochs) > 10


def test_a_disk_that_is_full_costs_records_and_the_next_one_says_how_many(tmp_path: Path) -> None:
    result = subprocess.run(
        (sys.executable, "-c", CRAMPED, str(tmp_path), "500"), capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["True", "0"]
    records = read_records(tmp_path)
    kept = [record.epoch for record in records]
    first_lost = len(kept) - 1
    assert kept == [22, 21, *range(first_lost - 1, 0, -1)]
    assert [record.lost_before for record in records] == [0, 21 - first_lost, *[0] * (first_lost - 1)]
    assert (tmp_path / FILE_NAME).read_bytes().count(b"\n") == len(kept)
    warnings = [json.loads(line)["event"] for line in result.stderr.splitlines()]
    assert warnings == ["the journal can't be written; records are lost", "the journal is written again"]


@pytest.mark.parametrize("obstacle", ["folder", "full", "file"])
def test_a_journal_that_cannot_be_written_is_warned_of_once_and_tried_again(
    tmp_path: Path, obstacle: str
) -> None:
    desk = Desk(tmp_path / "logs")
    where = tmp_path / "logs" / FILE_NAME
    if obstacle == "file":
        (tmp_path / "logs").write_text("a file where a folder should be")
    elif obstacle == "folder":
        where.mkdir(parents=True)
    else:
        where.parent.mkdir()
        where.symlink_to("/dev/full")
    with structlog.testing.capture_logs() as said:
        desk.write(*(Spawned(epoch, 0, "closed") for epoch in range(5)))
    assert desk.journal.lost == 5
    assert len([event for event in said if event["log_level"] == "warning"]) == 1
    (tmp_path / "logs" if obstacle == "file" else where).rename(tmp_path / "obstacle")
    desk.write(Spawned(6, 0, "closed"))
    (record,) = read_records(desk.folder)
    assert (record.epoch, record.lost_before, desk.journal.lost) == (6, 5, 0)


def test_a_disk_that_is_stuck_delays_nobody(desk: Desk) -> None:
    stuck = threading.Event()
    desk.scribe.submit(lambda: bool(stuck.wait(20)))
    for epoch in range(3000):
        desk.journal.write(Spawned(epoch, 0, "closed"))
    lost = desk.journal.lost
    assert lost >= 3000 - 1024
    assert not desk.scribe.close(0.01)
    stuck.set()
    assert desk.scribe.close(20)
    records = read_records(desk.folder)
    assert len(records) == 3000 - lost
    assert records[-1].epoch == 0


def test_what_waits_is_written_before_the_end(desk: Desk) -> None:
    for epoch in range(100):
        desk.journal.write(Spawned(epoch, 0, "closed"))
    assert desk.scribe.close(20)
    assert len(read_records(desk.folder)) == 100
