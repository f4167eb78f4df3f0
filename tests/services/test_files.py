"""The files of both services: property lists that launchd reads, units that systemd reads, marks on each."""

import plistlib
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ops.services import launchd as of_launchd
from ops.services import systemd as of_systemd
from ops.services.jobs import Whole, carried, jobs
from ops.services.marks import is_intact, is_ours, sealed, standing
from ops.services.systemd import command_line, quoted
from shared.errors import SettingsError
from shared.limits import SOCKET_PATH_BYTES_MAX
from tests.services.world import KEEPERS, files, launchd, systemd, whole

PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1)


def plist(tmp_path: Path, made: Whole, role: str, *, system: bool = False) -> dict[str, object]:
    found = {
        file.path.stem.rpartition(".")[2]: file for file in files(launchd(tmp_path, system=system), made)
    }
    content: dict[str, object] = plistlib.loads(found[role].text)
    return content


def test_a_property_list_has_what_launchd_needs(tmp_path: Path) -> None:
    content = plist(tmp_path, whole(tmp_path, options=("--config=/e/f.toml",)), "proxy")
    assert content == {
        "Label": "forebay.8000.proxy",
        "ProgramArguments": [
            *("/opt/f/bin/python", "-P", "-m", "ops.cli", "proxy", "--port=8000", "--config=/e/f.toml"),
            "--bound-log=/f/logs/proxy.log",
        ],
        "EnvironmentVariables": {"FOREBAY_HOME": "/f", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"},
        "WorkingDirectory": "/f",
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": 10,
        "ExitTimeOut": 40,
        "ProcessType": "Interactive",
        "SoftResourceLimits": {"NumberOfFiles": 65536},
        "HardResourceLimits": {"NumberOfFiles": 65536},
        "StandardOutPath": "/f/logs/proxy.log",
        "StandardErrorPath": "/f/logs/proxy.log",
        "Umask": 0o077,
    }


def test_a_service_of_the_system_runs_as_its_user_and_knows_that_users_home(tmp_path: Path) -> None:
    made = whole(tmp_path, user="ada", user_home=Path("/people/ada"))
    content = plist(tmp_path, made, "worker", system=True)
    assert content["UserName"] == "ada"
    assert content["EnvironmentVariables"]["HOME"] == "/people/ada"  # type: ignore[index]  # it is a dictionary


@pytest.mark.parametrize("keeper", KEEPERS)
def test_other_settings_make_another_file_though_all_else_is_the_same(keeper: str, tmp_path: Path) -> None:
    made = [files(KEEPERS[keeper](tmp_path), whole(tmp_path, settings=each)) for each in ("0a", "0b")]
    assert [standing(old.text, new.text) for old, new in zip(*made, strict=True)] == ["ours", "ours"]


@pytest.mark.parametrize("drain_s", [0.0, 25.0, 599.5, 600.0])
def test_a_stop_may_take_longer_than_a_drain_and_ten_seconds(drain_s: float, tmp_path: Path) -> None:
    made = whole(tmp_path, drain_s=drain_s)
    assert all(job.stop_s > drain_s + 10 for job in jobs(made))
    for keeper, module in ((launchd(tmp_path), of_launchd), (systemd(tmp_path), of_systemd)):
        found = [module.stop_s_of(file.text) for file in files(keeper, made)]
        assert found == [job.stop_s for job in jobs(made)]


@pytest.mark.parametrize("text", [b"", b"nonsense", b"TimeoutStopSec=infinity", plistlib.dumps({"A": 1})])
def test_a_file_that_names_no_time_has_none(text: bytes) -> None:
    assert of_launchd.stop_s_of(text) is None
    assert of_systemd.stop_s_of(text) is None


def unit(tmp_path: Path, made: Whole, role: str, *, system: bool = False) -> list[str]:
    found = files(systemd(tmp_path, system=system), made)
    return next(file for file in found if role in file.path.name).text.decode().splitlines()


def test_a_unit_has_what_systemd_needs(tmp_path: Path) -> None:
    lines = unit(tmp_path, whole(tmp_path), "worker")
    wanted = {
        'ExecStart="/opt/f/bin/python" "-P" "-m" "ops.cli" "worker" "--port=8000"',
        'Environment="FOREBAY_HOME=/f"',
        "WorkingDirectory=/f",
        "Restart=always",
        "StartLimitIntervalSec=0",
        "TimeoutStopSec=40",
        "KillMode=mixed",
        "LimitNOFILE=65536",
        "NoNewPrivileges=yes",
        "WantedBy=default.target",
    }
    assert wanted <= set(lines)
    assert not any(line.startswith(("User=", "ProtectSystem=")) for line in lines)


def test_a_unit_of_the_system_runs_as_its_user_with_less_to_reach(tmp_path: Path) -> None:
    lines = unit(tmp_path, whole(tmp_path, user="ada"), "worker", system=True)
    assert {"User=ada", "ProtectSystem=full", "WantedBy=multi-user.target"} <= set(lines)


def test_the_proxy_is_stopped_before_its_worker(tmp_path: Path) -> None:
    assert "After=forebay-8000-worker.service" in unit(tmp_path, whole(tmp_path), "proxy")
    assert not any(line.startswith("After=") for line in unit(tmp_path, whole(tmp_path), "worker"))


@given(st.lists(PRINTABLE, min_size=1))
@example(["/opt/$a", "$b", "%c", '"', "\\"])
def test_a_units_command_is_read_back_as_it_was(words: list[str]) -> None:
    # In double quotes a POSIX shell and systemd take the same escapes; then come specifiers and variables.
    program, *rest = shlex.split(command_line(words))
    assert [
        program.replace("%%", "%"),
        *(word.replace("%%", "%").replace("$$", "$") for word in rest),
    ] == words
    assert all(word.replace("%%", "").count("%") == 0 for word in (program, *rest))
    assert all(word.replace("$$", "").count("$") == 0 for word in rest)


@given(PRINTABLE)
def test_a_units_variable_is_read_back_as_it_was(value: str) -> None:
    assert [word.replace("%%", "%") for word in shlex.split(quoted(f"A={value}"))] == [f"A={value}"]


def test_systemd_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze here")
    made = whole(
        tmp_path, python="/bin/sh", home=Path("/a b%c"), user="root", options=('--model=$a "b" \\c',)
    )
    written = files(systemd(tmp_path, system=True), made)
    (tmp_path / "units").mkdir()
    for file in written:
        file.path.write_bytes(file.text)
    done = subprocess.run(
        [verify, "verify", *(str(file.path) for file in written)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if "forebay" in line] == []
    assert done.returncode == 0


def test_plutil_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    plutil = shutil.which("plutil")
    if plutil is None:
        pytest.skip("there is no plutil here")
    for file in files(launchd(tmp_path), whole(tmp_path)):
        (tmp_path / "a.plist").write_bytes(file.text)
        subprocess.run([plutil, "-lint", str(tmp_path / "a.plist")], check=True)


@pytest.mark.parametrize("keeper", KEEPERS)
def test_a_file_is_known_as_ours_until_a_byte_is_changed(keeper: str, tmp_path: Path) -> None:
    made = whole(tmp_path)
    for file in files(KEEPERS[keeper](tmp_path), made):
        changed = file.text.replace(b"8000", b"8001")
        assert standing(None, file.text) == "absent"
        assert standing(file.text, file.text) == "same"
        assert standing(sealed_anew(file.text), file.text) == "ours"
        assert standing(changed, file.text) == "edited"
        assert standing(b"# somebody's\n", file.text) == "foreign"
        assert is_ours(changed)
        assert not is_intact(changed)


def sealed_anew(text: bytes) -> bytes:
    """Return what an install with another port would have written."""
    at = text.index(b"forebay-digest: ") + len(b"forebay-digest: ")
    return sealed((text[:at] + b"0" * 64 + text[at + 64 :]).replace(b"8000", b"8002"))


def test_only_forebays_own_variables_and_the_hubs_places_are_taken_along(tmp_path: Path) -> None:
    at_hand = {
        "FOREBAY_WORKER__SLOTS": "4",
        "FOREBAY_HOME": "/elsewhere",
        "HF_HOME": "/hub",
        "HF_TOKEN": "secret",
        "PATH": "/bin",
        "FOREBAY_LANES": "",
    }
    assert carried(whole(tmp_path, variables=at_hand)) == {
        "FOREBAY_HOME": "/f",
        "FOREBAY_WORKER__SLOTS": "4",
        "HF_HOME": "/hub",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_what_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="service's file"):
        jobs(whole(tmp_path, options=("--model=a\nExecStartPre=b",)))
    with pytest.raises(SettingsError, match="too long"):
        jobs(replace(whole(tmp_path), home=Path("/" + "h" * SOCKET_PATH_BYTES_MAX)))


def test_two_ports_have_services_of_their_own(tmp_path: Path) -> None:
    for make in (launchd, systemd):
        assert set(make(tmp_path, port=8000).paths()).isdisjoint(make(tmp_path, port=8001).paths())
