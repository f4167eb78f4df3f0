"""`forebay status` and `forebay top`: what they print of a gateway that a test plays, and how they end."""

import io
import json
from dataclasses import asdict, is_dataclass, replace
from types import NoneType
from typing import get_args, get_origin, get_type_hints

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ops.cli import app
from ops.gateway import GatewayAbsent
from ops.picture import memory_parts, picture, sparks, state_in_words
from ops.status import status, top
from proxy.status.snapshot import (
    DeathView,
    GatewayView,
    LaneView,
    MemoryView,
    QuarantinedView,
    RowView,
    Snapshot,
    SpeedView,
    WorkerView,
)
from shared.config import Settings
from tests.ops.played_gateway import played

MIB = 1 << 20


def of(kind, **given):
    """Return a view with these fields; the others are None where that may be, else nothing of their type."""
    return kind(
        **{name: nothing(hint) for name, hint in get_type_hints(kind).items() if name not in given}, **given
    )


def nothing(hint):
    if NoneType in get_args(hint):
        return None
    return of(hint) if is_dataclass(hint) else (get_origin(hint) or hint)()


MEMORY = of(
    MemoryView,
    weights_bytes=500 * MIB,
    kv_budget_full_bytes=1000 * MIB,
    kv_budget_bytes=1000 * MIB,
    kv_reserved_bytes=300 * MIB,
    kv_held_bytes=100 * MIB,
    prefix_kept_bytes=50 * MIB,
    footprint_bytes=700 * MIB,
)
CHAT = of(LaneView, name="chat", queued=1, running=2, queue_places=256, oldest_wait_s=1.5, overloaded=True)
NIGHT = of(LaneView, name="night", queued=0, running=0, queue_places=9, oldest_wait_s=0.0, overloaded=False)
SHOT = of(
    Snapshot,
    time=1_000_000.0,
    gateway=of(
        GatewayView,
        status="ready",
        since_s=12.0,
        uptime_s=4000.0,
        model="small",
        draining=False,
        held=False,
        live=3,
    ),
    worker=of(
        WorkerView, status="ready", epoch=7, slots=16, rows=2, groups=1, rung=0, breaker="closed", deaths=1
    ),
    lanes=(CHAT, NIGHT),
    rows=(
        of(RowView, lane="chat", tokens=40, tokens_max=100, attempt=1),
        of(RowView, lane="chat", tokens=10, tokens_max=50, attempt=2),
    ),
    memory=MEMORY,
    speed=of(SpeedView, tokens_per_s=31.25, ttft_p50_s=0.25, ttft_p95_s=1.5, refused=4),
    deaths=(of(DeathView, at=999_000.0, epoch=6, cause="memory", detail="\x1b[2J", rows=3, restart_s=4.5),),
    quarantined=1,
    quarantine=(
        of(
            QuarantinedView,
            fingerprint="0123abcd",
            at=999_000.0,
            until=1_000_060.0,
            cause="crash",
            lane="chat",
        ),
    ),
    suspects=0,
)
ABSENT = replace(
    SHOT,
    gateway=replace(SHOT.gateway, status="loading"),
    worker=of(WorkerView, status="restarting", rung=2, breaker="half_open", starts_in_s=3.2, deaths=1),
    memory=of(MemoryView, kv_reserved_bytes=0),
    rows=(),
    deaths=(),
    quarantined=0,
    quarantine=(),
    suspects=2,
)


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path)


def drawn(shot, speeds=()):
    console = Console(file=io.StringIO(), width=80)
    console.print(picture(shot, speeds))
    return console.file.getvalue()


def snapshots(*shots):
    return {"GET /admin/snapshot": [(200, asdict(shot)) for shot in shots]}


