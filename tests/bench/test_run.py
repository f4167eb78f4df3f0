"""`forebay bench` against a server that answers as scripted: what is sent, said, written and returned."""

import asyncio
import json
import os
import re
import signal
from collections import Counter

import pytest
from typer.testing import CliRunner

from ops.bench.doing import Doer, Measured, until_stopped
from ops.bench.figures import Arm
from ops.bench.plan import Axes, Point
from ops.bench.pressing import Press, arrivals, closed
from ops.bench.prompts import Fit, Prompts
from ops.bench.schedule import Step, schedule
from ops.bench.target import Address, Target
from ops.cli import app
from ops.load.client import Client
from tests.bench.false_server import FalseServer
from tests.bench.samples import plan

KEY = "fb-a-secret-that-nobody-prints"
SMALL = ("--concurrency", "1,2", "--prompt-tokens", "40", "--output-tokens", "3", "--requests", "2")
SHORT = (*SMALL, "--repetitions", "1", "--warm-up", "1", "--scenario", "sweep")


class NoBar:
    def begin(self, title):
        pass

    def tick(self, done):
        pass

    def end(self, done):
        pass


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))

    def run(*words):
        return CliRunner().invoke(app, ["bench", *map(str, words)])

    return run


def test_a_run_is_shown_written_and_drawn_and_its_key_is_in_none_of_it(bench, tmp_path):
    out, html, key_file = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    ready = {"worker": {"footprint_bytes": 3 << 30}}
    with FalseServer(ready=ready) as server:
        told = bench(server.url, *SHORT, "--out", out, "--html", html, "--api-key-file", key_file)
    assert told.exit_code == 0, told.output
    assert "Most memory that the server said it held: 3.00 GiB" in told.stdout
    result = json.loads(out.read_text())
    assert [each["point"]["concurrency"] for each in result["results"]] == [1, 2]
    first = result["results"][0]
    assert first["requests"] == {"sent": 2, "completed": 2, "cut": 0, "failed": {}}
    assert first["tokens"]["prompt_tokens"] == {"min": 40, "median": 40.0, "max": 40}
    assert first["tokens"]["output_tokens"]["median"] == 3
    assert first["metrics"]["queue_ms"]["p50"]["value"] == 3.0
    assert result["run"]["targets"]["server"] == {
        "host": f"127.0.0.1:{server.port}",
        "model": "small",
        "more": {},
    }
    assert result["run"]["versions"]["forebay"]
    assert (result["interrupted"], result["stopped"]) == (False, None)
    assert {headers.get("Authorization") for headers in server.headers} == {f"Bearer {KEY}"}
    for text in (told.output, out.read_text(), html.read_text()):
        assert KEY not in text
        assert max(map(len, told.stdout.splitlines())) <= 80


def test_requests_are_two_for_the_fit_and_for_every_pass_the_warm_up_and_the_counted_ones(bench):
    with FalseServer() as server:
        assert bench(server.url, *SHORT).exit_code == 0
    assert Counter(body["max_tokens"] for body in server.bodies) == {1: 2, 3: 2 * (1 + 2)}
    prompts = [body["messages"][0]["content"] for body in server.bodies]
    assert len({prompt[:60] for prompt in prompts}) == len(prompts)
    assert {body["model"] for body in server.bodies} == {"small"}


def test_prompts_share_what_they_are_told_to_and_nothing_after_it(bench):
    with FalseServer() as server:
        told = bench(server.url, *SHORT, "--shared-prefix", "10")
    assert told.exit_code == 0, told.output
    counted = [body["messages"][0]["content"].split() for body in server.bodies if body["max_tokens"] == 3]
    assert len({tuple(words[:10]) for words in counted}) == 1
    assert len({tuple(words[10:14]) for words in counted}) == len(counted)


def test_json_stands_alone_on_stdout(bench):
    with FalseServer() as server:
        told = bench(server.url, *SHORT, "--json", "--model", "other", "--ignore-eos")
    assert json.loads(told.stdout)["run"]["targets"]["server"]["more"] == {"ignore_eos": True}
    assert all(body["ignore_eos"] is True and body["model"] == "other" for body in server.bodies)


def test_lanes_are_skipped_with_a_word_where_there_are_none_and_pressed_where_there_are(bench):
    words = (*SMALL, "--repetitions", "1", "--scenario", "lanes", "--json")
    with FalseServer(lanes=False) as server:
        told = bench(server.url, *words)
    assert told.exit_code == 1
    assert "lanes: skipped, this server names no lanes." in told.stderr
    with FalseServer() as server:
        found = json.loads(bench(server.url, *words).stdout)
    assert [each["part"] for each in found["results"]] == ["interactive alone", "interactive beside batch"]
    assert {body.get("service_tier") for body in server.bodies} == {None, "flex"}
    assert [each["metric"] for each in found["ratios"]] == ["ttft_ms", "ttft_ms", "itl_ms", "e2e_ms"]


