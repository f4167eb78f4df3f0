"""The files that an operator copies from or types: they name things that exist."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ops.cli import app
from shared.config import Settings, _known_keys

ROOT = Path(__file__).parents[2]
TARGETS = {
    "help",
    "setup",
    "run",
    "demo",
    "check",
    "test",
    "figures",
    "engine",
    "prefixes",
    "simulate",
    "load",
    "chaos",
    "clean",
}


def flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from flat({str(place): item for place, item in enumerate(value)}, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def default_settings() -> dict[str, Any]:
    return dict(flat(Settings.model_construct().model_dump(mode="json")))


def example_text() -> str:
    return (ROOT / "forebay.example.toml").read_text("utf-8")


def with_unset_keys(text: str) -> str:
    """Take the comment sign from lines like `# key = 1`, which stand for settings without a default."""
    return re.sub(r"^# (\w+ = \S+)", r"\1", text, flags=re.MULTILINE)


def test_the_example_has_every_default_and_nothing_else() -> None:
    defaults = {key: value for key, value in default_settings().items() if value is not None}
    assert dict(flat(tomllib.loads(example_text()))) == defaults


def test_the_example_names_every_setting_even_those_without_a_default() -> None:
    named = dict(flat(tomllib.loads(with_unset_keys(example_text()))))
    assert named.keys() == default_settings().keys()
    assert {key for key in _known_keys(Settings) if "." in key} <= {re.sub(r"\.\d", "", key) for key in named}


def test_the_example_is_read_as_it_stands_and_with_every_line_in_use(tmp_path: Path) -> None:
    Settings.load(ROOT / "forebay.example.toml")
    full = tmp_path / "full.toml"
    full.write_text(with_unset_keys(example_text()))
    assert Settings.load(full).worker.context_tokens is not None


def test_the_procfile_names_commands_that_exist() -> None:
    lines = [
        re.fullmatch(r"(\w+): forebay (\w+)", line) for line in (ROOT / "Procfile").read_text().splitlines()
    ]
    assert [line and line.groups() for line in lines] == [("proxy", "proxy"), ("worker", "worker")]
    for role in ("proxy", "worker"):
        assert CliRunner().invoke(app, [role, "--help"]).exit_code == 0
    assert CliRunner().invoke(app, ["nosuch", "--help"]).exit_code == 2


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def test_the_makefile_has_its_targets_and_help_lists_each() -> None:
    assert makefile_targets() == TARGETS
    make = shutil.which("make")
    assert make is not None
    listed = subprocess.run([make, "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^make (\w+)", listed, flags=re.MULTILINE)) == TARGETS


def test_no_recipe_hides_a_failure() -> None:
    recipes = re.findall(r"^\t(.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert len(recipes) > 5
    for recipe in recipes:
        assert not recipe.startswith("-")
        assert "|| true" not in recipe


def test_ci_stops_at_the_first_failure_and_runs_check_and_test() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert lines[-1] == "make check test"
    assert script.stat().st_mode & 0o111
