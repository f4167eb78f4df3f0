"""What the gateway shows of itself at /status and /status/history, of a real gateway over a false worker."""

import dataclasses

import pytest

from proxy.prompt_use import PromptUse
from proxy.status import snapshot as contract
from proxy.status.history import Levels
from proxy.status.taker import SnapshotTaker
from shared.clock import FalseClock
from shared.codec import encode
from shared.messages import BackingOff, Care, Exited, ManifestRow
from tests.proxy.small_gateway import gateway, let_end, occupied
from tests.waiting import until

LANES = [{"name": "interactive", "queue_places": 24}, {"name": "batch", "target_wait_s": None}]
# What scripts and pages of earlier versions read; names are added here, and none is taken away.
FIELDS = {
    contract.GatewayView: "status since_s uptime_s version model draining held live resumed",
    contract.WorkerView: "status epoch family caches context_tokens slots rows groups step "
    "rung breaker starts_in_s deaths slots_now rung_max",
    contract.LaneView: "name queued running queue_places oldest_wait_s overloaded target_wait_s deadline_s",
    contract.RowView: "lane tokens tokens_max attempt",
    contract.MemoryView: "weights_bytes kv_budget_full_bytes kv_budget_bytes kv_reserved_bytes kv_held_bytes "
    "prefix_kept_bytes prefix_shared_bytes prefix_disk_bytes "
    "active_bytes cache_bytes peak_bytes footprint_bytes arrays arrays_max",
    contract.SpeedView: "tokens_per_s ttft_p50_s ttft_p95_s refused",
    contract.DeathView: "at epoch cause detail rows restart_s",
    contract.QuarantinedView: "fingerprint at until cause lane prompt_tokens",
    contract.HistoryView: "interval_s time tokens_per_s ttft_p50_s ttft_p95_s "
    "queued running kv_bytes refused deaths",
    contract.Snapshot: "time gateway worker lanes rows memory speed deaths quarantined quarantine suspects "
    "prompt_tokens cached_tokens recent",
}


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path, LANES) as running:
        yield running


@pytest.fixture
def clock():
    return FalseClock(100.0)


@pytest.fixture
def taker(here, clock):
    """Return one of this gateway by a clock that stands; the wall clock is 1,000 seconds ahead of it."""
    return SnapshotTaker(
        "small",
        here.proxy.link,
        here.proxy.dispatcher,
        here.proxy.observer,
        PromptUse,
        clock=clock,
        wall=lambda: 1000.0 + clock.now(),
    )


async def told(here):
    return (await here.get("/status")).body


@pytest.mark.parametrize("view", FIELDS)
def test_the_fields_of_the_contract_stand(view):
    fields = [each.name for each in dataclasses.fields(view)]
    assert [name for name in FIELDS[view].split() if name not in fields] == []


async def test_without_a_worker_it_says_so_and_nothing_that_only_a_worker_knows(here):
    body = await told(here)
    assert (body["gateway"]["status"], body["worker"]["status"], body["gateway"]["model"]) == (
        "absent", "absent", "small",
    )  # fmt: skip
    unknown = ("epoch", "family", "context_tokens", "slots", "slots_now", "rows", "step", "starts_in_s")
    assert {body["worker"][name] for name in unknown} == {None}
    assert body["memory"]["weights_bytes"] is body["memory"]["kv_budget_bytes"] is None
    assert (body["rows"], body["deaths"], body["quarantine"]) == ([], [], [])


async def test_a_snapshot_tells_who_runs_how_long_and_who_waits_where(here):
    await here.start_worker(slots=1)
    tasks = await occupied(here, queued=2, max_tokens=12)
    body = await told(here)
    interactive, batch = body["lanes"]
    assert (interactive["name"], interactive["running"], interactive["queued"]) == ("interactive", 1, 2)
    assert (interactive["queue_places"], interactive["target_wait_s"], interactive["deadline_s"]) == (
        24,
        2.0,
        30.0,
    )
    assert (batch["queued"], batch["target_wait_s"]) == (0, None)
    (row,) = body["rows"]
    assert (row["lane"], row["attempt"], row["tokens_max"] - row["tokens"]) == ("interactive", 1, 11)
    assert (body["gateway"]["live"], body["worker"]["slots"], body["worker"]["slots_now"]) == (3, 1, 1)
    assert body["memory"]["kv_reserved_bytes"] > 0
    await let_end(here, tasks)


