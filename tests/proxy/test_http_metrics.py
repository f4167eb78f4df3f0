"""/metrics: names, numbers that are right, and no label that a client could make up."""

import asyncio
from importlib.metadata import version

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.messages import Progress
from shared.readings import EngineReading, MemoryReading
from tests.proxy.small_gateway import CHAT, COMPLETIONS, NAME, TEXT, Gateway, chat, completion, gateway, ids
from tests.waiting import until

LANES_ALONE = {"forebay_queue_places", "forebay_oldest_wait_seconds", "forebay_lane_target_wait_seconds"}
LANES = [{"name": "interactive", "reserved_slots": 0, "queue_places": 2, "max_tokens": 20}, {"name": "batch"}]


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path, lanes=LANES) as running:
        await running.start_worker(slots=1)
        yield running


async def told(here):
    """Return every sample as {(name, labels in order): value}, as Prometheus itself would read it."""
    answered = await here.get("/metrics")
    assert answered.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answered.raw.decode())
        for sample in family.samples
    }


def refusals(samples):
    """Return {(lane, code): count}."""
    return {
        (dict(labels)["lane"], dict(labels)["code"]): value
        for (name, labels), value in samples.items()
        if name == "forebay_refused_total"
    }


def of(samples, name, **labels):
    """Return one sample's value; of a lane's, the key class is none where none is said."""
    if "lane" in labels and name not in LANES_ALONE:
        labels = {"key_class": "", **labels}
    return samples.get((name, tuple(sorted(labels.items()))))


async def test_gauges_say_who_waits_who_runs_and_what_is_reserved(here):
    here.worker.pause_at = 1
    tasks = [here.asking(CHAT, chat(service_tier="flex"))]
    await until(lambda: here.worker.paused_at(1))
    tasks += [here.asking(CHAT, chat(service_tier=tier)) for tier in ("flex", "flex", "default")]
    await until(lambda: here.live == 4)
    samples = await told(here)
    for name, lane, number in (
        ("forebay_queued", "interactive", 1),
        ("forebay_queued", "batch", 2),
        ("forebay_running", "interactive", 0),
        ("forebay_running", "batch", 1),
    ):
        assert of(samples, name, lane=lane) == number
    assert of(samples, "forebay_kv_reserved_bytes") == here.proxy.dispatcher.admission.reserved_bytes > 0
    assert of(samples, "forebay_kv_held_bytes") == 0
    here.worker.pause_at = None
    await asyncio.gather(*tasks)
    await here.idle()
    samples = await told(here)
    assert of(samples, "forebay_queued", lane="batch") == of(samples, "forebay_running", lane="batch") == 0
    assert of(samples, "forebay_kv_reserved_bytes") == 0


async def test_each_start_is_one_wait_and_one_miss_of_the_estimate_with_its_sign(here):
    here.worker.pause_at = 1
    first = here.asking(CHAT, chat())
    await until(lambda: here.worker.paused_at(1))
    here.proxy.dispatcher.admission.state.calibration.factor = 0.0  # promised a row after one step
    waits = here.asking(CHAT, chat())
    await until(lambda: here.live == 2)
    (answer,) = [each for each in here.proxy.dispatcher.admission.state.answers.values() if not each.starts]
    answer.queued_at -= 7.0
    answer.estimated_wait_s = 100.0
    here.worker.pause_at = None
    await asyncio.gather(first, waits)
    samples = await told(here)
    assert of(samples, "forebay_queue_wait_seconds_count", lane="interactive") == 2
    assert of(samples, "forebay_queue_wait_seconds_bucket", lane="interactive", le="5.0") == 1
    assert of(samples, "forebay_queue_wait_seconds_bucket", lane="interactive", le="30.0") == 2
    errors = "forebay_estimate_error_seconds_bucket"
    assert of(samples, errors, lane="interactive", le="-60.0") == 1
    assert of(samples, errors, lane="interactive", le="-0.1") == 1
    assert of(samples, errors, lane="interactive", le="10.0") == 2


async def test_what_starts_again_after_a_death_was_not_in_a_queue(here):
    here.worker.pause_at = 1
    asked = here.asking(CHAT, chat())
    await until(lambda: here.worker.paused_at(1))
    await here.replace_worker()
    await asked
    samples = await told(here)
    assert of(samples, "forebay_queue_wait_seconds_count", lane="interactive") == 1
    assert of(samples, "forebay_estimate_error_seconds_count", lane="interactive") == 1


