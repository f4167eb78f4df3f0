"""`forebay keys`: the key alone on stdout, everything else in words, and never a hash."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ops import keys
from ops.cli import app
from proxy.keys import KeyFile, split_key
from shared.limits import KEY_CLASSES_MAX


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ("keys", *arguments))


def stored(home: Path) -> Any:
    return KeyFile(home / "keys.json").read()


def test_the_key_stands_alone_on_stdout_and_its_explanation_on_stderr(home: Path) -> None:
    result = run("add", "ci")
    (record,) = stored(home)
    assert result.exit_code == 0
    parts = split_key(result.stdout.removesuffix("\n"))
    assert parts is not None
    assert parts[0] == record.id
    assert record.id in result.stderr
    assert "`forebay reload`" in result.stderr
    assert parts[1] not in result.stderr


def test_only_the_first_key_is_told_to_close_the_door(home: Path) -> None:
    assert "every request needs a key" in run("add", "one").stderr
    assert "every request needs a key" not in run("add", "other").stderr
    assert len(stored(home)) == 2


def test_every_option_reaches_the_record(home: Path) -> None:
    options = ("--weight=2.5", "--lane=batch", "--requests-per-minute=60", "--tokens-per-minute=9000")
    more = ("--concurrent-max=4", "--model=demo", "--model=other", "--context-tokens=8192", "--max-tokens=5")
    assert run("add", "ci", *options, *more, "--private-prefixes", "--class=ci").exit_code == 0
    (record,) = stored(home)
    assert record.model_dump(exclude={"id", "name", "salt", "digest", "created"}) == {
        "weight": 2.5,
        "lane": "batch",
        "requests_per_minute": 60,
        "tokens_per_minute": 9000,
        "concurrent_max": 4,
        "models": ("demo", "other"),
        "context_tokens": 8192,
        "max_tokens": 5,
        "private_prefixes": True,
        "key_class": "ci",
        "admin": False,
        "rotated": None,
    }


def test_the_configuration_says_where_the_keys_are_and_which_lanes_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREBAY_HOME", raising=False)
    config = tmp_path / "forebay.toml"
    config.write_text(f'home = "{tmp_path}/other"\n[[lanes]]\nname = "urgent"\n')
    chosen = f"--config={config}"
    assert run("add", "ci", "--lane", "urgent", chosen).exit_code == 0
    assert [record.lane for record in stored(tmp_path / "other")] == ["urgent"]
    refused = run("add", "cd", "--lane", "batch", chosen)
    assert (refused.exit_code, refused.stderr) == (
        2,
        "forebay: there is no lane 'batch'; the lanes are: urgent\n",
    )
    assert "ci" in run("list", chosen).stdout
    assert run("revoke", "ci", chosen).exit_code == 0
    assert stored(tmp_path / "other") == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "taken"), "there is a key 'taken' already"),
        (("add", ""), "name: "),
        (("add", "x", "--weight", "0"), "weight: "),
        (("add", "x", "--requests-per-minute", "0"), "requests_per_minute: "),
        (("add", "x", "--model", ""), "models: "),
        (("add", "x", "--config", "nosuch.toml"), "nosuch.toml: "),
        (("list", "--config", "nosuch.toml"), "nosuch.toml: "),
        (("add", "x", "--class", "Not Plain"), "key_class: "),
        (("add", "x", "--admin", "--lane", "batch"), "an admin key makes no requests"),
        (("add", "x", "--admin", "--private-prefixes"), "an admin key makes no requests"),
        (("rotate", "nobody"), "no key has the name or id 'nobody'"),
        (("revoke", "nobody"), "no key has the name or id 'nobody'"),
        (("revoke", "taken", "--config", "nosuch.toml"), "nosuch.toml: "),
    ],
)
def test_what_can_not_be_done_is_one_line_and_exit_status_2(
    home: Path, arguments: tuple[str, ...], said: str
) -> None:
    run("add", "taken")
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"forebay: {said}")
    assert len(result.stderr.splitlines()) == 1
    assert len(stored(home)) == 1


def test_a_broken_key_file_is_one_line_and_exit_status_2(home: Path) -> None:
    home.mkdir()
    (home / "keys.json").write_text("{")
    for arguments in (("add", "ci"), ("list",), ("list", "--json"), ("revoke", "ci")):
        result = run(*arguments)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert str(home / "keys.json") in result.stderr


def test_the_list_shows_in_a_line_what_a_key_may_do_and_no_hash(home: Path) -> None:
    run("add", "ci", "--weight=2.5", "--lane=batch", "--requests-per-minute=60", "--tokens-per-minute=9000")
    run("add", "lap[red]top", "--concurrent-max=4", "--model=demo", "--model=x/y", "--context-tokens=8192")
    run("add", "free")
    run("add", "shy", "--private-prefixes", "--class=team-a")
    run("add", "ops", "--admin")
    result = run("list")
    first, second, third, fourth, fifth = (
        next(line for line in result.stdout.splitlines() if record.id in line) for record in stored(home)
    )
    assert "ci " in first
    assert "lanes from batch down, weight 2.5, 60 requests a minute, 9000 tokens a minute" in first
    assert "lap[red]top" in second
    assert "model demo or x/y, 4 at a time, 8192 tokens of context" in second
    assert "anything" in third
    assert "class team-a, beginnings of prompts of its own" in fourth
    assert "give orders, nothing else" in fifth
    for record in stored(home):
        assert record.digest[:12] not in result.stdout
        assert record.salt[:12] not in result.stdout


def test_the_list_fits_a_narrow_terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("add", "ci", "--requests-per-minute=60", "--tokens-per-minute=9000", "--lane=batch")
    console = Console(width=60, force_terminal=True, record=True, highlight=False)
    monkeypatch.setattr(keys, "_console", lambda: console)
    run("list")
    shown = console.export_text()
    assert max(len(line) for line in shown.splitlines()) <= 60
    assert "9000" in shown


def test_the_list_for_programs_has_everything_but_the_hash(home: Path) -> None:
    run("add", "Müller", "--model=demo")
    result = run("list", "--json")
    (record,) = stored(home)
    assert '"Müller"' in result.stdout
    assert json.loads(result.stdout) == [
        {
            "id": record.id,
            "name": "Müller",
            "created": record.created,
            "weight": 1.0,
            "lane": None,
            "requests_per_minute": None,
            "tokens_per_minute": None,
            "concurrent_max": None,
            "models": ["demo"],
            "context_tokens": None,
            "max_tokens": None,
            "private_prefixes": False,
            "key_class": "",
            "admin": False,
            "rotated": None,
        }
    ]


@pytest.mark.usefixtures("home")
def test_without_keys_the_list_says_that_the_gateway_is_open() -> None:
    result = run("list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "whoever reaches the gateway may use it" in result.stderr
    assert json.loads(run("list", "--json").stdout) == []


def test_a_key_is_revoked_by_name_or_id_and_the_last_opens_the_door(home: Path) -> None:
    run("add", "one")
    run("add", "other")
    first = run("revoke", "one")
    assert first.exit_code == 0
    assert "'one'" in first.stderr
    assert "`forebay reload`" in first.stderr
    assert "last" not in first.stderr
    (other,) = stored(home)
    assert "It was the last" in run("revoke", other.id).stderr
    assert stored(home) == ()


def test_an_admin_key_neither_closes_the_door_nor_opens_it_when_it_goes(home: Path) -> None:
    made = run("add", "ops", "--admin")
    assert "gives orders, and makes no requests" in made.stderr
    assert "whoever reaches the gateway may make requests" in made.stderr
    assert "every request needs a key" in run("add", "ci").stderr
    assert "It was the last" not in run("revoke", "ops").stderr
    assert "whoever reaches" not in run("add", "ops", "--admin").stderr
    assert "It was the last" in run("revoke", "ci").stderr


@pytest.mark.parametrize("how", ["name", "id", "text"])
def test_a_rotated_key_has_a_new_secret_and_all_else_as_it_was(home: Path, how: str) -> None:
    old = run("add", "ci", "--weight=2.5", "--class=ci").stdout.strip()
    run("add", "other")
    before, beside = stored(home)
    result = run("rotate", {"name": "ci", "id": before.id, "text": old}[how])
    after, still = stored(home)
    new = result.stdout.removesuffix("\n")
    assert (result.exit_code, still) == (0, beside)
    assert split_key(new) is not None
    assert new != old
    assert new not in result.stderr
    assert "`forebay reload`" in result.stderr
    same = {"salt", "digest", "rotated"}
    assert after.model_dump(exclude=same) == before.model_dump(exclude=same)
    assert {after.salt, after.digest}.isdisjoint({before.salt, before.digest})
    assert after.rotated is not None
    assert "; rotated " in run("list").stdout


def test_there_are_so_many_classes_and_no_more(home: Path) -> None:
    file = KeyFile(home / "keys.json")
    for number in range(KEY_CLASSES_MAX):
        file.add(f"key {number}", key_class=f"class-{number}")
    refused = run("add", "one too many", "--class=another")
    assert (refused.exit_code, len(stored(home))) == (2, KEY_CLASSES_MAX)
    assert refused.stderr == "forebay: the keys have 33 classes; at most 32 are possible\n"
    assert run("add", "one more", "--class=class-0").exit_code == 0
    assert run("add", "without").exit_code == 0
