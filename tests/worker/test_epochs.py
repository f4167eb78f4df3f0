"""What earlier supervisors left behind: epochs that never come again, and how their last life ended."""

import json
import stat
from pathlib import Path

import pytest

from worker.epochs import EPOCH_FILE_NAME, Past, look_back, store_epoch
from worker.journal import FILE_NAME

NOW_MS = 1_000_000


class Remains:
    """A folder of logs as an earlier supervisor left it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, kind: str, epoch: int | None = None, *, boot: str = "this", port: int = 8000) -> None:
        record = {"at": "2026-01-01T00:00:00+00:00", "boot": boot, "port": port, "kind": kind, "epoch": epoch}
        with (self.folder / FILE_NAME).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def look_back(self) -> Past:
        return look_back(self.folder, port=8000, now_ms=NOW_MS, boot="this")


@pytest.fixture
def remains(tmp_path: Path) -> Remains:
    return Remains(tmp_path)


# --- epochs -----------------------------------------------------------------------------------------------


def test_the_first_epoch_ever_is_the_clocks(remains: Remains) -> None:
    assert remains.look_back() == Past(NOW_MS)


def test_a_clock_that_was_set_back_brings_no_epoch_again(remains: Remains) -> None:
    store_epoch(remains.folder, NOW_MS + 5)
    assert remains.look_back() == Past(NOW_MS + 6)


def test_without_the_stored_epoch_the_journal_tells(remains: Remains) -> None:
    remains.write("spawned", NOW_MS + 7)
    remains.write("exited", NOW_MS + 7)
    assert remains.look_back() == Past(NOW_MS + 8)


def test_the_stored_epoch_counts_where_the_journal_lost_a_record(remains: Remains) -> None:
    remains.write("spawned", NOW_MS + 7)
    remains.write("exited", NOW_MS + 7)
    store_epoch(remains.folder, NOW_MS + 9)
    assert remains.look_back().first_epoch == NOW_MS + 10


@pytest.mark.parametrize("text", ["", "x", "-5", "9" * 30, "9" * 5000, "1 2", "\x00", "5"])
def test_an_epoch_that_is_no_use_leaves_the_clocks(remains: Remains, text: str) -> None:
    (remains.folder / EPOCH_FILE_NAME).write_text(text)
    assert remains.look_back() == Past(NOW_MS)


def test_an_epoch_that_cannot_be_read_leaves_the_clocks(remains: Remains) -> None:
    (remains.folder / EPOCH_FILE_NAME).mkdir()
    (remains.folder / FILE_NAME).mkdir()
    assert remains.look_back() == Past(NOW_MS)


def test_an_epoch_is_stored_whole_or_not_at_all(remains: Remains) -> None:
    store_epoch(remains.folder / "logs", 5)
    store_epoch(remains.folder / "logs", 6)
    assert (remains.folder / "logs" / EPOCH_FILE_NAME).read_text() == "6\n"
    assert [file.name for file in (remains.folder / "logs").iterdir()] == [EPOCH_FILE_NAME]
    assert stat.S_IMODE((remains.folder / "logs").stat().st_mode) == 0o700


# --- the last life ----------------------------------------------------------------------------------------


def test_a_life_that_ended_is_no_loss(remains: Remains) -> None:
    remains.write("spawned", 5, boot="before")
    remains.write("exited", 5, boot="before")
    past = remains.look_back()
    assert (past.lost_epoch, past.machine_went_down, past.rung) == (None, False, 0)


def test_a_supervisor_that_stopped_in_order_left_nothing(remains: Remains) -> None:
    remains.write("spawned", 5, boot="before")
    remains.write("stopped", boot="before")
    assert remains.look_back().lost_epoch is None


def test_a_life_whose_supervisor_was_killed_is_lost_but_the_machine_went_on(remains: Remains) -> None:
    remains.write("stopped")
    remains.write("spawned", 4)
    remains.write("exited", 4)
    remains.write("spawned", 5)
    past = remains.look_back()
    assert (past.lost_epoch, past.machine_went_down, past.rung) == (5, False, 0)


def test_after_the_whole_machine_went_down_the_next_life_begins_on_rung_2(remains: Remains) -> None:
    remains.write("spawned", 5, boot="before")
    remains.write("running", 5, boot="before")
    past = remains.look_back()
    assert (past.lost_epoch, past.machine_went_down, past.rung) == (5, True, 2)


def test_a_life_that_was_busy_for_days_is_known_to_be_lost(remains: Remains) -> None:
    """Its beginning is far back in the journal, or was turned over and is gone."""
    remains.write("spawned", 5, boot="before")
    for _ in range(1200):
        remains.write("running", 5, boot="before")
    remains.write("started")
    remains.write("care", 5)
    past = remains.look_back()
    assert (past.lost_epoch, past.machine_went_down, past.rung) == (5, True, 2)


def test_another_ports_life_is_another_supervisors_affair(remains: Remains) -> None:
    remains.write("spawned", 5, boot="before", port=8001)
    assert remains.look_back().lost_epoch is None
