"""The page's pure parts, with values: what it says of a snapshot, how it writes numbers, what it keeps."""

import pytest

from tests.status_page.browser import Page
from tests.status_page.stage import Stage

GIB = 1 << 30


@pytest.fixture(scope="module")
def page(tmp_path_factory, driver):
    """Return one page for all of them: none of them changes it."""
    stage = Stage(tmp_path_factory.mktemp("stage"))
    try:
        yield Page(driver).open(stage.open().url)
        driver.get("about:blank")
    finally:
        stage.close()


def snapshot(status="ready", *, queued=0, running=0, cause=None, **changes):
    """Return what the sentences are made of; `changes` go where a field of that name is."""
    parts = {
        "gateway": {"status": status, "since_s": 5, "held": False, "live": queued + running},
        "worker": {"status": status, "breaker": "closed", "rung": 0, "rung_max": 3, "starts_in_s": None},
        "lanes": [
            {
                "name": "interactive",
                "queued": queued,
                "running": running,
                "overloaded": False,
                "target_wait_s": 2.0,
            },
            {"name": "batch", "queued": 0, "running": 0, "overloaded": False, "target_wait_s": None},
        ],
        "memory": {"kv_budget_bytes": 8 * GIB, "kv_budget_full_bytes": 8 * GIB},
        "speed": {"refused": 0},
        "deaths": [{"cause": cause, "restart_s": None}] if cause else [],
        "suspects": 0,
    }
    for name, value in changes.items():
        (place,) = [
            part
            for part in (parts, *(each for each in parts.values() if isinstance(each, dict)))
            if name in part
        ]
        place[name] = value
    return parts


OVERLOADED = [{"name": "interactive", "queued": 9, "running": 4, "overloaded": True, "target_wait_s": 2.0}]
SAID = [
    (snapshot(), "good", "Ready", "Nothing runs, nothing waits."),
    (snapshot(running=1), "good", "Ready", "1 answer runs, nothing waits."),
    (snapshot(running=2, queued=1), "good", "Ready", "2 answers run, 1 waits."),
    (snapshot(refused=1), "good", "Ready", "1 request was refused in the last 10 s."),
    (snapshot(held=True, running=3), "busy", "About to restart", "It waits for what runs to end"),
    (snapshot(lanes=OVERLOADED), "busy", "Overloaded", "who would wait for more than 2.0 s is refused"),
    (snapshot(rung=1), "busy", "Ready, with care", "on rung 1 of 3, since a worker died for want of memory"),
    (snapshot(breaker="half_open"), "busy", "Ready, with care", "one request runs at a time"),
    (snapshot(suspects=1), "busy", "Ready, with care", "1 answer waits to run alone"),
    (snapshot(kv_budget_bytes=4 * GIB), "busy", "Ready, with care", "may take 4.00 GiB now, of 8.00 GiB."),
    (snapshot("loading", queued=2), "busy", "Loading", "2 answers wait for it"),
    (snapshot("loading", cause="hang"), "busy", "Loading", "The one before hung, and was killed."),
    (snapshot("restarting", cause="memory"), "bad", "Restarting", "The worker died for want of memory."),
    (snapshot("restarting", cause="crash", starts_in_s=4.2), "bad", "Restarting", "one starts in 4 s"),
    (snapshot("restarting", cause="planned"), "busy", "Restarting", "The worker was replaced as ordered."),
    (snapshot("restarting"), "bad", "Restarting", "The worker is gone."),
    (snapshot("restarting", cause="made up"), "bad", "Restarting", "The worker ended: made up."),
    (snapshot("restarting", breaker="open", starts_in_s=40), "bad", "Held back", "One is tried in 40 s"),
    (snapshot("absent"), "bad", "No worker", "No worker has come yet."),
    (snapshot("draining", running=1), "busy", "Draining", "1 answer still runs or waits"),
    (snapshot("made up"), "busy", "made up", "This page doesn't know more of it."),
]  # fmt: skip


@pytest.mark.parametrize(("given", "tone", "word", "part"), SAID)
def test_each_state_has_a_word_a_colour_and_what_comes_next(page, given, tone, word, part):
    told = page.module("words.js", "it.told(given[0])", given)
    assert (told["tone"], told["word"]) == (tone, word)
    assert part in " ".join(told["says"]).replace("\u00a0", " ")


