"""The program: what it takes, prints and writes."""

import json
from pathlib import Path

import pytest

from ops.engine import __main__ as program
from ops.engine.subject import Subject
from shared.model_folder import ModelFolder
from tests.worker.tiny_models import CONTEXT, VOCABULARY, build


@pytest.fixture(autouse=True)
def tiny_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _config = build("llama")
    folder = ModelFolder(Path("tiny"), "tiny", "llama", CONTEXT, VOCABULARY, (), 0, "tiny")
    monkeypatch.setattr(program, "_subject", lambda _arguments, _progress: Subject(model, folder))


def test_it_prints_the_works_that_were_asked_for_and_writes_what_was_measured(tmp_path, capsys):
    file = tmp_path / "figures.json"
    words = ["equal", "arrival", "--scale", "small", "--repeats", "2", "--json", str(file)]
    assert program.main(words) == 0
    out = capsys.readouterr().out
    assert "tokens/s of decode steps" in out
    assert "their longest gap (the stall)" in out
    assert "samplers " not in out.split("Medians")[0]
    figures = json.loads(file.read_text())
    assert (figures["scale"], figures["model"], figures["repeats"]) == ("small", "tiny", 2)
    assert figures["works"].keys() == {"equal", "arrival"}
    assert len(figures["works"]["equal"]["mlx-lm"]["tokens_per_s"]) == 2
    assert {line["verdict"] for line in figures["lines"]} <= {"", "met", "missed"}


def test_an_interrupted_run_shows_and_keeps_what_is_done(tmp_path, capsys, monkeypatch):
    measure = program.Bench.values

    def values(bench, work, repeats):
        if work == "arrival":
            raise KeyboardInterrupt
        return measure(bench, work, repeats)

    monkeypatch.setattr(program.Bench, "values", values)
    file = tmp_path / "figures.json"
    words = ["equal", "arrival", "--scale", "small", "--repeats", "1", "--json", str(file)]
    assert program.main(words) == 130
    assert "tokens/s of decode steps" in capsys.readouterr().out
    assert json.loads(file.read_text())["works"].keys() == {"equal"}


def test_a_model_that_cannot_be_compared_is_said_in_words(capsys):
    assert program.main(["equal", "--scale", "gpu"]) == 2
    assert "context of 700 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["nosuch"], ["--repeats", "0"], ["--random", "gpt"], ["--random", "llama-1b", "--model", "demo"]],
)
def test_a_word_that_means_nothing_is_refused(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(words)
    assert words[-2:][0] in capsys.readouterr().err
