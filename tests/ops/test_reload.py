"""`forebay reload` against a socket that the test plays, and the doors that no command opens without keys."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ops import models, up
from ops.cli import app
from ops.reload import reload
from proxy.keys import KeyFile
from shared.config import Settings
from shared.errors import ModelError, SettingsError
from shared.model_folder import ModelFolder
from shared.run_folder import RunFolder
from tests.proxy.small_tokenizers import write_folder

PORT = 8123
TWO_KEYS = "Reloaded: lanes interactive, batch; 2 keys."
GOOD = {"lanes": ["interactive", "batch"], "keys": 2, "needs_restart": []}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path, port=PORT)


@contextlib.contextmanager
def played(settings: Settings, response: bytes) -> Iterator[list[bytes]]:
    """Play a gateway that answers one request with these bytes; yield what it was asked."""
    folder = RunFolder(settings.home_folder, settings.port)
    folder.create()
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder.admin_socket))
        listener.listen(1)

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                asked.append(peer.recv(65_536))
                peer.sendall(response)

        thread = threading.Thread(target=answer)
        thread.start()
        yield asked
        thread.join()


def http(status: str, body: Any) -> bytes:
    content = json.dumps(body).encode() if not isinstance(body, bytes) else body
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, TWO_KEYS),
        ({"keys": 1}, "Reloaded: lanes interactive, batch; 1 key."),
        ({"keys": 0}, "Reloaded: lanes interactive, batch; no keys."),
        (
            {"needs_restart": ["port", "worker"]},
            f"{TWO_KEYS} Changed as well, and in force after a restart: port, worker.",
        ),
    ],
)
def test_what_the_gateway_goes_on_with_is_said(
    settings: Settings, changes: dict[str, Any], words: str
) -> None:
    with played(settings, http("200 OK", {**GOOD, **changes})) as asked:
        assert reload(settings) == words
    assert asked[0].startswith(b"POST /admin/reload HTTP/1.1\r\n")


def test_a_refusal_is_said_with_its_reason(settings: Settings) -> None:
    with (
        played(settings, http("409 Conflict", {"problem": "two lanes have the name 'a'"})),
        pytest.raises(SettingsError, match="goes on as before, because two lanes have the name 'a'"),
    ):
        reload(settings)


def test_where_no_gateway_is_home_and_port_are_named(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as problem:
        reload(settings)
    assert str(tmp_path) in str(problem.value)
    assert str(PORT) in str(problem.value)


def test_a_socket_that_a_dead_gateway_left_is_nobody(settings: Settings) -> None:
    folder = RunFolder(settings.home_folder, settings.port)
    folder.create()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(folder.admin_socket))
    with pytest.raises(SettingsError, match="no gateway"):
        reload(settings)


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"nonsense\r\n\r\n",
        http("404 Not Found", b"404: Not Found"),
        http("500 Oh", b"{"),
        http("500 Oh", {}),
        http("500 Oh", ["x"]),
        http("200 OK", {}),
    ],
)
def test_whoever_answers_otherwise_is_no_gateway(settings: Settings, response: bytes) -> None:
    with played(settings, response), pytest.raises(SettingsError, match="no gateway"):
        reload(settings)


def test_the_command_says_it_and_ends_well_or_with_one_line_and_2(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "forebay.toml"
    file.write_text(f'home = "{tmp_path}"\nport = {PORT}\n')
    with played(settings, http("200 OK", GOOD)):
        done = CliRunner().invoke(app, ["reload", "--config", str(file)])
    assert (done.exit_code, done.stdout) == (0, f"{TWO_KEYS}\n")
    nobody = CliRunner().invoke(app, ["reload", "--config", str(file), "--port", str(PORT + 1)])
    assert (nobody.exit_code, len(nobody.stderr.splitlines())) == (2, 1)
    assert str(PORT + 1) in nobody.stderr


# --- the open door ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    return write_folder(tmp_path / "small")


@pytest.mark.parametrize("command", ["up", "proxy"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_no_command_opens_the_door_to_others_without_keys(
    command: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(_model: str, _home: Path) -> None:
        raise ModelError("a model is fetched for what won't begin")

    monkeypatch.setattr(models, "resolve", resolve)
    monkeypatch.setattr(up, "resolve", resolve)
    file = tmp_path / "forebay.toml"
    file.write_text(f'home = "{tmp_path / "home"}"\n')
    result = CliRunner().invoke(app, [command, "--config", str(file), "--host", host])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"forebay: host '{host}' can be reached from other machines")
    assert "forebay keys add" in line


def test_the_proxys_own_program_does_not_either(folder: ModelFolder, tmp_path: Path) -> None:
    file = tmp_path / "forebay.toml"
    file.write_text(f'home = "{tmp_path / "home"}"\nhost = "0.0.0.0"\n')
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "--folder", str(folder.path), "--config", str(file)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "can be reached from other machines" in line


def test_with_a_key_the_door_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeyFile(tmp_path / "keys.json").add("ci")
    monkeypatch.setattr(up, "resolve", lambda _model, _home: None)
    begun: list[Settings] = []
    monkeypatch.setattr(up, "keep_up", lambda settings, *_: begun.append(settings) or 0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = Settings.load(home=tmp_path, host="0.0.0.0", port=port)
    assert up.up(settings, None, {}) == 0
    assert begun == [settings]
