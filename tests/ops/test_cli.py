"""The command line: exit codes, one line for an error, and commands that pass on what they were given."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ops import models, up
from ops.cli import app
from shared import logs
from shared.errors import ModelError


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


ORDERS = {
    ("restart", "worker"): ("--drain", "--timeout"),
    ("drain",): ("--off", "--timeout"),
    ("stop",): ("--at-once",),
    ("journal",): ("-n", "--json", "--stderr"),
    ("quarantine", "list"): ("--json",),
    ("quarantine", "clear"): ("--all", "FINGERPRINT"),
}


@pytest.mark.parametrize("words", ORDERS, ids=" ".join)
def test_each_orders_help_says_its_options_and_whose_gateway_is_meant(words: tuple[str, ...]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert all(option in result.stdout for option in (*ORDERS[words], "--config", "--port"))


def test_help_names_the_commands_and_hides_the_lifeline() -> None:
    commands = ("up", "proxy", "worker", "fetch", "keys", "reload", *(words[0] for words in ORDERS))
    assert all(f" {name} " in run("--help").stdout for name in (*commands, "--version"))
    help_text = run("worker", "--help").stdout
    assert "--model" in help_text
    assert "lifeline" not in help_text


def test_the_version_is_the_distributions() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, "forebay 0.1.0\n")


@pytest.mark.parametrize("command", ["up", "proxy", "worker"])
def test_an_unknown_setting_names_the_nearest_and_exits_2(command: str, tmp_path: Path) -> None:
    file = tmp_path / "forebay.toml"
    file.write_text("[worker]\nslot = 4\n")
    result = run(command, "--config", str(file))
    assert result.exit_code == 2
    assert result.stderr == "forebay: worker.slot is no known setting; did you mean worker.slots?\n"
    assert result.stdout == ""


def test_a_setting_out_of_range_exits_2() -> None:
    result = run("up", "--port", "70000")
    assert result.exit_code == 2
    assert result.stderr.startswith("forebay: port: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_configuration_that_is_not_there_exits_2(tmp_path: Path) -> None:
    result = run("proxy", "--config", str(tmp_path / "nosuch.toml"))
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


def test_a_model_that_is_not_there_exits_2(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_model: str, _home: Path) -> None:
        raise ModelError("nosuch: no such folder")

    monkeypatch.setattr(models, "resolve", refuse)
    result = run("worker", "--model", "nosuch")
    assert (result.exit_code, result.stderr) == (2, "forebay: nosuch: no such folder\n")


@pytest.mark.parametrize("role", ["proxy", "worker"])
def test_a_role_gets_settings_folder_and_lifeline_and_gives_its_status(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    rereads: list[int] = []

    def role_run(settings: Any, folder: Any, lifeline_fd: int | None, *reading: Any) -> int:
        given.append((settings.port, folder, lifeline_fd))
        rereads.extend(read().port for read in reading)
        return 7

    monkeypatch.setattr(models, "resolve", lambda model, _home: f"folder of {model}")
    monkeypatch.setattr(f"{role}.__main__.run", role_run)
    monkeypatch.setattr(logs, "configure", lambda _settings, _role: None)
    result = run(role, "--model", "mine", "--port", "8011", "--lifeline-fd", "5")
    assert result.exit_code == 7
    assert given == [(8011, "folder of mine", 5)]
    # The proxy can read its settings again, with the same options on top.
    assert rereads == ([8011] if role == "proxy" else [])


def test_up_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: list[Any] = []

    def keep_up(_settings: Any, _folder: Any, commands: Any) -> int:
        given.append(commands)
        return 0

    monkeypatch.setattr(up, "refuse_taken_port", lambda _host, _port: None)
    monkeypatch.setattr(up, "resolve", lambda _model, _home: "folder")
    monkeypatch.setattr(up, "keep_up", keep_up)
    file = tmp_path / "forebay.toml"
    file.write_text("")
    assert run("up", "--config", str(file), "--port", "8012").exit_code == 0
    start = (sys.executable, "-P", "-m", "ops.cli")
    options = ("--port=8012", f"--config={file}")
    assert given == [{"proxy": (*start, "proxy", *options), "worker": (*start, "worker", *options)}]


def test_a_taken_port_is_said_at_once_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "resolve", lambda _model, _home: pytest.fail("the port comes first"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("up", "--port", str(port))
    assert result.exit_code == 2
    assert f"port {port}" in result.stderr
    assert "--port" in result.stderr


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys, ops.cli\n"
        "heavy = {'pydantic', 'rich.progress', 'huggingface_hub', 'aiohttp', 'zmq', 'mlx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