async def test_nothing_of_prompts_answers_or_keys_is_told(here):
    headers = here.add_key("the name of a key")
    await here.proxy.admin.reload()
    await here.start_worker()
    here.worker.pause_at = 3
    asking = here.asking("/v1/completions", {"model": "small", "prompt": "a secret"}, headers=headers)
    await until(lambda: here.paused_at(3))
    words = (await here.get("/status")).raw.decode()
    secret = headers["Authorization"].removeprefix("Bearer ")
    assert [each for each in ("a secret", "hé", "the name of a key", secret) if each in words] == []
    here.worker.pause_at = None
    assert (await asking).status == 200


async def test_a_death_is_told_with_its_cause_and_how_long_the_next_one_took(here):
    await here.start_worker()
    epoch = here.worker.epoch
    await here.worker.die()
    rows = (ManifestRow("a", 1, 0, False), ManifestRow("b", 1, 0, False))
    here.supervisor.send(encode(Exited(epoch, "hang", "x" * 1000, rows)))
    here.supervisor.send(encode(BackingOff(epoch, 40.0, Care(2, "open"))))
    await until(lambda: here.proxy.link.state.retry_at is not None)
    body = await told(here)
    (death,) = body["deaths"]
    assert (death["epoch"], death["cause"], death["rows"], death["restart_s"]) == (epoch, "hang", 2, None)
    assert len(death["detail"]) == 300
    assert abs(death["at"] - body["time"]) < 60
    worker = body["worker"]
    assert (worker["breaker"], worker["rung"], worker["rung_max"], worker["deaths"]) == ("open", 2, 3, 1)
    assert 20 < worker["starts_in_s"] <= 40
    await here.start_worker()
    assert (await told(here))["deaths"][0]["restart_s"] >= 0


async def test_on_a_higher_rung_fewer_of_the_slots_are_filled(here):
    here.supervisor.send(encode(BackingOff(0, 0.0, Care(2, "closed"))))
    await until(lambda: here.proxy.link.state.care.rung == 2)
    await here.start_worker(slots=8)
    here.proxy.dispatcher.cautioned(Care(2, "closed"))
    worker = (await told(here))["worker"]
    assert (worker["slots"], worker["slots_now"]) == (8, 4)


def test_since_when_it_drains_is_when_that_was_ordered(here, taker, clock):
    clock.advance(50.0)
    here.proxy.dispatcher.draining = True
    taker.tick()
    clock.advance(7.0)
    gateway_view = taker.snapshot().gateway
    assert (gateway_view.status, gateway_view.since_s, gateway_view.uptime_s) == ("draining", 7.0, 57.0)
    here.proxy.dispatcher.draining = False
    taker.tick()
    here.proxy.dispatcher.draining = True
    assert taker.snapshot().gateway.since_s == 0.0


def test_intervals_are_closed_each_two_seconds_however_often_it_is_looked(here, taker, clock):
    for _ in range(40):
        clock.advance(0.25)
        taker.tick()
    assert taker.history().time == (1102.0, 1104.0, 1106.0, 1108.0, 1110.0)


def test_a_snapshot_has_the_last_ten_seconds_as_the_history_has_them(here, taker):
    for number in range(8):
        here.proxy.observer.history.came()
        here.proxy.observer.history.began(0.1 * number)
        here.proxy.observer.history.refused("queue_full")
        here.proxy.observer.history.close(100.0 + 2 * number, Levels(number, 1, 10 * number))
    taken, history = taker.snapshot(), taker.history()
    for each in dataclasses.fields(history):
        whole, recent = getattr(history, each.name), getattr(taken.recent, each.name)
        assert recent == (whole if each.name == "interval_s" else whole[-5:])
    assert history.time[-1] == 1114.0
    assert taken.speed == contract.SpeedView(0.5, 0.5, 0.68, 5)


def test_of_many_quarantined_requests_the_latest_are_shown_and_all_are_counted(here, taker):
    for number in range(25):
        here.proxy.quarantine.add(
            f"{number:016x}", cause="crash", detail="", key="k", lane="batch", prompt_tokens=number
        )
    taken = taker.snapshot()
    assert (taken.quarantined, len(taken.quarantine)) == (25, 20)
    assert [each.prompt_tokens for each in taken.quarantine] == list(range(5, 25))


async def test_the_history_is_told_in_columns_of_one_length(here, taker):
    here.proxy.observer.history.close(1.0, Levels(1, 2, 3))
    body = (await here.get("/status/history")).body
    assert {len(column) for name, column in body.items() if name != "interval_s"} == {1}
    assert (body["queued"], body["running"], body["kv_bytes"], body["ttft_p50_s"]) == ([1], [2], [3], [None])
