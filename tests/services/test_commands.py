"""`forebay install` and `forebay uninstall` as an operator types them, and what else knows of services."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ops.cli import app
from ops.doctor import readers
from ops.services import command, install, installed
from ops.services.installed import User, home_of, keeper_for, kept_by
from shared.errors import SettingsError
from shared.run_folder import RunFolder
from tests.ops.doctor.small_model import small_model
from tests.services.world import Machine

PORT = 8123


@pytest.fixture
def home() -> Iterator[Path]:
    """A home whose socket's path is short, unlike those under pytest's own folders."""
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/tmp") as name:
        yield Path(name) / "home"


@pytest.fixture
def machine(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """This machine, with a user whose home is a temporary folder, and false launchctl and systemctl."""
    user = User("ada", os.getuid(), os.getgid(), tmp_path)
    found = Machine()
    monkeypatch.setattr(installed, "this_user", lambda: user)
    monkeypatch.setattr(installed, "require_keeper", lambda: None)
    monkeypatch.setattr(install, "run_command", found.run)
    monkeypatch.setattr(command, "_UP_S", 0.0)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    monkeypatch.setenv("FOREBAY_PORT", str(PORT))
    return found


def run(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def ours() -> list[Path]:
    return [each.path for each in installed.installed(PORT)]


def test_an_install_by_command_makes_home_and_services_and_uninstall_leaves_home(
    machine: Machine, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(tmp_path / "model")
    done = run("install", "--model", str(model))
    assert (done.exit_code, done.stdout) == (0, "Forebay's services are installed.\n")
    assert "To end them" in done.stderr
    assert (home / "logs").is_dir()
    assert (len(ours()), len(machine.loaded)) == (2, 2)
    assert all(f"--model={model}".encode() in path.read_bytes() for path in ours())
    assert "forebay-8123-proxy" in kept_by(PORT) or "forebay.8123.proxy" in kept_by(PORT)
    assert kept_by(PORT + 1) == ""
    assert [(keeper.stop_s, keeper.intact) for keeper in readers.keepers(PORT)] == [(40.0, True)] * 2
    machine.told.clear()
    assert "already" in run("install", "--model", str(model)).stdout
    monkeypatch.setenv("FOREBAY_WORKER__SLOTS", "4")
    assert "written anew" in run("install", "--model", str(model)).stdout
    gone = run("uninstall")
    assert gone.exit_code == 0
    assert (ours(), machine.loaded, home.is_dir()) == ([], set(), True)


def test_a_dry_run_by_command_changes_nothing_at_all(machine: Machine, home: Path, tmp_path: Path) -> None:
    shown = run(
        "install", "--dry-run", "--config", str(settings_file(tmp_path, "[proxy]\ndrain_s = 100.0\n"))
    )
    assert shown.exit_code == 0
    assert f"--config={tmp_path / 'forebay.toml'}" in shown.stdout
    assert "115" in shown.stdout
    assert (ours(), machine.told, home.exists()) == ([], [], False)
    assert [path.name for path in tmp_path.iterdir()] == ["forebay.toml"]


def settings_file(folder: Path, text: str) -> Path:
    (folder / "forebay.toml").write_text(text)
    return folder / "forebay.toml"


@pytest.mark.usefixtures("machine")
def test_a_model_that_is_not_there_is_not_installed(home: Path) -> None:
    refused = run("install")
    assert refused.exit_code == 2
    assert "`forebay fetch` brings" in refused.stderr
    assert (ours(), home.exists()) == ([], False)


@pytest.mark.usefixtures("machine")
def test_an_open_door_is_not_installed(tmp_path: Path) -> None:
    file = settings_file(tmp_path, f'host = "0.0.0.0"\nmodel = "{small_model(tmp_path / "model")}"\n')
    refused = run("install", "--config", str(file))
    assert (refused.exit_code, "can be reached from other machines" in refused.stderr) == (2, True)


def test_what_runs_already_is_not_installed_beside(machine: Machine, home: Path, tmp_path: Path) -> None:
    folder = RunFolder(home, PORT)
    folder.create()
    with folder.supervisor_lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = run("install", "--model", str(small_model(tmp_path / "model")))
    assert (refused.exit_code, "`forebay stop` first" in refused.stderr) == (2, True)
    assert (ours(), machine.told) == ([], [])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("install", "--run-as", "ada"), "goes with --system"),
        (("install", "--system", "--run-as", "nosuch-user-of-forebay"), "no user"),
        (("install", "--system"), "whom shall they run as"),
        (("uninstall", "--system"), "needs root"),
        (("install", "--port", "70000"), "port"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_what_can_not_be_done_is_refused_with_status_2(
    words: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    refused = run(*words)
    assert (refused.exit_code, reason in refused.stderr) == (2, True)


def test_a_command_that_fails_ends_with_status_1(machine: Machine, tmp_path: Path) -> None:
    machine.failing = lambda line: "bootstrap" in line or "daemon-reload" in line
    failed = run("install", "--model", str(small_model(tmp_path / "model")))
    assert (failed.exit_code, "Input/output error" in failed.stderr) == (1, True)
    assert ours() == []


def test_the_users_home_is_meant_by_a_tilde_and_not_roots() -> None:
    ada = User("ada", 501, 20, Path("/people/ada"))
    assert home_of(Path("~/.forebay"), ada) == Path("/people/ada/.forebay")
    assert home_of(Path("/srv/forebay"), ada) == Path("/srv/forebay")


def test_each_platform_has_its_keeper_in_its_places() -> None:
    ada = User("ada", 501, 20, Path("/people/ada"))
    places = {
        (platform, user is None): keeper_for(8000, user, platform).paths()[0]
        for platform in ("darwin", "linux")
        for user in (ada, None)
    }
    assert {key: str(path) for key, path in places.items()} == {
        ("darwin", False): "/people/ada/Library/LaunchAgents/forebay.8000.worker.plist",
        ("darwin", True): "/Library/LaunchDaemons/forebay.8000.worker.plist",
        ("linux", False): "/people/ada/.config/systemd/user/forebay-8000-worker.service",
        ("linux", True): "/etc/systemd/system/forebay-8000-worker.service",
    }


def test_a_machine_without_systemd_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed.shutil, "which", lambda _name: None)
    with pytest.raises(SettingsError, match="no systemd"):
        installed.require_keeper("linux")
    installed.require_keeper("darwin")