async def test_each_refusal_is_counted_once_by_its_lane_and_code(here):
    await here.post(CHAT, chat(max_tokens=21))
    await here.post(CHAT, chat(temperature=-1))
    await here.post(COMPLETIONS, completion(prompt="x" * 64, service_tier="flex"))
    await here.get("/nosuch")
    assert refusals(await told(here)) == {
        ("interactive", "invalid_request_error"): 1,
        ("", "invalid_request_error"): 1,
        ("batch", "context_length_exceeded"): 1,
        ("", "route_not_found"): 1,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_of_the_queue_are_counted_once_streamed_or_not(here, stream):
    here.worker.pause_at = 1
    tasks = [here.asking(CHAT, chat())]
    await until(lambda: here.worker.paused_at(1))
    here.proxy.dispatcher.admission.state.calibration.factor = 0.0  # promised a row after one step
    assert (await here.post(CHAT, chat(stream=stream), headers={"x-slo-ttft-ms": "150"})).status == 503
    tasks += [here.asking(CHAT, chat()) for _ in range(2)]
    await until(lambda: here.live == 3)
    assert (await here.post(CHAT, chat(stream=stream))).status == 503
    assert refusals(await told(here)) == {
        ("interactive", "queue_timeout"): 1,
        ("interactive", "server_is_overloaded"): 1,
    }
    here.worker.pause_at = None
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("n", [1, 3])
async def test_a_request_that_waits_in_vain_is_one_refusal_however_many_answers_it_asks_for(tmp_path, n):
    async with gateway(tmp_path) as here:
        await here.start_worker(slots=1, pause_at=1)
        task = here.asking(CHAT, chat())
        await until(lambda: here.worker.paused_at(1))
        here.proxy.dispatcher.admission.state.calibration.factor = 0.0  # promised a row after one step
        assert (await here.post(CHAT, chat(n=n), headers={"x-slo-ttft-ms": "150"})).status == 503
        assert refusals(await told(here)) == {("interactive", "queue_timeout"): 1}
        here.worker.pause_at = None
        await task


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_worker_refuses_is_counted_once(here, stream):
    here.answer = lambda _submit: "this model can't"
    assert (await here.post(CHAT, chat(n=2, stream=stream))).status == 400
    assert refusals(await told(here)) == {("interactive", "invalid_request_error"): 1}


async def test_an_answer_and_a_client_that_leaves_are_no_refusals(here):
    assert (await here.post(CHAT, chat())).status == 200
    here.worker.pause_at = 1
    task = here.asking(CHAT, chat())
    await until(lambda: here.worker.paused_at(1))
    task.cancel()
    await here.idle()
    assert refusals(await told(here)) == {}


async def test_nothing_that_a_client_sends_becomes_a_label(here):
    odd = "odd-words"
    await here.post(CHAT, chat(), headers={"x-forebay-lane": odd})
    await here.post(CHAT, chat(service_tier=odd))
    await here.post(CHAT, chat(model=odd))
    await here.post(CHAT, chat(), headers={"x-request-id": odd, "x-api-key": odd})
    await here.get(f"/{odd}")
    assert odd.encode() not in (await here.get("/metrics")).raw
    assert {lane for lane, _ in refusals(await told(here))} == {""}


async def test_keys_are_no_labels_either(tmp_path):
    here = Gateway(tmp_path / NAME)
    key = here.add_key("someones-name", requests_per_minute=1)
    async with here:
        await here.start_worker()
        statuses = [(await here.post(CHAT, chat(), headers=given)).status for given in (key, key, {})]
        assert statuses == [200, 429, 401]
        raw = (await here.get("/metrics")).raw
        assert b"someones-name" not in raw
        assert refusals(await told(here)) == {("", "rate_limit_exceeded"): 1, ("", "invalid_api_key"): 1}


async def test_key_classes_are_told_apart_and_those_without_one_are_nobodys(tmp_path):
    here = Gateway(tmp_path / NAME)
    keys = [
        here.add_key("a", key_class="team"),
        here.add_key("b", key_class="team"),
        here.add_key("c", lane="batch"),
    ]
    async with here:
        await here.start_worker()
        for key in keys:
            assert (await here.post(CHAT, chat(), headers=key)).status == 200
        await here.post(CHAT, chat(temperature=-1), headers=keys[0])
        samples = await told(here)
        team, nobody = {"lane": "interactive", "key_class": "team"}, {"lane": "batch", "key_class": ""}
        for name in ("admitted_total", "ttft_seconds_count", "answer_seconds_count"):
            assert of(samples, f"forebay_{name}", **team) == 2
            assert of(samples, f"forebay_{name}", **nobody) == 1
        tokens = of(samples, "forebay_tokens_total", **team)
        assert tokens == of(samples, "forebay_goodput_tokens_total", **team) == 2 * len(ids(TEXT))
        assert (
            of(samples, "forebay_refused_total", lane="", key_class="team", code="invalid_request_error") == 1
        )


async def test_gauges_say_how_worker_lanes_and_door_are(here):
    samples = await told(here)
    (info,) = [labels for name, labels in samples if name == "forebay_gateway_info"]
    assert dict(info) == {"version": version("forebay"), "model": NAME}
    assert of(samples, "forebay_worker_ready") == 1
    assert of(samples, "forebay_draining") == of(samples, "forebay_held") == 0
    assert of(samples, "forebay_connections") == here.proxy.listening.connections >= 1
    assert of(samples, "forebay_kv_budget_full_bytes") == of(samples, "forebay_kv_budget_bytes") == 1 << 20
    assert of(samples, "forebay_queue_places", lane="interactive") == 2
    assert of(samples, "forebay_lane_target_wait_seconds", lane="interactive") == 2
    assert of(samples, "forebay_lane_target_wait_seconds", lane="batch") is None
    assert of(samples, "forebay_estimated_tokens_per_second") == 0
    here.proxy.dispatcher.draining = here.proxy.dispatcher.held = True
    await here.kill_worker()
    samples = await told(here)
    assert of(samples, "forebay_worker_ready") == 0
    assert of(samples, "forebay_draining") == of(samples, "forebay_held") == 1
    assert of(samples, "forebay_worker_deaths_total", cause="crash") == 1


async def test_gauges_show_what_the_worker_said_last_of_itself_and_forget_it_with_the_worker(here):
    progress = Progress(
        epoch=here.worker.epoch,
        step=1,
        phase="decode",
        expected_ms=1.0,
        ping=0,
        running=(),
        kv_bytes=11,
        budget_bytes=1 << 19,
        tokens=0,
        answers=0,
        wants_recycle=True,
        memory=MemoryReading(21, 22, 23, 24),
        engine=EngineReading(3, 2, 31, 32),
    )
    here.worker._say(progress)
    await until(lambda: here.proxy.link.state.progress == progress)
    names = {
        "kv_held_bytes": 11,
        "kv_budget_bytes": 1 << 19,
        "worker_active_bytes": 21,
        "worker_cache_bytes": 22,
        "worker_peak_bytes": 23,
        "worker_footprint_bytes": 24,
        "worker_rows": 3,
        "worker_groups": 2,
        "worker_arrays": 31,
        "worker_arrays_max": 32,
        "worker_over_memory": 1,
    }
    samples = await told(here)
    assert {name: of(samples, f"forebay_{name}") for name in names} == names
    await here.kill_worker()
    samples = await told(here)
    shown = {name: of(samples, f"forebay_{name}") for name in names if name != "kv_budget_bytes"}
    assert set(shown.values()) == {0}


async def test_the_speed_that_is_to_be_expected_is_that_of_steps_of_as_many_rows(here):
    here.worker.pause_at = 2
    asked = here.asking(CHAT, chat())
    await until(lambda: here.worker.paused_at(2) and here.paused_at(2))
    step_ms = here.proxy.dispatcher.admission.state.speeds.step_ms(1)
    assert of(await told(here), "forebay_estimated_tokens_per_second") == pytest.approx(1000 / step_ms)
    here.worker.pause_at = None
    await asked


async def test_a_clock_that_ticks_late_is_told(here):
    ticks = of(await told(here), "forebay_loop_lag_seconds_count")
    await until(
        lambda: here.proxy.observer.metrics.registry.get_sample_value("forebay_loop_lag_seconds_count")
    )
    here.proxy.observer.ticked(0.3)
    here.proxy.observer.ticked(-0.001)  # a clock may be early, by a rounding
    samples = await told(here)
    assert of(samples, "forebay_loop_lag_seconds_count") >= ticks + 3
    assert of(samples, "forebay_loop_lag_seconds_bucket", le="+Inf") > of(
        samples, "forebay_loop_lag_seconds_bucket", le="0.25"
    )
