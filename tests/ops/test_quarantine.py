"""`forebay quarantine`: by the running gateway where there is one, else from its file."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ops.cli import app
from proxy.quarantine import Entry, Quarantine, file_of
from shared.config import Settings
from shared.run_folder import RunFolder, RunLock
from tests.ops.played_gateway import played

PORT = 8123
LIST, CLEAR = "GET /admin/quarantine", "POST /admin/quarantine/clear"


def entry(number: int, *, lasts_s: float = 3600.0) -> Entry:
    now = time.time()
    return Entry(
        f"{number:016x}", now - 60, now + lasts_s, "memory", "ended by [SIGABRT]", "k1", "batch", 9 * number
    )


ONE, TWO, OLD = entry(1), entry(2), entry(3, lasts_s=-1.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path, port=PORT)


@pytest.fixture
def file(settings: Settings) -> Path:
    path = file_of(settings.home_folder, settings.port)
    Quarantine.write(path, [OLD, ONE, TWO])
    return path


def run(settings: Settings, *arguments: str) -> Any:
    toml = settings.home_folder / "forebay.toml"
    toml.write_text(f'home = "{settings.home_folder}"\nport = {PORT}\n')
    return CliRunner().invoke(app, ["quarantine", *arguments, "--config", str(toml)])


def test_the_gateway_says_what_is_quarantined(settings: Settings) -> None:
    with played(settings, {LIST: [(200, {"entries": [asdict(ONE)]})]}):
        said = run(settings, "list").stdout
    assert all(word in said for word in (ONE.fingerprint, "batch", "9 tokens", "memory: ended by [SIGABRT]"))


def test_without_a_gateway_the_file_says_it_but_for_what_is_over(settings: Settings, file: Path) -> None:
    assert file.exists()
    told = [json.loads(line) for line in run(settings, "list", "--json").stdout.splitlines()]
    assert told == [asdict(ONE), asdict(TWO)]


def test_an_empty_quarantine_is_said(settings: Settings) -> None:
    result = run(settings, "list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Nothing is quarantined.\n")


@pytest.mark.parametrize(("arguments", "body"), [((ONE.fingerprint,), [ONE.fingerprint]), (("--all",), None)])
def test_the_gateway_clears_what_is_named(
    arguments: tuple[str, ...], body: list[str] | None, settings: Settings, file: Path
) -> None:
    before = file.read_bytes()
    with played(settings, {CLEAR: [(200, {"cleared": 1, "unknown": []})]}) as gateway:
        result = run(settings, "clear", *arguments)
    assert (result.exit_code, result.stderr) == (0, "1 cleared.\n")
    assert gateway.asked == [(CLEAR, {"fingerprints": body})]
    assert file.read_bytes() == before


def test_without_a_gateway_the_file_is_changed(settings: Settings, file: Path) -> None:
    assert run(settings, "clear", ONE.fingerprint).exit_code == 0
    assert Quarantine.read(file) == [TWO]
    assert run(settings, "clear", "--all").stderr == "1 cleared.\n"
    assert Quarantine.read(file) == []


def test_a_fingerprint_that_is_not_there_is_said_with_status_1(settings: Settings, file: Path) -> None:
    result = run(settings, "clear", TWO.fingerprint, "nosuch")
    assert result.exit_code == 1
    assert result.stderr == "1 cleared.\nforebay: not quarantined: nosuch\n"
    assert Quarantine.read(file) == [ONE]


@pytest.mark.parametrize("arguments", [(), ("--all", ONE.fingerprint)])
def test_what_to_clear_must_be_said(arguments: tuple[str, ...], settings: Settings, file: Path) -> None:
    before = file.read_bytes()
    assert run(settings, "clear", *arguments).exit_code == 2
    assert file.read_bytes() == before


def test_the_file_of_a_gateway_that_is_there_but_silent_is_left_alone(settings: Settings, file: Path) -> None:
    before = file.read_bytes()
    with RunLock(RunFolder(settings.home_folder, PORT)):
        result = run(settings, "clear", "--all")
    assert (result.exit_code, "no gateway" in result.stderr) == (2, True)
    assert file.read_bytes() == before


def test_a_file_that_makes_no_sense_is_one_line(settings: Settings, file: Path) -> None:
    file.write_text("{")
    result = run(settings, "list")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert str(file) in result.stderr