def test_mixed_lengths_and_overload_are_measured_when_asked_for(bench):
    words = (*SMALL, "--repetitions", "1", "--scenario", "mixed", "--scenario", "overload", "--json")
    refused = set(range(12, 200, 2))
    with FalseServer(refuse=lambda number: 503 if number in refused else None) as server:
        told = bench(server.url, *words)
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert [(each["work"], each["part"]) for each in found["results"]] == [
        ("mixed", ""),
        ("overload", "peak"),
        ("overload", "overload"),
    ]
    over = found["results"][2]["requests"]
    assert over["sent"] == 20
    assert found["scenarios"]["overload"]["refused"] == over["failed"]["refused server_is_overloaded"] > 0


def test_arrivals_by_rate_are_all_sent(bench):
    words = ("--rate", "500", "--prompt-tokens", "40", "--output-tokens", "2", "--requests", "5")
    with FalseServer() as server:
        told = bench(server.url, *words, "--repetitions", "1", "--scenario", "sweep", "--json")
    found = json.loads(told.stdout)
    assert [each["point"]["rate_hz"] for each in found["results"]] == [500.0]
    assert found["results"][0]["requests"]["completed"] == 5
    assert found["run"]["mode"] == "open"


def test_a_server_that_counts_nothing_is_measured_by_pieces_and_it_is_said(bench):
    with FalseServer(counts=False) as server:
        told = bench(server.url, *SHORT)
    assert told.exit_code == 0
    assert "lengths are guessed" in told.stderr
    assert "each piece of text counts as one" in told.stdout


def test_the_key_may_be_a_setting(bench, monkeypatch):
    monkeypatch.setenv("FOREBAY_BENCH__API_KEY", KEY)
    with FalseServer() as server:
        told = bench(server.url, *SHORT, "--json")
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert KEY not in told.output


# --- what goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "word"), [(401, 2, "another key"), (404, 2, "small"), (503, 1, "503")]
)
def test_a_first_request_that_fails_says_why(bench, status, code, word):
    with FalseServer(refuse=lambda _number: status) as server:
        told = bench(server.url, *SHORT)
    assert (told.exit_code, len(told.stderr.splitlines())) == (code, 1)
    assert word in told.stderr


def test_nothing_that_answers_is_exit_status_1(bench):
    with FalseServer() as server:
        url = server.url
    for model in ((), ("--model", "small")):
        told = bench(url, *SHORT, *model)
        assert told.exit_code == 1
        assert "nothing answers" in told.stderr


def test_no_request_completed_is_exit_status_1_and_the_reasons_are_shown(bench):
    with FalseServer(refuse=lambda number: 503 if number > 2 else None) as server:
        told = bench(server.url, *SHORT)
    assert told.exit_code == 1
    assert "2 x refused server_is_overloaded" in told.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--concurrency", "1025"),
        ("--concurrency", "1,x"),
        ("--prompt-tokens", "0"),
        ("--repetitions", "0"),
        ("--rate", "nan"),
        ("--max-seconds", "0.5"),
        ("--requests", "10001"),
        ("--rate", "5", "--requests", "1025"),
        ("--shared-prefix", "64"),
        ("--scenario", "drought"),
        ("--concurrency", ",".join(map(str, range(1, 18)))),
        ("--kill-worker-pid", "12345"),
        ("--api-key", "a key"),
        ("--api-key-file", "nosuch"),
        ("--peer",),
        ("--peer", "--model", "nosuch"),
        ("--out", "nosuch/folder/r.json"),
    ],
    ids=" ".join,
)
def test_what_is_out_of_bounds_is_refused_before_anything_is_sent(bench, words):
    with FalseServer() as server:
        told = bench(server.url, *words)
    assert (told.exit_code, len(told.stderr.splitlines()), server.bodies) == (2, 1, [])


