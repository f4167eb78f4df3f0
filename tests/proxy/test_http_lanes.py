"""Lanes over HTTP: which one serves, within which bounds, how long one waits, and what headers say."""

import asyncio
import json

import pytest

from proxy import stream as streaming
from proxy.admission import parking
from tests.proxy.small_gateway import (
    CHAT,
    COMPLETIONS,
    TEXT,
    chat,
    completion,
    gateway,
    ids,
    let_end,
    occupied,
    request,
)
from tests.waiting import until

LANE = "x-forebay-lane"
TOKENS = len(ids(TEXT))
STREAMED_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ALWAYS = ("x-request-id", "x-forebay-queue-ms", "x-forebay-attempts")
TWO = [
    {
        "name": "interactive",
        "reserved_slots": 0,
        "queue_places": 2,
        "max_tokens": 20,
        "max_tokens_default": 30,
    },
    {"name": "batch", "queue_places": 3, "context_tokens": 40, "max_tokens_default": 15},
]


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path, lanes=TWO) as running:
        await running.start_worker(slots=1)
        yield running


def check_refusal(answered, status, code, lane=None, param=None):
    assert (answered.status, answered.error["code"], answered.error["param"]) == (status, code, param)
    assert answered.headers["x-forebay-dropped-reason"] == (code or "invalid_request_error")
    assert answered.headers.get(LANE) == lane
    assert all(name in answered.headers for name in ALWAYS)
    if status == 503:
        assert 1 <= int(answered.headers["Retry-After"]) <= 60


# --- which lane ---------------------------------------------------------------------------------------------


@STREAMED_OR_NOT
@pytest.mark.parametrize(
    ("tier", "header", "lane"),
    [
        (None, None, "interactive"),
        ("default", None, "interactive"),
        ("auto", None, "interactive"),
        ("priority", None, "interactive"),
        ("flex", None, "batch"),
        (None, "batch", "batch"),
        ("flex", "interactive", "interactive"),
        ("priority", "batch", "batch"),
    ],
)
async def test_tier_and_header_choose_the_lane_and_the_answer_says_which(here, tier, header, lane, stream):
    headers = {} if header is None else {LANE: header}
    answered = await here.post(CHAT, chat(service_tier=tier, stream=stream), headers=headers)
    assert (answered.status, answered.headers[LANE]) == (200, lane)
    bodies = [event for event in answered.events if event != "DONE"] if stream else [answered.body]
    assert {body["service_tier"] for body in bodies} == {{"interactive": "default", "batch": "flex"}[lane]}
    assert here.worker.submits[0].rank == ["interactive", "batch"].index(lane)
    assert here.worker.submits[0].quantum_ms == {"interactive": 250, "batch": 150}[lane]


@STREAMED_OR_NOT
async def test_text_completions_have_no_service_tier_as_openais_have_none(here, stream):
    answered = await here.post(COMPLETIONS, completion(service_tier="flex", stream=stream))
    assert answered.headers[LANE] == "batch"
    assert b"service_tier" not in answered.raw


async def test_an_unknown_tier_or_lane_is_refused_by_name(here):
    check_refusal(await here.post(CHAT, chat(service_tier="scale")), 400, None, param="service_tier")
    answered = await here.post(CHAT, chat(), headers={LANE: "nosuch"})
    check_refusal(answered, 400, None, param=LANE)
    assert "interactive, batch" in answered.error["message"]
    assert here.worker.submits == []


# --- bounds -------------------------------------------------------------------------------------------------


async def test_the_most_that_a_lane_answers_is_allowed_and_one_more_is_not(here):
    for asked in (19, 20):
        assert (await here.post(COMPLETIONS, completion(max_tokens=asked))).status == 200
    answered = await here.post(COMPLETIONS, completion(max_tokens=21))
    check_refusal(answered, 400, None, "interactive", "max_tokens")
    assert "The lane 'interactive'" in answered.error["message"]
    assert "20" in answered.error["message"]
    assert "21" in answered.error["message"]
    assert (await here.post(COMPLETIONS, completion(max_tokens=21, service_tier="flex"))).status == 200


@STREAMED_OR_NOT
async def test_a_lanes_context_is_allowed_and_one_more_is_not_at_once_while_others_wait(here, stream):
    tasks = await occupied(here, queued=2)
    for asked, whole in ((10, 41), (11, 41)):
        body = completion(prompt="x" * (whole - asked), max_tokens=asked, service_tier="flex", stream=stream)
        answered = await here.post(COMPLETIONS, body)
        check_refusal(answered, 400, "context_length_exceeded", "batch", "max_tokens")
        assert "The lane 'batch' allows a context of 40 tokens" in answered.error["message"]
        assert f"you asked for {whole}" in answered.error["message"]
    await let_end(here, tasks)
    for fits in (29, 30):
        body = completion(prompt="x" * fits, max_tokens=10, service_tier="flex", stream=stream)
        assert (await here.post(COMPLETIONS, body)).status == 200


