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
from ops.gateway import GatewayAbsent, GatewayDiffers
from ops.glyphs import PARTS, Legible
from ops.picture import memory_parts, picture, sparks, state_in_words
from ops.status import status, top
from ops.wording import span
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


def drawn(shot, speeds=(), width=80, height=None):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(picture(shot, speeds, width, height))
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


# --- narrow, low and plain terminals, and hostile text -----------------------------------------------------


@pytest.mark.parametrize("width", [200, 80, 60, 40])
def test_on_a_screen_of_any_width_all_that_counts_is_there_and_no_line_is_broken(width):
    text = drawn(SHOT, [1.0] * 29 + [31.25], width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= min(80, width)
    words = ["p50 250 ms, p95 1.5 s", "2 of 16 in 1 group", "1, 4 refused lately", "40 of 100 tokens"]
    words += ["no memory", "4.5 s", "over", "500 MiB"]
    assert [each for each in words if each not in text] == []
    (sparks_line,) = (each for each in lines if "tokens/s" in each)
    assert sparks_line.rstrip().endswith("█"), "the newest is the highest, and the last"
    assert "…" not in text
    bars = [
        each.rstrip() for each in lines if each[:2] == PARTS[0] * 2 and PARTS[4] in each and "of" not in each
    ]
    assert [len(each) for each in bars] == [0.9 * min(80, width)]


@pytest.mark.parametrize("width", [1, 10, 20])
def test_a_window_as_wide_as_a_word_is_no_reason_to_end(width):
    assert drawn(SHOT, [1.0] * 30, width)


def test_on_a_low_screen_rows_make_room_for_memory_and_the_worker_s_ends():
    shot = replace(SHOT, rows=SHOT.rows * 20)
    for height in (40, 32, 30):
        lines = drawn(shot, height=height).splitlines()
        assert len(lines) <= height
        assert "1 request quarantined" in lines
    assert "and 28 shorter" in drawn(shot)


def test_each_part_of_the_memory_bar_can_be_told_without_colours():
    short = replace(SHOT, memory=replace(MEMORY, kv_budget_bytes=600 * MIB))
    (bar,) = (each for each in drawn(short).splitlines() if PARTS[0] in each and PARTS[5] in each)
    assert list(dict.fromkeys(bar.strip())) == list(PARTS)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_that_has_no_such_letters_gets_others(encoding):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    shot = replace(SHOT, gateway=replace(SHOT.gateway, model="модель"))
    Console(file=file, width=80).print(Legible(picture(shot, [1.0, 2.0])))
    file.flush()
    text = file.buffer.getvalue().decode(encoding)
    assert "ready for 12.0 s" in text
    assert ("#" * 16 + "." * 24 in text) == (encoding != "utf-8")
    assert ("модель" in text) == (encoding == "utf-8")


def test_status_and_top_end_well_where_the_output_is_ascii(settings):
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with played(settings, snapshots(SHOT)):
        status(settings, Console(file=file), as_json=False)
        top(settings, Console(file=file), 1.0)
    file.flush()
    assert file.buffer.getvalue().count(b"* small  ready for") == 2


def test_no_text_of_the_gateway_steers_the_terminal_or_is_markup():
    evil = "\x1b[2J\x1b]0;t\x07[red]odd[/red]:key:\u202e\x9b2J"
    shot = replace(
        SHOT,
        gateway=replace(SHOT.gateway, model=evil, status=evil),
        worker=replace(SHOT.worker, breaker=evil),
        lanes=(replace(CHAT, name=evil),),
        deaths=(replace(SHOT.deaths[0], cause=evil),),
        quarantine=(replace(SHOT.quarantine[0], cause=evil, fingerprint=evil),),
    )
    text = drawn(shot)
    assert [each for each in text if not each.isprintable() and each != "\n"] == []
    assert text.count("[red]odd[/red]:key:") >= 4


def test_json_is_told_to_the_letter(settings, capsys):
    shot = replace(SHOT, deaths=(replace(SHOT.deaths[0], detail="KeyError:key: [red]x[/red] :warning:"),))
    with played(settings, snapshots(shot)):
        status(settings, Console(width=40), as_json=True)
    assert json.loads(capsys.readouterr().out)["deaths"][0]["detail"] == shot.deaths[0].detail


@pytest.mark.parametrize(
    ("seconds", "words"), [(59.94, "59.9 s"), (59.97, "1 min 00 s"), (3599.7, "1 h 00 min")]
)
def test_sixty_seconds_are_a_minute(seconds, words):
    assert span(seconds) == words


# --- a gateway of another version --------------------------------------------------------------------------


def without(shot, part, *names):
    told = asdict(shot)
    for name in names:
        del told[part][name]
    return told


def test_a_gateway_that_tells_more_than_this_version_knows_is_understood(settings, capsys):
    told = asdict(SHOT) | {"weather": "fine"}
    told["worker"]["temperature"] = 80
    with played(settings, {"GET /admin/snapshot": [(200, told)]}):
        assert status(settings, Console(width=80), as_json=False)
    assert "ready for" in capsys.readouterr().out


def test_a_gateway_of_an_earlier_version_is_called_that_and_not_absent(settings):
    told = without(SHOT, "worker", "rung_max", "slots_now")
    told["gateway"]["version"] = "0.6.1\x1b[2J"
    with played(settings, {"GET /admin/snapshot": [(200, told)]}), pytest.raises(GatewayDiffers) as problem:
        status(settings, Console(), as_json=False)
    words = str(problem.value)
    assert [each for each in ("0.6.1:", "worker.", "nor 1 more", "Start it anew") if each not in words] == []
    assert "validation" not in words
    assert "\x1b" not in words


def test_a_gateway_that_has_no_snapshots_yet_is_called_that_too(settings):
    environment = {"FOREBAY_HOME": str(settings.home)}
    with played(settings, {}):
        ended = CliRunner(env=environment).invoke(app, ["status"])
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "doesn't know GET /admin/snapshot" in ended.stderr


def test_top_ends_with_a_word_when_another_version_takes_the_gateway_s_place(settings):
    replies = {"GET /admin/snapshot": [(200, asdict(SHOT)), (200, without(SHOT, "gateway", "held"))]}
    looks = iter([None, None])
    with played(settings, replies), pytest.raises(GatewayDiffers):
        top(settings, terminal(), 1.0, sleep=lambda _: next(looks))