@pytest.mark.parametrize(
    "url", ["ftp://gateway", "http://", "a:b@gateway", "http://gateway/?key=1", "http://gateway:99999"]
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused_and_not_repeated(bench, url):
    told = bench(url)
    assert told.exit_code == 2
    assert "a:b" not in told.stderr


def test_death_is_for_servers_on_this_machine_only(bench):
    for words in ((), ("--kill-worker-pid", str(os.getpid()))):
        told = bench("http://gateway:1", "--scenario", "death", *words)
        assert (told.exit_code, "on this machine" in told.stderr) == (2, True)
    told = bench("http://127.0.0.1:1", "--scenario", "death", "--kill-worker-pid", os.getpid())
    assert (told.exit_code, "this program" in told.stderr) == (2, True)


# --- stopping ---------------------------------------------------------------------------------------------


def test_ctrl_c_shows_and_writes_what_was_measured_so_far(bench, tmp_path):
    out = tmp_path / "r.json"
    ending = {"hold_from": 8, "on_held": lambda: os.kill(os.getpid(), signal.SIGINT)}
    with FalseServer(**ending) as server:
        told = bench(server.url, *SHORT, "--out", out)
    assert told.exit_code == 0, told.output
    assert "Stopped before its end (interrupted)" in told.stdout
    result = json.loads(out.read_text())
    assert result["interrupted"] is True
    assert [each["requests"]["completed"] for each in result["results"]] == [2, 1]
    assert result["results"][1]["passes"][0]["partial"] is True
    assert result["results"][1]["requests"]["cut"] == 1


async def test_the_time_limit_ends_what_would_go_on():
    over = asyncio.Event()

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            over.set()

    assert await until_stopped(forever(), 0.01) == "out of time"
    assert over.is_set()
    assert await until_stopped(asyncio.sleep(0), 60) == ""


async def test_what_breaks_in_a_measurement_is_raised():
    async def broken():
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await until_stopped(broken(), 60)


# --- parts ------------------------------------------------------------------------------------------------


async def test_a_closed_loop_has_so_many_under_way_and_no_more():
    most = []
    with FalseServer() as server:
        async with Client(server.port, "small") as client:
            press = Press(plan(), Prompts(Fit(0, 1), 1, "salt"), NoBar())
            target = Target("server", Address.read(server.url), "small")
            asks = press.asks(target, [Point(3, 40, 2)] * 9, "purpose")
            sending = asyncio.create_task(closed(client, asks, 3))
            while not sending.done():
                most.append(client.live)
                await asyncio.sleep(0)
            await sending
            records = client.take()
    assert max(most) == 3
    assert [record.outcome for record in records] == ["completed"] * 9


async def test_a_worker_dies_once_while_requests_go_on():
    killed = []
    measured = Measured()

    async def kill():
        killed.append(len(measured.killed_at))

    with FalseServer() as server:
        target = Target("server", Address.read(server.url), "small")
        doer = Doer(plan(), {"server": target}, Prompts(Fit(0, 1), 1, "s"), NoBar(), kill)
        at = Point(1, 40, 2)
        await doer.do([Step(Arm("server", "death", "", at), 1, (at,) * 40)], measured)
    assert killed == [0]
    assert len(measured.killed_at) == 1
    assert measured.completed == 40


async def test_a_worker_that_cannot_be_ended_is_said_and_costs_nothing_that_was_measured():
    said, measured = [], Measured()
    bar = NoBar()
    bar.say = said.append

    async def kill():
        raise ProcessLookupError(3, "No such process")

    with FalseServer() as server:
        target = Target("server", Address.read(server.url), "small")
        doer = Doer(plan(), {"server": target}, Prompts(Fit(0, 1), 1, "s"), bar, kill)
        at = Point(1, 40, 2)
        await doer.do([Step(Arm("server", "death", "", at), 1, (at,) * 40)], measured)
    assert measured.completed == 40
    assert measured.killed_at == []
    assert "No such process" in said[0]


def test_arrivals_know_nothing_of_each_other_and_have_the_rate_and_the_seed():
    moments = arrivals(10, 4000, 1, "a")
    assert moments == arrivals(10, 4000, 1, "a") != arrivals(10, 4000, 2, "a")
    assert list(moments) == sorted(moments)
    assert moments[-1] == pytest.approx(400, rel=0.06)


def test_a_schedule_goes_around_with_its_repetitions_and_both_targets_take_turns_at_being_first():
    axes = Axes((1, 2), (40,), (4,))
    steps = schedule(
        plan(axes=axes, repetitions=2, works=("sweep", "death")), ["server", "peer"], ("sweep", "death")
    )
    assert [(step.repetition, step.arm.target, step.arm.point.concurrency) for step in steps[:-1]] == [
        (1, "server", 1), (1, "peer", 1), (1, "server", 2), (1, "peer", 2),
        (2, "peer", 1), (2, "server", 1), (2, "peer", 2), (2, "server", 2),
    ]  # fmt: skip
    assert [step.arm.work for step in steps].count("death") == 1
    assert len({step.title for step in steps}) == len(steps)


def test_help_of_bench_is_that_of_a_run_and_names_compare():
    told = CliRunner().invoke(app, ["bench", "--help"])
    assert told.exit_code == 0
    text = re.sub(r"\s+", " ", told.stdout)
    for word in ("--concurrency", "--rate", "--peer", "--out", "forebay bench compare"):
        assert word in text
