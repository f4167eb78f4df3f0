"""From what an operator calls a model to its folder."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from ops import demo
from ops.models import resolve
from shared.errors import ModelError
from shared.model_folder import ModelFolder


def make_model(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    return path


@pytest.mark.parametrize("name", ["demo", "SmolLM2-135M-Instruct"])
def test_the_demo_has_two_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought = ModelFolder.read(make_model(tmp_path / "brought"))
    monkeypatch.setattr(demo, "bring", lambda home: brought if home == tmp_path else None)
    assert resolve(name, tmp_path) is brought


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    path = make_model(tmp_path / "mine")
    folder = resolve(str(path), tmp_path / "home")
    assert (folder.path, folder.name) == (path, "mine")
    assert not (tmp_path / "home").exists()


def test_a_folder_relative_to_here_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name", tmp_path).path == tmp_path / "org" / "name"


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = make_model(tmp_path / "mine")
    assert resolve("~/mine", tmp_path).path == path


def test_a_hub_id_is_fetched_and_served_under_that_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    snapshot = make_model(tmp_path / "snapshots" / "0123abcd")

    def snapshot_download(model: str, *, allow_patterns: list[str]) -> str:
        asked.append((model, "*.safetensors" in allow_patterns))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    folder = resolve("org/name-4bit", tmp_path)
    assert (folder.path, folder.name) == (snapshot, "org/name-4bit")
    assert asked == [("org/name-4bit", True)]


def test_a_hub_that_says_no_is_an_error_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("not in the cache\nand a second line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelError) as problem:
        resolve("org/name", tmp_path)
    assert str(problem.value).endswith("not in the cache")


def test_a_path_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    make_model(tmp_path / "qwen3-8b")
    with pytest.raises(ModelError, match=r"no such folder; did you mean .*/qwen3-8b\?"):
        resolve(str(tmp_path / "qwen-8b"), tmp_path)


@pytest.mark.parametrize("model", ["nosuch", "/nosuch/folder", "a/b/c", "../x", "org/", "/"])
def test_anything_else_is_an_error_with_words(model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        resolve(model, tmp_path)


def test_a_file_is_told_apart_from_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match="is a file"):
        resolve(str(file), tmp_path)
