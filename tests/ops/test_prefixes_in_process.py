"""The works on the engine itself, with a tiny model; and the program around them."""

import io
import json
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from rich.console import Console

from ops.engine.subject import Subject
from ops.load.progress import Progress
from ops.prefixes import __main__ as program
from ops.prefixes.in_process import COPIES, NO_STORE, SHARED, STORE, Bench, equal_share
from ops.prefixes.plan import SCALES, Arm, NotMeasured, Plan
from ops.prefixes.works import Measuring
from shared.errors import ModelError
from shared.model_folder import ModelFolder
from tests.worker.tiny_models import CONTEXT, VOCABULARY, build
from worker import memory

SMALL = SCALES["small"]
[ARM] = SMALL.arms


def subject(context_tokens: int = CONTEXT, family: str = "llama") -> Subject:
    model, _config = build(family)
    folder = ModelFolder(Path("tiny"), "tiny", family, context_tokens, VOCABULARY, (), 0, "tiny")
    return Subject(model, folder)


def made(tiny: Subject) -> Bench:
    return Bench(tiny, memory.device_report(), SMALL, Progress(Console(file=io.StringIO())))


@pytest.fixture(scope="module")
def bench():
    mx.disable_compile()
    yield made(subject())
    mx.enable_compile()


@pytest.fixture(scope="module")
def both(bench):
    return {way: bench.share(ARM, way, 1) for way in (SHARED, COPIES)}


def test_rows_that_share_hold_a_beginning_once_and_copies_once_each(both):
    (shared, _), (copies, _) = both[SHARED], both[COPIES]
    assert copies["kv_bytes"] > 2 * shared["kv_bytes"]
    assert shared["of_held"] < 1.5
    assert copies["of_held"] > 2.5


def test_both_ways_find_the_beginning_that_was_left_behind(both):
    for measured, _ in both.values():
        assert measured["cached_tokens"] >= ARM.rows * (ARM.tokens - 64)
        assert min(measured["tokens_per_s"], measured["joined_s"], measured["first_s"]) > 0


def test_both_ways_say_the_same(both):
    (_, shared), (_, copies) = both[SHARED], both[COPIES]
    assert shared.keys() == {"first", *(f"row-{place}" for place in range(1, ARM.rows + 1))}
    assert all(len(shared[f"row-{place}"]) == SMALL.steps for place in range(1, ARM.rows + 1))
    assert equal_share(shared, copies) == 1


def test_the_ways_differ_in_what_rows_share_and_use_again_and_in_nothing_else(bench):
    facts = {way: loaded.facts for way, loaded in bench._ways.items()}
    used = {way: (each.reuse, each.shares_from) for way, each in facts.items()}
    assert used == {SHARED: ("any", 256), STORE: ("any", 256), COPIES: ("any", 0), NO_STORE: ("none", 0)}
    assert len({id(loaded.model) for loaded in bench._ways.values()}) == 1


def test_of_a_crowd_one_wave_is_kept_with_the_store_on_and_nothing_with_it_off(bench):
    found = {way: bench.crowd(way, 1) for way in (STORE, NO_STORE)}
    assert found[STORE]["evictions"] >= SMALL.crowd.rows
    assert found[NO_STORE]["evictions"] == 0
    assert all(each["tokens_per_s"] > 0 for each in found.values())


def test_a_model_whose_rows_cannot_share_is_said_in_words(bench, monkeypatch):
    monkeypatch.setattr(bench, "facts", replace(bench.facts, shares_from=0, why_not_shared="it has sinks"))
    with pytest.raises(NotMeasured, match="it has sinks"):
        bench.share(ARM, SHARED, 1)


def test_a_context_that_is_too_short_is_said_in_words():
    with pytest.raises(NotMeasured, match="300 tokens"):
        made(subject(300))


# --- the program ------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch, bench):
    monkeypatch.setattr(program, "_folder", lambda _arguments: subject().folder)
    monkeypatch.setattr(program, "Bench", lambda *_arguments: bench)
    monkeypatch.setattr(program, "_subject", lambda *_arguments: None)


@pytest.mark.usefixtures("tiny")
def test_it_prints_the_works_that_were_asked_for_and_writes_what_was_measured(tmp_path, capsys):
    file = tmp_path / "figures.json"
    words = ["sharing", "unrelated", "--scale", "small", "--repeats", "1", "--check", "--json", str(file)]
    assert program.main(words) == 0
    out = capsys.readouterr().out
    assert "nothing here is Metal" in out
    assert "decode steps: shared / copies" in out
    assert "store on / off" in out
    assert "SIGKILL" not in out
    figures = json.loads(file.read_text())
    assert (figures["model"], figures["scale"], figures["metal"]) == ("tiny", "small", False)
    assert figures["works"].keys() == {f"sharing {ARM}", "unrelated"}
    assert figures["works"][f"sharing {ARM}"]["equal_share"] == [1.0]
    assert {line["verdict"] for line in figures["lines"]} <= {"", "met", "missed"}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("problem", "status"), [(KeyboardInterrupt(), 130), (NotMeasured("no"), 2), (ModelError("no"), 2)]
)
def test_a_run_that_breaks_off_shows_and_keeps_what_is_done(tmp_path, capsys, monkeypatch, problem, status):
    measure = Measuring.measure

    def failing(measuring, work):
        if work == "resume":
            raise problem
        return measure(measuring, work)

    monkeypatch.setattr(Measuring, "measure", failing)
    file = tmp_path / "figures.json"
    words = ["unrelated", "resume", "--scale", "small", "--repeats", "1", "--json", str(file)]
    assert program.main(words) == status
    assert "store on / off" in capsys.readouterr().out
    assert json.loads(file.read_text())["works"].keys() == {"unrelated"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch"], "nosuch is none of"),
        (["--repeats", "0"], "0 is no number of runs"),
        (["ttft", "--random", "llama-1b"], "no folder to be served from"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(words)
    assert said in capsys.readouterr().err


def test_a_model_with_random_weights_is_measured_in_process_only(monkeypatch, capsys):
    made_of: list[str] = []

    def random_llama(shape, on_layer, precision):
        made_of.append(shape)
        on_layer()
        return subject()

    assert program._read(["--random", "llama-1b"]).works == ("sharing", "unrelated")
    monkeypatch.setattr(program, "random_llama", random_llama)
    words = ["unrelated", "--random", "llama-1b", "--scale", "small", "--repeats", "1"]
    assert program.main(words) == 0
    assert made_of == ["llama-1b"]
    assert "llama-1b, random weights" in capsys.readouterr().out


def test_arms_are_measured_one_by_one(bench, tmp_path):
    scale = replace(SMALL, arms=(ARM, Arm(2, 320)))
    plan = Plan(None, tmp_path, scale, 1, Progress(Console(file=io.StringIO())))
    measuring = Measuring(plan, lambda: bench, checks=False)
    found = list(measuring.measure("sharing"))
    assert [each.name for each in found] == ["sharing 3 x 320", "sharing 2 x 320"]
    assert all("equal_share" not in each.values for each in found)
