"""`forebay journal`: what an operator reads of each life, on a terminal, in a pipe and as JSON."""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from ops.cli import app
from ops.journal import View, as_json, show
from shared.messages import ManifestRow
from shared.readings import MemoryReading
from shared.run_folder import RunFolder, SupervisorLock
from worker.journal import FILE_NAME, Life, folder_of

PORT = 8123
BEGAN = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NOW = BEGAN + timedelta(hours=2, minutes=5)
DEAD = Life(
    port=PORT,
    epoch=7,
    spawned_at=BEGAN,
    ready_after_s=3.25,
    ended_at=BEGAN + timedelta(seconds=759),
    lived_s=759.0,
    cause="memory",
    detail="ended by SIGABRT, which the supervisor did not send",
    rows=(ManifestRow("a/1/0", 1, 57, prefilling=False), ManifestRow("b/2/0", 2, 0, prefilling=True)),
    phase="decode",
    step=1234,
    tokens=501,
    answers=1,
    memory=MemoryReading(3 << 30, 200 << 20, 4 << 30, 5 << 30),
    rung=1,
    breaker="half_open",
    stderr_tail="".join(f"line {number}\n" for number in range(1, 9)),
)
LIVING = Life(port=PORT, epoch=8, spawned_at=BEGAN, ready_after_s=3.0)


def shown(*lives: Life, terminal: bool = False, **view: Any) -> str:
    out = StringIO()
    show(lives, Console(file=out, force_terminal=terminal, width=80, highlight=False), View(NOW, **view))
    return out.getvalue()


def test_a_block_says_all_that_is_known_of_a_life() -> None:
    first, *rest = shown(DEAD).splitlines()
    assert first.endswith("  worker of epoch 7 died for want of memory")
    assert rest == [
        "  lived   12 min 39 s, ready after 3.2 s",
        "  detail  ended by SIGABRT, which the supervisor did not send",
        "  ran     2 rows, decode, at step 1234",
        "          a/1/0: about to make token 57",
        "          b/2/0: prefilling before token 0, attempt 2",
        "  gave    501 tokens, 1 whole answer",
        "  memory  3.00 GiB active, 200 MiB cached, 4.00 GiB peak, 5.00 GiB footprint",
        "  then    rung 1, breaker half open",
        "  stderr  line 4",
        "          line 5",
        "          line 6",
        "          line 7",
        "          line 8",
        "          (3 lines before; --stderr shows them)",
    ]


def test_all_of_the_last_words_are_shown_when_they_are_asked_for() -> None:
    said = shown(DEAD, whole_stderr=True)
    assert "stderr  line 1\n" in said
    assert "--stderr" not in said


def test_a_pipe_gets_no_colours_and_no_broken_lines() -> None:
    long = replace(DEAD, detail="x" * 300)
    assert f"  detail  {'x' * 300}\n" in shown(long)
    assert "\x1b" not in shown(long)


def test_a_terminal_gets_colours_and_lines_that_fit() -> None:
    said = shown(replace(DEAD, detail="word " * 60), terminal=True)
    assert "\x1b[" in said
    assert max(len(line) for line in Text.from_ansi(said).plain.splitlines()) <= 80


def test_what_a_life_wrote_steers_no_terminal_and_is_no_markup() -> None:
    said = shown(replace(DEAD, stderr_tail="\x1b[31m[bold]red\x1b[0m\x07 \x1b]0;t\x07\n", detail="[red]a\rb"))
    assert "  stderr  [bold]red" in said
    assert "  detail  [red]a b\n" in said
    assert not {"\x1b", "\x07", "\r"} & set(said)


def test_a_logs_wide_columns_are_narrowed_and_an_indent_is_kept() -> None:
    said = shown(replace(DEAD, stderr_tail="  File x\n    ready           epoch=7\n"))
    assert "  stderr    File x\n              ready  epoch=7\n" in said


def test_the_newest_lives_only_while_its_supervisor_does() -> None:
    assert "worker of epoch 8 lives\n  lived   2 h 05 min until now, ready after 3.0 s\n" in shown(
        LIVING, living_epoch=8
    )
    assert "worker of epoch 8 ended, and nobody saw how\n  lived   nobody saw for how long" in shown(LIVING)


def test_a_life_that_a_panic_of_the_machine_ended_says_what_ran() -> None:
    lost = replace(
        LIVING, detail="the whole machine went down while it lived", rows=DEAD.rows, phase="prefill"
    )
    said = shown(lost, living_epoch=8)
    assert "ended, and nobody saw how" in said
    assert "  detail  the whole machine went down while it lived\n" in said
    assert "a/1/0: about to make token 57" in said


def test_many_rows_are_cut_short_and_counted() -> None:
    said = shown(replace(DEAD, rows=DEAD.rows * 6))
    assert said.count("about to make") + said.count("prefilling before") == 8
    assert "          and 4 more (--json has all)\n" in said


def test_a_line_of_json_has_everything() -> None:
    told = json.loads(as_json(DEAD))
    assert (told["epoch"], told["cause"], told["spawned_at"]) == (7, "memory", "2026-03-01T12:00:00+00:00")
    assert told["rows"][1] == {"sequence": "b/2/0", "attempt": 2, "index": 0, "prefilling": True}
    assert told["stderr_tail"] == DEAD.stderr_tail


# --- the command --------------------------------------------------------------------------------------------


def write(home: Path, records: Iterable[dict[str, Any]]) -> None:
    folder = folder_of(home)
    folder.mkdir(parents=True)
    lines = [
        json.dumps(
            {"at": (BEGAN + timedelta(seconds=number)).isoformat(), "boot": "b", "port": PORT, **record}
        )
        for number, record in enumerate(records)
    ]
    (folder / FILE_NAME).write_text("\n".join([*lines, '{"torn']))


def run(home: Path, *arguments: str) -> Any:
    file = home / "forebay.toml"
    file.write_text(f'home = "{home}"\nport = {PORT}\n')
    return CliRunner().invoke(app, ["journal", *arguments, "--config", str(file)])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    started = {"kind": "started", "pid": 1, "lost_epoch": None, "machine_went_down": False}
    lives = [{"kind": "spawned", "epoch": epoch, "rung": 0, "breaker": "closed"} for epoch in range(1, 8)]
    write(tmp_path, [started, *lives])
    return tmp_path


def test_the_last_lives_are_shown_the_newest_at_the_end(home: Path) -> None:
    told = [json.loads(line)["epoch"] for line in run(home, "--json", "-n", "3").stdout.splitlines()]
    assert told == [5, 6, 7]
    said = run(home).stdout
    assert [said.index(f"epoch {epoch} ") for epoch in range(3, 8)] == sorted(
        said.index(f"epoch {epoch} ") for epoch in range(3, 8)
    )
    assert "epoch 2 " not in said


def test_whether_the_newest_lives_is_asked_of_its_supervisors_lock(home: Path) -> None:
    assert " lives\n" not in run(home).stdout
    with SupervisorLock(RunFolder(home, PORT)):
        assert run(home).stdout.count("epoch 7 lives\n") == 1


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_empty_journal_is_said_and_is_no_error(options: tuple[str, ...], tmp_path: Path) -> None:
    result = run(tmp_path, *options)
    assert (result.exit_code, result.stdout) == (0, "")
    assert (options == ()) == ("No life of a worker" in result.stderr)


def test_another_ports_lives_are_not_shown(home: Path) -> None:
    assert run(home, "--port", str(PORT + 1)).stdout == ""


def test_a_journal_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (folder_of(tmp_path) / FILE_NAME).mkdir(parents=True)
    result = run(tmp_path)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