NUMBERS = [
    ("bytes", None, "\u2013"),
    ("bytes", 0, "0 GiB"),
    ("bytes", 900, "0.9 KiB"),
    ("bytes", 3 << 20, "3.0 MiB"),
    ("bytes", GIB // 2, "0.50 GiB"),
    ("bytes", int(9.996 * GIB), "10.0 GiB"),
    ("bytes", 512 * GIB, "512 GiB"),
    ("seconds", 0.0004, "0 ms"),
    ("seconds", 0.9996, "1.0 s"),
    ("seconds", 9.96, "10 s"),
    ("seconds", 150, "2 min"),
    ("speed", 7.25, "7.3"),
    ("speed", 1234.5, "1,235"),
    ("span", 119.9, "119 s"),
    ("span", 7199, "119 min"),
    ("span", 3 * 3600 + 12 * 60, "3 h 12 min"),
    ("span", 3 * 86400, "3 d"),
]


def test_numbers_are_written_as_people_read_them(page):
    given = [[name, value] for name, value, _ in NUMBERS]
    written = page.module("units.js", "given[0].map(([name, value]) => it[name](value))", given)
    assert [each.replace("\u00a0", " ") for each in written] == [text for _, _, text in NUMBERS]


def columns(times, **changes):
    """Return a history of these times, in which all is 1 but what is named."""
    names = ("tokens_per_s", "ttft_p50_s", "ttft_p95_s", "queued", "running", "kv_bytes", "refused")
    plain = {"interval_s": 2, "time": times, "deaths": [0] * len(times)} | {
        name: [1] * len(times) for name in names
    }
    return plain | changes


APPENDED = """(() => {
  const series = new it.Series();
  const missing = given.map((view) => series.append(view));
  return [series.columns.time, missing, series.holes(given.at(-1).time.at(-1))];
})()"""


def test_what_comes_again_is_taken_once_and_what_is_missing_is_noticed(page):
    views = [columns([1000, 1002]), columns([1000.1, 1002.1, 1004]), columns([1004.1]), columns([1020, 1022])]
    times, missing, holes = page.module("series.js", APPENDED, *views)
    assert times == [1000, 1002, 1004, 1020, 1022]
    assert missing == [False, False, False, True]
    assert holes == [[122, 998], [1004, 1018]]


def test_a_gateways_clock_that_is_set_back_is_followed(page):
    views = [columns([1000, 1002, 1004]), columns([900, 902]), columns([902, 904])]
    times, missing, _ = page.module("series.js", APPENDED, *views)
    assert (times, missing) == ([900, 902, 904], [False, False, False])


def test_all_that_the_gateway_remembers_takes_the_place_of_what_is_known_but_not_of_what_is_older(page):
    script = """(() => {
      const series = new it.Series();
      series.append(given[0]);
      series.replace(given[1]);
      return [series.columns.time, series.columns.queued];
    })()"""
    times, queued = page.module(
        "series.js", script, columns([10, 12, 30]), columns([20, 22, 30], queued=[5, 6, 7])
    )
    assert (times, queued) == ([10, 12, 20, 22, 30], [1, 1, 5, 6, 7])


def test_a_line_goes_on_over_a_short_silence_and_breaks_off_at_a_hole(page):
    script = """(() => {
      const series = new it.Series();
      series.append(given[0]);
      const told = (value) => (value === undefined ? "over" : value);
      return series.lines(["ttft_p50_s"]).map((line) => line.map(told));
    })()"""
    view = columns([2, 4, 6, 20, 22], ttft_p50_s=[1, None, 3, None, 5])
    assert page.module("series.js", script, view) == [[2, 4, 6, 13, 20, 22], [1, "over", 3, None, None, 5]]


def test_each_end_of_a_worker_is_marked_once_told_one_by_one_or_only_counted(page):
    script = """(() => {
      const series = new it.Series();
      series.append(given[0]);
      series.note(given[1]);
      series.note(given[1]);
      return [series.marks(1000), series.minutes().map((each) => [each.until, each.deaths])];
    })()"""
    view = columns([940, 960, 980], deaths=[1, 0, 1])
    deaths = [{"epoch": 4, "cause": "crash", "at": 979.2}, {"epoch": 5, "cause": "planned", "at": 990}]
    marks, minutes = page.module(
        "series.js", script, view, [*deaths, {"epoch": 1, "cause": "crash", "at": 20}]
    )
    assert marks == [[940, False], [979.2, False], [990, True]]
    assert minutes == [[1020, 1], [960, 1]]


def test_memory_s_parts_are_what_is_held_beyond_it_and_what_is_left(page):
    memory = {
        "weights_bytes": 100, "kv_budget_bytes": 50, "kv_budget_full_bytes": 60, "kv_held_bytes": 10,
        "kv_reserved_bytes": 25, "prefix_kept_bytes": 5,
    }  # fmt: skip
    parts = page.module("parts.js", "it.shares(given[0]).map(([kind, , amount]) => [kind, amount])", memory)
    assert parts == [
        ["weights", 100],
        ["held", 10],
        ["promised", 15],
        ["kept", 5],
        ["free", 20],
        ["lost", 10],
    ]
    more = memory | {"kv_held_bytes": 70, "kv_budget_bytes": 60}
    parts = page.module("parts.js", "it.shares(given[0]).map(([kind, , amount]) => [kind, amount])", more)
    assert parts[1:] == [["held", 70], ["promised", 0], ["kept", 5], ["free", 0]]
