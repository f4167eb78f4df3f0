"""Logs: one line an event, readable by machines when they ask, and no more than the level allows."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from shared import logs
from shared.config import LogSettings


@pytest.fixture(autouse=True)
def own_configuration():
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    structlog.reset_defaults()
    root.handlers[:] = before
    logs._epoch.number = None


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


# --- lines that nobody forges -------------------------------------------------------------------------------

FORGED = "x\n12:00:00 [info     ] request   outcome=completed\r\x1b[2K\x9b1A\u2028\u202e"


@pytest.mark.parametrize(
    "say",
    [
        lambda log: log.info("request", path=FORGED),
        lambda log: log.info(FORGED),
        lambda log: log.info("request", paths=[FORGED], about={FORGED: FORGED}),
        lambda log: log.bind(key=FORGED).info("request"),
    ],
    ids=["value", "event", "nested", "bound"],
)
def test_what_a_client_sends_neither_begins_a_line_nor_moves_the_cursor(lines, say):
    (line,) = lines(LogSettings(), say)
    assert line.isprintable()
    assert "\\n12:00:00 [info" in line
    assert "\\x1b[2K" in line


@pytest.mark.parametrize("sent", ["\x1b[2K", "\x9b1A", "\u202e", "\u2028", "\x7f", "\udcff"])
def test_no_single_strange_character_gets_through(lines, sent):
    (line,) = lines(LogSettings(), lambda log: log.info("request", path=sent, said=[sent]))
    assert line.isprintable()


def test_in_json_it_is_as_it_was_sent(lines):
    (line,) = lines(LogSettings(format="json"), lambda log: log.info("request", path=FORGED))
    assert line.isprintable()
    assert json.loads(line)["path"] == FORGED


def test_no_line_of_a_traceback_looks_like_an_events(lines):
    def say(log):
        try:
            raise ValueError(FORGED)  # noqa: TRY301 (raised to be logged)
        except ValueError:
            log.exception("request failed")

    first, *rest = lines(LogSettings(), say)
    assert "request failed" in first
    assert any("ValueError: x" in line for line in rest)
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)


def test_what_is_very_long_is_cut(lines):
    (line,) = lines(LogSettings(format="json"), lambda log: log.info("a", text="x" * 100_000))
    assert json.loads(line)["text"] == "x" * logs.VALUE_CHARS_MAX + "… (100000 characters)"


# --- what every line has ------------------------------------------------------------------------------------


def test_what_every_line_has_comes_first_and_is_in_the_document(lines):
    logs.about_epoch(4)

    def say(_log):
        try:
            raise KeyError("lost")  # noqa: TRY301 (raised to be logged)
        except KeyError:
            logs.get("supervisor").exception("it broke", cause="x")

    (line,) = map(json.loads, lines(LogSettings(format="json"), say))
    assert tuple(line) == (*logs.COMMON_FIELDS, "cause")
    assert line["epoch"] == 4


@pytest.mark.parametrize(("role", "epoch"), [("supervisor", 7), ("worker", 7), ("proxy", None)])
def test_lines_of_worker_and_supervisor_are_about_its_life_and_the_proxys_are_not(lines, role, epoch):
    logs.about_epoch(7)
    said = lines(LogSettings(format="json"), lambda _: logs.get(role).info("a"))
    assert json.loads(said[0]).get("epoch") == epoch


def test_a_line_that_names_another_life_keeps_it(lines):
    logs.about_epoch(7)
    said = lines(LogSettings(format="json"), lambda _: logs.get("supervisor").info("it died", epoch=6))
    assert json.loads(said[0])["epoch"] == 6


@pytest.mark.parametrize("format_", ["json", "console"])
def test_what_libraries_log_has_the_same_form(lines, format_):
    def say(_log):
        logging.getLogger("some.library").warning("%s is odd", FORGED)
        logging.getLogger("some.library").warning("%d is wrong", "this")
        logging.getLogger("some.library").info("not this")

    said = lines(LogSettings(format=format_), say)
    assert len(said) == 2
    assert all(line.isprintable() and "some.library" in line for line in said)
    if format_ == "json":
        assert json.loads(said[0])["event"] == f"{FORGED} is odd"
        assert json.loads(said[0])["level"] == "warning"