def test_everything_that_an_operator_looks_for_is_in_the_picture_and_within_80_columns():
    text = drawn(SHOT, [1.0, 31.25])
    for words in ("ready for 12.0 s", "worker 7", "31.2", "p50 250 ms, p95 1.5 s", "2 of 16 in 1 group"):
        assert words in text
    for words in ("overloaded", "1.5 s", "4 refused", "40 of 100 tokens", "weights", "500 MiB", "700 MiB"):
        assert words in text
    for words in ("no memory", "4.5 s", "1 request quarantined", "0123abcd", "for 1 min 00 s more"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_a_gateway_without_a_worker_is_drawn_too_and_says_what_comes_next():
    text = drawn(ABSENT)
    assert "no worker tells" in text
    assert "0 of -" not in text.replace("2 of -", "")
    words = state_in_words(ABSENT)
    for each in (
        "loading",
        "next worker starts in 3 s",
        "breaker half open",
        "rung 2",
        "2 answers to be tried alone",
    ):
        assert each in words


def test_a_draining_gateway_says_how_many_answers_are_live():
    shot = replace(SHOT, gateway=replace(SHOT.gateway, status="draining", draining=True, held=True))
    assert state_in_words(shot).startswith("draining; 3 answers live; nothing new starts")


def test_the_parts_of_the_memory_bar_are_weights_and_budget_without_anything_counted_twice():
    parts = {name: part // MIB for name, part, _ in memory_parts(MEMORY)}
    assert list(parts.values()) == [500, 100, 200, 50, 650]
    short = {name: part // MIB for name, part, _ in memory_parts(replace(MEMORY, kv_budget_bytes=600 * MIB))}
    assert list(short.values()) == [500, 100, 200, 50, 250, 400]
    assert sum(short.values()) == sum(parts.values()) == 1500


def test_no_part_of_the_bar_is_negative_where_more_is_held_than_reserved_or_budgeted():
    odd = replace(MEMORY, kv_held_bytes=900 * MIB, kv_budget_bytes=10 * MIB)
    assert min(part for _, part, _ in memory_parts(odd)) >= 0


def test_sparks_are_as_high_as_their_values_and_flat_for_nothing():
    assert sparks([0, 4, 8]) == "▁▅█"
    assert sparks([0, 0]) == "▁▁"
    assert sparks([]) == ""


def test_status_as_json_is_the_snapshot_and_nothing_else(settings, capsys):
    with played(settings, snapshots(SHOT)):
        assert status(settings, Console(width=40), as_json=True)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(asdict(SHOT)))


@pytest.mark.parametrize(("shot", "code"), [(SHOT, 0), (ABSENT, 1)], ids=["it serves", "it loads"])
def test_the_exit_status_says_whether_a_request_would_be_served(settings, shot, code):
    with played(settings, snapshots(shot)):
        ended = CliRunner(env={"FOREBAY_HOME": str(settings.home)}).invoke(app, ["status"])
    assert ended.exit_code == code
    assert shot.gateway.status in ended.stdout


@pytest.mark.parametrize("command", ["status", "top"])
def test_without_a_gateway_one_line_says_so_and_the_exit_status_is_two(settings, command):
    ended = CliRunner(env={"FOREBAY_HOME": str(settings.home)}).invoke(app, [command])
    assert ended.exit_code == 2
    assert "no gateway of home" in ended.stderr
    assert ended.stdout == ""


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=40)


def test_top_goes_on_until_ctrl_c_and_keeps_the_last_picture_while_the_gateway_is_away(settings):
    looks = 0

    def sleep(seconds):
        nonlocal looks
        looks += 1
        assert seconds == 0.5
        if looks == 4:
            raise KeyboardInterrupt

    replies = {
        "GET /admin/snapshot": [(200, asdict(SHOT)), (200, asdict(ABSENT)), (500, {}), (200, asdict(SHOT))]
    }
    console = terminal()
    with played(settings, replies) as gateway:
        top(settings, console, 0.5, sleep)
    shown = console.file.getvalue()
    assert [order for order, _ in gateway.asked] == ["GET /admin/snapshot"] * 4
    places = [shown.index(words) for words in ("ready for", "loading for", "this was the last that it said")]
    assert places == sorted(places)
    assert "ready for" in shown[places[-1] :]


def test_top_into_a_pipe_prints_one_picture_and_ends(settings):
    console = Console(file=io.StringIO())
    with played(settings, snapshots(SHOT)):
        top(settings, console, 1.0, sleep=pytest.fail)
    assert console.file.getvalue().count("ready for") == 1


def test_top_without_a_gateway_from_the_beginning_ends_at_once(settings):
    with pytest.raises(GatewayAbsent):
        top(settings, terminal(), 1.0, sleep=pytest.fail)
