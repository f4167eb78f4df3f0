"""`forebay plan` as it is typed: what it prints, how it ends, and what it says of models it can't plan."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ops import cli
from ops.plan import child
from ops.plan.record import Order, Source
from ops.plan.source import find
from ops.plan.work import carry_out
from ops.screen import Screen
from shared.errors import ModelError
from shared.limits import GIB
from tests.plan.played_model import asked
from tests.worker.tiny_models import save

WIDTH = 80


@pytest.fixture
def tiny_config(tmp_path: Path) -> Path:
    save(tmp_path / "tiny", "llama")
    return tmp_path / "tiny" / "config.json"


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "ask", lambda order, _screen: carry_out(order))
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["plan", *words])


@pytest.mark.usefixtures("in_this_process")
def test_what_fits_ends_with_0_and_says_what_to_set(tiny_config: Path) -> None:
    result = run(str(tiny_config), "--memory", "16GB", "--context", "512", "--streams", "4")
    assert result.exit_code == 0, result.output
    for words in ("a Mac of 16 GiB", "It fits", "slots = 4", "context_tokens = 512", "kv_bits = 0", "2/3 of"):
        assert words in result.stdout
    assert max(map(len, result.stdout.replace(str(tiny_config), "").splitlines())) <= WIDTH


@pytest.mark.usefixtures("in_this_process")
def test_what_does_not_fit_ends_with_1_and_says_what_would(tiny_config: Path) -> None:
    result = run(str(tiny_config), "--memory", "16GB", "--context", "1k", "--streams", "4")
    assert result.exit_code == 1
    assert "the model's context ends at 700 tokens" in " ".join(result.stdout.split())
    assert "[worker]" not in result.stdout


@pytest.mark.usefixtures("in_this_process")
def test_json_is_the_whole_plan_and_nothing_else(tiny_config: Path) -> None:
    result = run(str(tiny_config), "--memory", "16GB", "--streams", "2", "--json")
    plan = json.loads(result.stdout)
    assert (result.exit_code, plan["verdict"]) == (0, "fits")
    assert plan["machine"]["memory_bytes"] == 16 * GIB
    # Two layers of two heads, keys and values 8 wide, two bytes a number.
    assert plan["model"]["kv_bytes_per_token"] == 2 * 2 * (8 + 8) * 2
    assert plan["table"][-1]["context_tokens"] == plan["settings"]["context_tokens"] == 700


@pytest.mark.parametrize(
    "words",
    [
        ("--memory", "64"),
        ("--context", "many"),
        ("--streams", "0"),
        ("--streams", "257"),
        ("--kv-bits", "3"),
    ],
)
def test_options_that_make_no_sense_end_with_2(words: tuple[str, str], tiny_config: Path) -> None:
    result = run(str(tiny_config), *words)
    assert result.exit_code == 2
    assert words[0] in result.stderr


def test_the_process_that_plans_hands_its_plan_over(tiny_config: Path) -> None:
    """A folder with its weights, on this machine, in a process of its own."""
    result = run(str(tiny_config.parent), "--context", "512", "--streams", "2", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["model"]["weights_from"] == "the headers of its files"
    assert plan["machine"]["assumed"] == ""


def write(folder: Path, name: str, content: Any) -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return file


def test_what_is_no_model_is_told_in_words(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path, "no config.json"),
        (tmp_path / "model.gguf", "GGUF"),
        (write(tmp_path, "list.json", []), "not a JSON object"),
        (write(tmp_path, "cut.json", '{"model_type"'), "not readable as JSON"),
        (tmp_path / "no" / "such" / "folder", "no such folder"),
    ):
        with pytest.raises(ModelError, match=words):
            find(str(path), tmp_path)


def test_a_folder_without_weights_is_planned_by_its_index(tmp_path: Path) -> None:
    write(tmp_path, "config.json", {"model_type": "llama"})
    index = {"metadata": {"total_size": 7}, "weight_map": {}}
    write(tmp_path, "model.safetensors.index.json", index)
    assert find(str(tmp_path), tmp_path) == Source(tmp_path.name, {"model_type": "llama"}, index, None)


ORDER = Order(asked(), Source("a model", {}, None, None))


def ends(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_process_that_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(ModelError, match="planning failed: it broke"):
        child.ask(ORDER, Screen(), ends("import sys; sys.exit('all went well\\nit broke')"))
    with pytest.raises(ModelError, match=r"\Ano such family\Z"):
        child.ask(ORDER, Screen(), ends("import sys; print('no such family', file=sys.stderr); sys.exit(3)"))


@pytest.mark.parametrize(
    ("name", "highest", "words"),
    [("PLAN_BYTES_MAX", 1, "computes where others only plan"), ("PLAN_S_MAX", -1.0, "no plan within")],
)
def test_a_process_that_takes_too_much_is_ended(
    name: str, highest: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, name, highest)
    with pytest.raises(ModelError, match=words):
        child.ask(ORDER, Screen(), ends("import time; time.sleep(60)"))
