"""The doctor as a whole: checks side by side, readers on this machine, what it prints, its exit status."""

import io
import itertools
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from ops.cli import app
from ops.doctor import checks, model_checks, model_reading, readers
from ops.doctor.checks import CHECKS, Check, Looked, Patient, look_at
from ops.doctor.device import Said
from ops.doctor.finding import bad, good, warn
from ops.doctor.show import as_json, show
from shared.clock import SystemClock
from shared.config import Settings
from tests.free_port import free_port
from tests.ops.doctor.small_model import small_model


def settings(home: Path, **given: Any) -> Settings:
    return Settings.model_construct(home=home, **given)


class FalseClock:
    """Each look at it is a second later."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        self.now_s += 1.0
        return self.now_s


# --- running checks -----------------------------------------------------------------------------------------


def raising(problem: Exception) -> Callable[[Patient], list[Any]]:
    def look(_patient: Patient) -> list[Any]:
        raise problem

    return look


@pytest.mark.parametrize(
    "problem", [OSError(2, "gone"), ValueError("odd"), KeyError("a"), psutil.AccessDenied(), OSError()]
)
def test_a_check_that_breaks_says_so_and_ends_no_other(problem: Exception, tmp_path: Path) -> None:
    both = [Check("A", "broken", raising(problem)), Check("A", "sound", lambda _: [good("sound", "fine")])]
    first, second = look_at(Patient(settings(tmp_path)), both, SystemClock(), lambda: None)
    assert [(each.check, each.verdict) for each in first.findings] == [("broken", "warn")]
    assert first.findings[0].says.removeprefix("couldn't be checked: ").strip()
    assert second == Looked("A", (good("sound", "fine"),))


def test_a_check_that_hangs_is_left_behind_at_the_deadline(tmp_path: Path) -> None:
    never = threading.Event()
    ticks: list[int] = []

    def hang(_patient: Patient) -> list[Any]:
        never.wait()
        return []

    looked = look_at(
        Patient(settings(tmp_path)), [Check("A", "stuck", hang)], FalseClock(), lambda: ticks.append(1)
    )
    never.set()
    assert "hangs" in looked[0].findings[0].says
    assert 5 < len(ticks) < 15


def test_a_bug_in_a_check_is_said_and_its_traceback_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    check = Check("A", "buggy", raising(TypeError("a bug")))
    looked = look_at(Patient(settings(tmp_path)), [check], SystemClock(), lambda: None)
    assert "broke" in looked[0].findings[0].says
    assert [type(each.exc_value) for each in shown] == [TypeError]


def test_checks_have_names_of_their_own_and_groups_that_stand_together() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    groups = [check.group for check in CHECKS]
    assert len(dict.fromkeys(groups)) == 1 + sum(a != b for a, b in itertools.pairwise(groups))


QUICK = [check for check in CHECKS if check.name not in ("mlx", "rows")]


def test_every_quick_check_can_read_this_machine(tmp_path: Path) -> None:
    patient = Patient(settings(tmp_path, port=free_port(), model=str(small_model(tmp_path / "model"))))
    said = [finding for check in QUICK for finding in checks.findings_of(check, patient)]
    assert [each.says for each in said if "couldn't be checked" in each.says] == []
    verdicts = {each.check: each.verdict for each in said}
    assert {verdicts[name] for name in ("model", "weights", "family", "python", "clock", "port")} == {"good"}


# --- readers ------------------------------------------------------------------------------------------------


def test_a_port_that_another_program_holds_is_bad_and_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        found = readers.port(settings(Path("/nonexistent"), port=number))
    assert found.problem == "Address already in use"
    assert str(psutil.Process().pid) in found.holder


def test_a_program_that_takes_too_long_is_ended_and_has_no_status() -> None:
    assert readers.said(("sleep", "60"), 0.05) == Said(None, "")


def test_a_program_that_fails_keeps_its_last_words() -> None:
    said = readers.said(("sh", "-c", "echo first >&2; echo last >&2; exit 3"))
    assert (said.status, said.ending) == (3, "ended with status 3: last")


def test_free_space_is_asked_of_the_nearest_folder_that_is_there(tmp_path: Path) -> None:
    assert readers.free_bytes(tmp_path / "not" / "yet") > 0


def test_a_key_file_that_others_may_write_to_is_bad(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"version": 1, "keys": []}')
    (tmp_path / "keys.json").chmod(0o666)
    entry, problem = readers.key_file(settings(tmp_path))
    assert entry is not None
    assert "others may write" in problem
    assert readers.door(settings(tmp_path, host="0.0.0.0")) == (None, "")


def test_an_open_host_without_keys_is_why_the_gateway_would_not_start(tmp_path: Path) -> None:
    assert "can be reached from other machines" in readers.door(settings(tmp_path, host="0.0.0.0"))[1]
    assert readers.door(settings(tmp_path, host="127.0.0.1")) == (0, "")


# --- the model ----------------------------------------------------------------------------------------------


def verdicts(home: Path, model: str) -> dict[str, str]:
    return {each.check: each.verdict for each in model_checks.files(settings(home, model=model))}


def test_a_model_is_looked_for_and_never_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it asked the network"))
    assert verdicts(tmp_path, "demo") == {"model": "warn"}
    assert verdicts(tmp_path, "nosuch-org/nosuch-model") == {"model": "warn"}
    assert verdicts(tmp_path, str(tmp_path / "nosuch")) == {"model": "bad"}
    assert verdicts(tmp_path, "nosuch") == {"model": "bad"}


def test_a_whole_model_is_good_and_a_cut_one_bad(tmp_path: Path) -> None:
    folder = small_model(tmp_path / "model")
    assert set(verdicts(tmp_path, str(folder)).values()) == {"good"}
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, io.SEEK_END) - 1)
    assert verdicts(tmp_path, str(folder)) == {"model": "good", "weights": "bad", "family": "good"}
    (folder / "config.json").write_text("{")
    assert verdicts(tmp_path, str(folder)) == {"model": "bad"}


def test_a_family_that_the_installed_mlx_lm_does_not_know_is_bad(tmp_path: Path) -> None:
    folder = small_model(tmp_path / "model", model_type="nosuch_family")
    assert verdicts(tmp_path, str(folder))["family"] == "bad"


def test_the_installed_mlx_lms_tables_are_found() -> None:
    family = model_reading.family({"model_type": "mistral"})
    assert "llama" in family.known
    assert family.other_names["mistral"] == "llama"
    assert family.by_architecture


# --- what is printed ----------------------------------------------------------------------------------------

LOOKED = [
    Looked("Machine", (good("a", "all [fine]"),)),
    Looked("Machine", (warn("b", "so so " * 30, "mind it"),)),
    Looked("Empty", ()),
    Looked("Model", (bad("c", "broken", "mend it"),)),
]


def test_it_reads_without_colour_and_groups_once(tmp_path: Path) -> None:
    out = io.StringIO()
    show(LOOKED, Console(file=out, width=80, no_color=True))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines.count("Machine") == 1
    assert "Empty" not in lines
    assert "  good  all [fine]" in lines
    assert "        -> mend it" in lines
    assert lines[-1].startswith("1 bad, 1 warn, 1 good.")
    assert max(map(len, lines)) <= 80


def test_json_has_every_finding_and_whether_all_is_well() -> None:
    whole = json.loads(as_json(LOOKED))
    assert (whole["ok"], whole["counts"]) == (False, {"bad": 1, "warn": 1, "good": 1})
    assert whole["findings"][2] == {
        "group": "Model",
        "check": "c",
        "verdict": "bad",
        "says": "broken",
        "do": "mend it",
    }
    assert json.loads(as_json(LOOKED[:3]))["ok"] is True


@pytest.mark.parametrize(("finding", "status"), [(bad("a", "b", "c"), 1), (warn("a", "b", "c"), 0)])
def test_the_exit_status_is_1_only_for_what_is_bad(
    finding: Any, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checks, "CHECKS", (Check("A", "a", lambda _: [finding]),))
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert (result.exit_code, json.loads(result.stdout)["findings"][0]["says"]) == (status, "b")


def test_settings_that_can_not_be_read_are_a_finding_and_the_rest_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "forebay.toml"
    file.write_text("[worker]\nslot = 4\n")
    kept = tuple(check for check in CHECKS if check.name in ("settings", "home"))
    monkeypatch.setattr(checks, "CHECKS", kept)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["doctor", "--config", str(file)])
    assert result.exit_code == 1
    assert "did you mean worker.slots?" in " ".join(result.stdout.split())
    assert str(tmp_path) in result.stdout.replace("\n        ", "")
