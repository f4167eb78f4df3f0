"""Logs: one line an event, readable by machines when they ask, and no more than the level allows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from shared import logs
from shared.config import LogSettings


@pytest.fixture(autouse=True)
def own_configuration():
    yield
    structlog.reset_defaults()


@pytest.fixture
def lines(capsys):
    """Return what configures logging, lets something be logged, and gives back the lines on stderr."""

    def logged(settings, say):
        logs.configure(settings)
        say(logs.get("proxy"))
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err.splitlines()

    return logged


def test_each_event_is_one_line_of_json(lines):
    def say(log):
        log.info("worker ready", epoch=3, detail='a "quoted"\nline')
        log.warning("worker exited", cause=None)

    first, second = map(json.loads, lines(LogSettings(format="json"), say))
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "worker ready",
        "level": "info",
        "role": "proxy",
        "epoch": 3,
        "detail": 'a "quoted"\nline',
    }
    assert (second["event"], second["level"], second["cause"]) == ("worker exited", "warning", None)


def test_an_exception_is_in_its_line_of_json(lines):
    def say(log):
        try:
            raise KeyError("lost")  # noqa: TRY301 (raised to be logged)
        except KeyError:
            log.exception("request failed", id="req_1")

    (line,) = map(json.loads, lines(LogSettings(format="json"), say))
    assert (line["event"], line["level"], line["id"]) == ("request failed", "error", "req_1")
    assert "KeyError: 'lost'" in line["exception"]


def test_what_json_does_not_know_is_logged_all_the_same(lines):
    (line,) = map(json.loads, lines(LogSettings(format="json"), lambda log: log.info("a", b=b"\xff", c={1})))
    assert line["event"] == "a"


LEVELS = ["debug", "info", "warning", "error"]


@pytest.mark.parametrize("format_", ["json", "console"])
@pytest.mark.parametrize("level", LEVELS)
def test_what_is_below_the_level_is_not_said(lines, format_, level):
    def say(log):
        for each in LEVELS:
            getattr(log, each)(f"said {each}")

    said = lines(LogSettings(format=format_, level=level), say)
    wanted = LEVELS[LEVELS.index(level) :]
    assert len(said) == len(wanted)
    assert all(f"said {each}" in line for each, line in zip(wanted, said, strict=True))


def test_people_get_text_with_the_facts_beside_it(lines):
    (line,) = lines(LogSettings(), lambda log: log.info("worker ready", epoch=3))
    assert "worker ready" in line
    assert "epoch=3" in line
    assert not line.startswith("{")


def test_a_log_on_a_full_disk_costs_the_lines_and_not_the_process():
    code = (
        "from shared import logs; from shared.config import LogSettings\n"
        "logs.configure(LogSettings()); log = logs.get('worker')\n"
        "for number in range(10_000): log.info('lost', number=number)\n"
        "print('alive')"
    )
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            (sys.executable, "-c", code), stdout=subprocess.PIPE, stderr=full, text=True, check=False
        )
    assert result.stdout == "alive\n"