async def test_a_hopeless_number_is_refused_untokenised_while_the_queue_is_full(here):
    tasks = await occupied(here, queued=2)
    here.proxy.measurer.close()
    check_refusal(await here.post(CHAT, chat(max_tokens=21)), 400, None, "interactive", "max_tokens")
    await let_end(here, tasks)


async def test_an_answer_that_asks_for_no_number_gets_the_lanes_but_no_more_than_may_be_asked(here):
    for tier, tokens in ((None, 20), ("flex", 15)):
        await here.post(COMPLETIONS, completion(service_tier=tier))
        assert here.worker.submits[-1].max_tokens == tokens
    await here.post(COMPLETIONS, completion(prompt="x" * 35, service_tier="flex"))
    assert here.worker.submits[-1].max_tokens == 5


# --- waiting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wished", ["0", "-5", "soon", "nan", "inf"])
async def test_a_wait_that_is_no_number_of_milliseconds_is_refused(here, wished):
    answered = await here.post(CHAT, chat(), headers={"x-slo-ttft-ms": wished})
    check_refusal(answered, 400, None, param="x-slo-ttft-ms")


@STREAMED_OR_NOT
async def test_who_would_wait_longer_than_it_wishes_is_refused_at_once_and_untokenised(here, stream):
    tasks = await occupied(here)
    measurer, here.proxy.measurer.measure = here.proxy.measurer.measure, None
    answered = await here.post(CHAT, chat(stream=stream), headers={"x-slo-ttft-ms": "1"})
    check_refusal(answered, 503, "server_is_overloaded", "interactive")
    here.proxy.measurer.measure = measurer
    await let_end(here, tasks)
    patient = await here.post(CHAT, chat(), headers={"x-slo-ttft-ms": "29000"})
    assert patient.status == 200


@STREAMED_OR_NOT
async def test_who_waited_its_time_in_vain_is_told_so_and_cost_the_worker_nothing(here, stream):
    tasks = await occupied(here)
    here.proxy.dispatcher.admission.state.calibration.factor = 0.0  # it is promised a row at once
    answered = await here.post(CHAT, chat(stream=stream), headers={"x-slo-ttft-ms": "150"})
    check_refusal(answered, 503, "queue_timeout", "interactive")
    assert int(answered.headers["x-forebay-queue-ms"]) >= 150
    assert answered.headers["x-forebay-attempts"] == "0"
    assert len(here.worker.submits) == 1
    await let_end(here, tasks)


@STREAMED_OR_NOT
@pytest.mark.parametrize(("tier", "places"), [("default", 2), ("flex", 3)])
async def test_a_full_lane_refuses_its_own_untokenised_and_lets_the_other_in(here, tier, places, stream):
    tasks = await occupied(here, queued=places, service_tier=tier)
    measurer, here.proxy.measurer.measure = here.proxy.measurer.measure, None
    answered = await here.post(CHAT, chat(service_tier=tier, stream=stream))
    lane = {"default": "interactive", "flex": "batch"}
    check_refusal(answered, 503, "server_is_overloaded", lane[tier])
    here.proxy.measurer.measure = measurer
    other = "flex" if tier == "default" else "default"
    tasks.append(here.asking(CHAT, chat(service_tier=other)))
    await until(lambda: here.live == places + 2)
    await let_end(here, tasks)
    assert len(here.worker.submits) == places + 2


async def test_places_held_while_a_prompt_is_measured_count_and_are_given_back_by_who_leaves(here):
    tasks = await occupied(here)
    measure, go_on = here.proxy.measurer.measure, asyncio.Event()

    async def slowly(*measured):
        await go_on.wait()
        return await measure(*measured)

    here.proxy.measurer.measure = slowly
    lane = here.proxy.dispatcher.admission.state.lane_named("interactive")
    leaving = [here.asking(CHAT, chat()) for _ in range(2)]
    await until(lambda: lane.announced == 2)
    check_refusal(await here.post(CHAT, chat()), 503, "server_is_overloaded", "interactive")
    leaving[0].cancel()
    await until(lambda: lane.announced == 1)
    go_on.set()
    await until(lambda: here.live == 2 and lane.announced == 0)
    await let_end(here, [*tasks, leaving[1]])


