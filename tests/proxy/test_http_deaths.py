"""Deaths over HTTP: a request that kills is told so, an open breaker says when to come back; health."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.codec import encode
from shared.messages import BackingOff, Care, Exited, ManifestRow, Starting
from tests.proxy.small_gateway import CHAT, COMPLETIONS, TEXT, chat, completion, gateway
from tests.waiting import until

KILLER = {"prompt": "kill", "max_tokens": 12}


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        yield running


async def told(here):
    """Return every sample of /metrics as {(name, value of its only label or ""): value}."""
    text = (await here.get("/metrics")).raw.decode()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    return {(each.name, "".join(each.labels.values())): each.value for each in samples}


async def die_of_what_runs(here, cause="memory"):
    """Let the worker die in a step of all its rows, and the supervisor say so."""
    rows = [ManifestRow(submit.sequence, submit.attempt, 0, False) for submit in here.worker.submits]
    await here.worker.die()
    here.supervisor.send(encode(Exited(here.worker.epoch, cause, "out of memory", tuple(rows))))
    await until(lambda: here.proxy.link.epoch is None)


async def convict(here, path=COMPLETIONS, **body):
    """Let a request kill two workers; return its answer."""
    here.worker.pause_at = 0
    asking = here.asking(path, body or completion(**KILLER))
    for _ in range(2):
        await until(lambda: here.worker.submits)
        await die_of_what_runs(here)
        await here.start_worker(pause_at=0)
    here.worker.pause_at = None
    return await asking


def check_quarantined(answered):
    assert answered.status == 422
    assert (answered.error["code"], answered.error["type"]) == (
        "request_quarantined",
        "invalid_request_error",
    )
    assert "cause: memory" in answered.error["message"]
    assert answered.headers["x-should-retry"] == "false"
    assert answered.headers["x-forebay-dropped-reason"] == "request_quarantined"
    assert "Retry-After" not in answered.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_kills_the_worker_alone_is_told_so_and_not_run_again(here, stream):
    body = completion(**KILLER, stream=stream)
    check_quarantined(await convict(here, **body))
    for _ in range(3):
        check_quarantined(await here.post(COMPLETIONS, body))
    assert len(here.workers) == 3
    assert here.worker.submits == []
    answered = await here.post(COMPLETIONS, completion(max_tokens=12))
    assert (answered.status, answered.text) == (200, TEXT)
    await here.idle()


async def test_what_is_quarantined_is_seen_and_kept_over_a_restart(here):
    await convict(here)
    assert (await here.get("/health/ready")).body["quarantined"] == 1
    assert (await told(here))["forebay_quarantined", ""] == 1
    (entry,) = here.proxy.quarantine.entries()
    assert (entry.cause, entry.detail, entry.lane) == ("memory", "out of memory", "interactive")
    here.proxy.quarantine._saving.result()
    (file,) = here._folder.glob("quarantine-*.json")
    assert here.proxy.quarantine.read(file)[0].fingerprint == entry.fingerprint
    assert len(here.proxy.quarantine.clear(None)) == 1
    assert (await here.post(COMPLETIONS, completion(**KILLER))).status == 200


async def test_suspects_that_wait_are_seen(here):
    here.worker.pause_at = 0
    asking = here.asking(COMPLETIONS, completion(**KILLER))
    await until(lambda: here.worker.submits)
    await die_of_what_runs(here, "hang")
    body = (await here.get("/health/ready")).body
    assert (body["suspects"], body["queued"], body["worker"]["last_death"]) == (1, 1, "hang")
    samples = await told(here)
    assert samples["forebay_suspects", ""] == 1
    assert samples["forebay_worker_deaths_total", "hang"] == 1
    assert samples["forebay_resumes_total", "interactive"] == 1
    await here.start_worker()
    assert (await asking).text == TEXT
    assert (await told(here))["forebay_suspects", ""] == 0
    assert (await told(here))["forebay_resume_seconds_count", "interactive"] == 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_while_the_breaker_is_open_all_are_told_when_the_next_worker_is_tried(here, path):
    await here.kill_worker()
    here.supervisor.send(encode(BackingOff(here.worker.epoch, 40.0, Care(1, "open"))))
    await until(lambda: here.proxy.link.state.retry_at is not None)
    body = chat() if path == CHAT else completion()
    answered = await here.post(path, body)
    assert (answered.status, answered.error["code"]) == (503, "worker_unavailable")
    assert answered.error["message"].startswith("no worker runs")
    assert answered.headers["x-forebay-dropped-reason"] == "worker_unavailable"
    assert 30 <= int(answered.headers["Retry-After"]) <= 60
    assert 30_000 <= int(answered.headers["retry-after-ms"]) <= 60_000
    ready = await here.get("/health/ready")
    assert (ready.status, ready.body["worker"]["breaker"], ready.body["worker"]["rung"]) == (503, "open", 1)


async def test_nothing_is_tokenised_while_the_breaker_is_open(here, monkeypatch):
    monkeypatch.setattr(here.proxy.measurer, "measure", None)
    here.supervisor.send(encode(BackingOff(0, 40.0, Care(0, "open"))))
    await until(lambda: here.proxy.link.state.care.breaker == "open")
    assert (await here.post(CHAT, chat())).status == 503


async def test_rung_and_breaker_are_told_as_numbers(here):
    for breaker in ("half_open", "closed"):
        here.supervisor.send(encode(Starting(1, Care(2, breaker))))
        await until(lambda breaker=breaker: here.proxy.link.state.care.breaker == breaker)
        samples = await told(here)
        assert samples["forebay_rung", ""] == 2
        states = {state: samples["forebay_breaker", state] for state in ("closed", "open", "half_open")}
        assert states == {state: float(state == breaker) for state in states}
        assert samples["forebay_kv_budget_bytes", ""] == int(0.9 * (1 << 20))
        worker = (await here.get("/health/ready")).body["worker"]
        assert (worker["rung"], worker["breaker"]) == (2, breaker)


async def test_half_open_one_request_runs_at_a_time(here):
    here.supervisor.send(encode(Starting(1, Care(0, "half_open"))))
    await until(lambda: here.proxy.link.state.care.breaker == "half_open")
    here.worker.pause_at = 1
    both = [here.asking(CHAT, chat()) for _ in range(2)]
    await until(lambda: here.live == 2 and here.worker.paused_at(1))
    assert len(here.worker.rows) == 1
    here.worker.pause_at = None
    assert {each.text for each in await asyncio.gather(*both)} == {TEXT}
    await here.idle()
