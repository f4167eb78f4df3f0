"""What the chaos scenarios print, what they end with, and how they are called."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ops.chaos import __main__ as command
from ops.chaos import crowded, down, hog, soak, timeline
from ops.chaos.traffic import NotUndisturbed
from ops.load.command_line import parser
from ops.load.plan import Plan, Scenario, rows_table
from ops.load.progress import Progress
from ops.load.statistics import summary
from worker import memory
from worker.memory import DeviceReport

EFFECT = timeline.Effect(
    "SIGKILL", "killed", 0.5, 0.0, 2.0, 2.5, (("batch", 3.0),), (4.0,), streams=1, resumed=1
)
NOTHING = replace(EFFECT, detect_s=None, ready_s=None, next_token_s=(), pause_s=(), streams=0, resumed=0)
KINDS = timeline.by_kind([EFFECT, replace(NOTHING, kind="SIGTERM")])
NONE_YET = timeline.by_kind([NOTHING])["all"]
SAMPLES = {
    "kills": {
        "kinds": KINDS,
        "requests": 96,
        "endings": {"done": 96},
        "tokens_lost": 0,
        "tokens_added": 0,
    },
    "exhaustion": {
        "lives": [{"epoch": 1, "cause": "memory", "rows": [{}], "rung": 1, "detail": "SIGSEGV - 96"}],
        "headroom_mb": 224,
        "large": ["refused 422", "refused 422"],
        "small": 3,
        "last_death": "memory",
        "rung": 1,
    },
    "crowded": {
        "device": "a card",
        "died_s": summary([]),
        "kinds": timeline.by_kind([NOTHING]),
        "lives": [{"epoch": 1, "cause": "memory"}],
        "requests": 96,
        "endings": {"done": 96},
        "refusals": {},
        "tokens_lost": 0,
        "tokens_added": 0,
        "rung": 1,
    },
    "poison": {
        "deaths": 2,
        "causes": ["memory", "memory"],
        "innocents": 96,
        "endings": [["refused 422"]] * 3,
        "refusal_s": {"alone": summary([0.001, 0.002]), "under load": summary([])},
    },
    "down": {
        "arms": {"loading": {**down.figures_of([]), "state": "loading, breaker closed"}},
        "rate_hz": 96.0,
        "aim_s": 0.005,
    },
    "proxy": {
        "arms": {
            "at once": {"deaths": [{}], "orphans_s": summary([96.0]), "ready_s": summary([3.5])},
            "later": {"deaths": [], "orphans_s": summary([]), "ready_s": summary([])},
        }
    },
    "upgrade": {"restarts": NONE_YET, "requests": 96},
    "soak": {
        "seconds": 96.0,
        "processes": {"proxy": soak.growth([])},
        "deaths": NONE_YET,
        "false_kills": 0,
        "goodput_with": [1.0],
        "goodput_without": [2.0],
        "goodput_ratio": 0.5,
        "requests": 3,
        "endings": {"done": 3},
    },
}


@pytest.mark.parametrize(
    "device",
    [
        DeviceReport("cpu", 0, 1 << 34),
        DeviceReport("Apple M3 Max", 48 << 30, 64 << 30, shares_memory=True, is_gpu=True),
    ],
    ids=lambda device: device.name,
)
def test_no_memory_is_taken_that_is_the_systems(device, monkeypatch, tmp_path, demo_folder):
    """Everything else on the machine would be swapped out, or killed."""
    monkeypatch.setattr(memory, "device_report", lambda: device)
    figures = crowded.measure(Plan(demo_folder, tmp_path, 1, Progress()))
    assert figures == {"problems": [f"{device.name} has no memory of its own to be taken"], "began": False}
    assert hog.main() == 2


@pytest.mark.parametrize("scenario", command.SCENARIOS, ids=lambda scenario: scenario.name)
def test_each_scenario_shows_its_figures_also_where_values_are_missing(scenario):
    screen = Console(width=200, file=io.StringIO())
    screen.print(scenario.table(SAMPLES[scenario.name]))
    assert "96" in screen.file.getvalue()
    assert " - " in screen.file.getvalue()


def test_there_is_a_sample_of_every_scenario():
    assert SAMPLES.keys() == {scenario.name for scenario in command.SCENARIOS}


def test_the_command_takes_scenarios_by_name_and_refuses_others_and_times_that_are_none(capsys):
    names = ["kills", "exhaustion", "poison", "down", "proxy", "upgrade", "soak"]
    takes = parser("chaos", None, command.SCENARIOS)
    chosen = takes.parse_args([*names, "--seconds", "2.5", "--repeats", "3", "--seed", "9"])
    assert (chosen.scenarios, chosen.seconds, chosen.repeats, chosen.seed) == (names, 2.5, 3, 9)
    for words in ([], ["earthquake"], ["kills", "--seconds", "0"], ["kills", "--repeats", "-1"]):
        with pytest.raises(SystemExit):
            takes.parse_args(words)
        assert "usage" in capsys.readouterr().err


def scenario_with(problems):
    return Scenario("sample", lambda _plan: {"problems": problems}, lambda _: rows_table("it", ("a",), []))


def shown(problems):
    screen = Console(width=200, file=io.StringIO())
    command.show(screen, scenario_with(problems), {"problems": problems})
    return screen.file.getvalue()


def test_the_verdict_is_said_in_words():
    assert "sample: all is well" in shown([])
    said = shown(["live is 1 at the end", "left behind: [red]x"])
    assert "sample FAILED: live is 1 at the end" in said
    assert "sample FAILED: left behind: [red]x" in said
    assert "all is well" not in said


@pytest.mark.parametrize(("problems", "status"), [([], 0), (["live is 1 at the end"], 1)])
def test_the_exit_status_says_whether_anything_was_found(
    problems, status, demo_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command, "SCENARIOS", (scenario_with(problems),))
    file = tmp_path / "figures.json"
    words = ["sample", "--model", str(demo_folder.path), "--seed", "7", "--json", str(file)]
    assert command.main(words) == status
    assert '"seed": 7' in file.read_text()
    assert "seed 7" in capsys.readouterr().out


def test_a_scenario_that_cannot_begin_is_a_failed_one(demo_folder):
    def measure(_plan):
        raise NotUndisturbed("request 3 ended so: broken")

    plan = Plan(demo_folder, Path(), 1, Progress(Console(file=io.StringIO())))
    measured = command.measured_or_not(replace(scenario_with([]), measure=measure), plan)
    assert measured["problems"] == ["it could not begin: request 3 ended so: broken"]
    screen = Console(width=200, file=io.StringIO())
    command.show(screen, scenario_with([]), measured)
    assert "could not begin" in screen.file.getvalue()