# --- parking, and signs of life -----------------------------------------------------------------------------


@STREAMED_OR_NOT
async def test_a_parked_answer_is_whole_and_says_how_often_it_was_begun(here, monkeypatch, stream):
    monkeypatch.setattr(parking, "_RIPE_TOKENS", 3)
    here.worker.pause_at = 5
    low = here.asking(CHAT, chat(service_tier="flex", stream=stream))
    await until(lambda: here.paused_at(5))
    high = here.asking(CHAT, chat(stream=stream))
    await until(lambda: len(here.worker.submits) == 2 and here.paused_at(5))
    assert len(here.worker.parked) == 1
    here.worker.pause_at = None
    for answered in await asyncio.gather(low, high):
        assert answered.streamed()[0] == TEXT if stream else answered.text == TEXT
    first, _, again = here.worker.submits
    assert (again.sequence, again.attempt) == (first.sequence, 2)
    assert list(again.emitted_ids) == ids(TEXT)[:5]
    assert (await low).headers["x-forebay-attempts"] == ("1" if stream else "2")
    assert (await high).headers["x-forebay-attempts"] == "1"
    await here.idle()


async def test_a_stream_that_waits_in_the_queue_shows_that_it_lives(here, monkeypatch):
    tasks = await occupied(here)
    monkeypatch.setattr(streaming, "KEEPALIVE_INTERVAL_S", 0.01)
    reader, writer = await here.raw()
    writer.write(request(CHAT, chat(stream=True)))
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert "200 ok" in head
    assert "x-forebay-lane: interactive" in head
    assert "x-forebay-attempts: 0" in head
    for _ in range(2):
        await reader.readuntil(b": keep-alive\n\n")
    await let_end(here, tasks)
    rest = await reader.readuntil(b"data: [DONE]\n\n")
    assert "漢".encode() in rest
    writer.close()


async def test_a_stream_that_is_parked_shows_that_it_lives_and_goes_on(here, monkeypatch):
    monkeypatch.setattr(parking, "_RIPE_TOKENS", 3)
    monkeypatch.setattr(streaming, "KEEPALIVE_INTERVAL_S", 0.01)
    here.worker.pause_at = 5
    reader, writer = await here.raw()
    writer.write(request(CHAT, chat(service_tier="flex", stream=True)))
    await until(lambda: here.paused_at(5))
    high = here.asking(CHAT, chat())
    before = b""
    while len(here.worker.submits) < 2:
        before += await reader.readuntil(b": keep-alive\n\n")
    for _ in range(2):  # The first of them may have come before.
        before += await reader.readuntil(b": keep-alive\n\n")
    here.worker.pause_at = None
    assert (await high).text == TEXT
    after = await reader.readuntil(b"data: [DONE]\n\n")
    lines = [line for line in (before + after).decode().splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in lines]
    assert "".join(deltas) == TEXT
    writer.close()


# --- headers ------------------------------------------------------------------------------------------------


async def test_every_response_has_the_headers_and_only_refusals_a_reason(here):
    get, large = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n", b"Content-Length: 99999999"
    asked = [
        (get % b"/health/live", 200),
        (get % b"/health/ready", 200),
        (get % b"/metrics", 200),
        (get % b"/v1/models", 200),
        (get % b"/nosuch", 404),
        (get % b"/v1/models/nosuch", 404),
        (get % CHAT.encode(), 405),
        (request(CHAT, b"{"), 400),
        (request(CHAT, b"{}").replace(b"application/json", b"text/plain"), 415),
        (request(CHAT, b"").replace(b"Content-Length: 0", large), 413),
    ]
    for raw, status in asked:
        reader, writer = await here.raw()
        writer.write(raw)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {line.partition(":")[0].lower() for line in lines}
        assert first.split()[1] == str(status)
        assert headers.issuperset(ALWAYS)
        assert ("x-forebay-dropped-reason" in headers) == (status >= 400)
        assert LANE not in headers
        writer.close()


@STREAMED_OR_NOT
async def test_an_answer_says_how_long_it_waited_and_how_often_it_was_begun(here, stream):
    answered = await here.post(CHAT, chat(stream=stream), headers={"x-request-id": "mine-1"})
    assert answered.headers["x-request-id"] == "mine-1"
    assert (answered.headers["x-forebay-attempts"], answered.headers[LANE]) == ("1", "interactive")
    assert int(answered.headers["x-forebay-queue-ms"]) >= 0
    assert "x-forebay-dropped-reason" not in answered.headers
