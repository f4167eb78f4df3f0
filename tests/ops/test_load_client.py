"""The load's client and loops against a false server: what is recorded, and that a no is obeyed."""

import asyncio
import json
import time

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ops.load.client import Client, _Watch, retry_after_s
from ops.load.loops import closed_loop, open_loop
from ops.load.records import Ask
from tests.waiting import until

ASK = Ask("Hello.", 3)


class FalseServer:
    """Answers each chat request by the next of `plan`, and by the last for ever; keeps what was sent."""

    def __init__(self, *plan):
        self.plan = list(plan)
        self.bodies = []
        self.headers = []
        self.left = 0
        self.let_go = asyncio.Event()

    async def __aenter__(self):
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", self.answer)])
        self._server = TestServer(app)
        await self._server.start_server()
        return self

    async def __aexit__(self, *_error):
        await self._server.close()

    @property
    def port(self):
        return self._server.port

    async def answer(self, request):
        self.bodies.append(await request.json())
        self.headers.append(request.headers)
        answer = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
        return await answer(self, request)


def refusing(status=503, code="server_is_overloaded", **headers):
    async def answer(_server, _request):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response({"error": {"code": code, "type": "x"}}, status=status, headers=named)

    return answer


async def opened(request):
    response = web.StreamResponse(headers={"x-forebay-lane": "interactive", "x-forebay-queue-ms": "12"})
    await response.prepare(request)
    return response


def event(**body):
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def text(content):
    return event(choices=[{"index": 0, "delta": {"content": content}}], usage=None)


OPENING = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
ENDING = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
USAGE = event(choices=[], usage={"completion_tokens": 5})
DONE = b"data: [DONE]\n\n"


def streaming(*blocks):
    async def answer(_server, request):
        response = await opened(request)
        for block in blocks:
            await response.write(block)
        await response.write_eof()
        return response

    return answer


COMPLETE = streaming(b": keep-alive\n\n", OPENING, text("a"), text("b") + text("c"), ENDING, USAGE + DONE)


async def standing(server, request):
    """Give one token, and no more until the test lets go."""
    response = await opened(request)
    await response.write(text("a"))
    try:
        await server.let_go.wait()
    except asyncio.CancelledError:
        server.left += 1
        raise
    await response.write(text("b") + USAGE + DONE)
    return response


def ticking():
    """A clock that moves on by one second with each look."""
    moments = iter(range(1_000_000))
    return lambda: float(next(moments))


def sleeping(waits):
    async def sleep(seconds):
        waits.append(seconds)

    return sleep


async def test_an_answer_leaves_a_record_with_a_time_for_every_piece_of_text():
    async with FalseServer(COMPLETE) as server, Client(server.port, "demo", now=ticking()) as client:
        record = await client.ask(ASK)
    assert record.outcome == "completed"
    assert record.status == 200
    assert record.tokens == 5
    assert len(record.text_times) == 3
    assert record.first_token_at == record.text_times[0]
    assert record.sent_at < record.attempts[0].answered_at < record.text_times[0] < record.ended_at
    assert (record.lane_served, record.queue_ms) == ("interactive", 12.0)
    assert client.records == [record]


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_events_that_come_in_bits_count_from_when_they_are_whole(size):
    watch = _Watch("a-1", 0.0)
    stream = OPENING + text("a") + b": keep-alive\n\n" + text("b") + USAGE + DONE
    for begin in range(0, len(stream), size):
        watch.came(stream[begin : begin + size], float(begin))
    last_of_first = len(OPENING + text("a")) - 1
    assert watch.text_times[0] == last_of_first // size * size
    assert (watch.outcome, watch.tokens, len(watch.text_times)) == ("completed", 5, 2)


async def test_a_request_says_its_lane_its_key_and_a_name_of_its_own():
    asks = [ASK, Ask("Hello.", 3, lane="batch", key="fb-1"), Ask("Hello.", 3, lane="night")]
    async with FalseServer(COMPLETE) as server, Client(server.port, "demo", label="me") as client:
        names = [(await client.ask(ask)).name for ask in asks]
    assert names == ["me-1", "me-2", "me-3"] == [headers["x-request-id"] for headers in server.headers]
    assert [body.get("service_tier") for body in server.bodies] == [None, "flex", None]
    assert [headers.get("x-forebay-lane") for headers in server.headers] == [None, None, "night"]
    assert [headers.get("Authorization") for headers in server.headers] == [None, "Bearer fb-1", None]
    assert server.bodies[0] == {
        "model": "demo",
        "messages": [{"role": "user", "content": "Hello."}],
        "temperature": 0,
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_a_refusal_is_obeyed_for_as_long_as_it_says():
    waits = []
    plan = (
        refusing(503, Retry_After="3", retry_after_ms="2500"),
        refusing(429, code="rate_limit_exceeded", Retry_After="7"),
        COMPLETE,
    )
    async with (
        FalseServer(*plan) as server,
        Client(server.port, "demo", attempts_max=5, sleep=sleeping(waits)) as client,
    ):
        record = await client.ask(ASK)
    assert waits == [2.5, 7.0]
    assert record.outcome == "completed"
    assert [attempt.status for attempt in record.attempts] == [503, 429, 200]
    assert [attempt.code for attempt in record.attempts] == [
        "server_is_overloaded",
        "rate_limit_exceeded",
        "",
    ]
    assert record.scheduled_at == record.attempts[0].sent_at
    assert record.sent_at == record.attempts[2].sent_at
    assert len({attempt.name for attempt in record.attempts}) == 3


async def test_attempts_and_waits_are_bounded():
    waits = []
    async with (
        FalseServer(refusing(retry_after_ms="9000000")) as server,
        Client(server.port, "demo", attempts_max=3, sleep=sleeping(waits)) as client,
    ):
        record = await client.ask(ASK)
    assert waits == [60.0, 60.0]
    assert (record.outcome, record.code, len(record.attempts)) == ("refused", "server_is_overloaded", 3)
    assert record.retry_after_s == 9000.0


@pytest.mark.parametrize(
    ("answer", "outcome", "code"),
    [
        (refusing(503), "refused", "server_is_overloaded"),
        (refusing(400, code="context_length_exceeded", Retry_After="1"), "failed", "context_length_exceeded"),
        (refusing(503, x_forebay_dropped_reason="draining"), "refused", "draining"),
        (streaming(OPENING, text("a")), "failed", "incomplete"),
        (streaming(text("a"), event(error={"code": "worker_crashed"})), "failed", "worker_crashed"),
    ],
)
async def test_only_a_refusal_with_a_time_to_come_back_is_sent_again(answer, outcome, code):
    async with FalseServer(answer) as server, Client(server.port, "demo", attempts_max=9) as client:
        record = await client.ask(ASK)
    assert (record.outcome, record.code, len(record.attempts)) == (outcome, code, 1)


async def test_a_server_that_is_not_there_is_a_failure_and_no_exception():
    async with FalseServer(COMPLETE) as server:
        port = server.port
    async with Client(port, "demo") as client:
        record = await client.ask(ASK)
    assert (record.outcome, record.code, record.status) == ("failed", "connection", 0)
    assert record.attempts[0].answered_at is None


async def test_a_request_that_is_cancelled_leaves_the_server_and_a_record_of_what_came():
    async with FalseServer(standing) as server, Client(server.port, "demo") as client:
        asking = asyncio.create_task(client.ask(ASK))
        await until(lambda: server.bodies != [])
        assert client.live == 1
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: server.left == 1)
        assert client.live == 0
    assert [record.outcome for record in client.take()] == ["cut"]
    assert client.records == []


def test_milliseconds_are_believed_before_seconds_and_nonsense_not_at_all():
    assert retry_after_s({"retry-after-ms": "1500", "Retry-After": "2"}) == 1.5
    assert retry_after_s({"retry-after-ms": "soon", "Retry-After": "2"}) == 2.0
    assert retry_after_s({"Retry-After": "Wed, 21 Oct"}) is None
    assert retry_after_s({}) is None


# --- loops ------------------------------------------------------------------------------------------------


async def test_an_open_loop_sends_the_next_though_nothing_has_ended():
    async with FalseServer(standing) as server, Client(server.port, "demo") as client:
        began = time.monotonic()
        timetable = [(0.0, ASK), (0.0, ASK), (0.001, ASK)]
        sending = asyncio.create_task(open_loop(client, timetable, began=began, patience_s=60))
        await until(lambda: len(server.bodies) == 3)
        server.let_go.set()
        records = await sending
    assert [record.outcome for record in records] == ["completed"] * 3
    assert sorted(record.scheduled_at for record in records) == [began, began, began + 0.001]
    assert all(record.sent_at >= record.scheduled_at for record in records)


async def test_an_open_loop_cuts_what_does_not_end():
    async with FalseServer(standing) as server, Client(server.port, "demo") as client:
        records = await open_loop(client, [(0.0, ASK)], began=time.monotonic(), patience_s=0.01)
    assert [record.outcome for record in records] == ["cut"]


async def test_a_closed_loop_keeps_its_streams_busy_and_cuts_them_at_its_end():
    async with FalseServer(COMPLETE, COMPLETE, standing) as server, Client(server.port, "demo") as client:
        async with closed_loop(client, lambda: ASK, 2):
            await until(lambda: len(server.bodies) == 4)
            assert client.live == 2
        assert sorted(record.outcome for record in client.take()) == ["completed", "completed", "cut", "cut"]


async def test_a_closed_loop_with_patience_lets_its_last_requests_end_and_sends_no_more():
    async with FalseServer(standing) as server, Client(server.port, "demo") as client:
        async with closed_loop(client, lambda: ASK, 2, patience_s=60):
            await until(lambda: len(server.bodies) == 2)
            server.let_go.set()
        outcomes = {record.outcome for record in client.take()}
        assert outcomes == {"completed"}
        assert len(server.bodies) == 2


async def test_what_breaks_inside_a_loop_is_raised_at_its_end():
    def broken():
        raise KeyError("a bug")

    async with FalseServer(COMPLETE) as server, Client(server.port, "demo") as client:
        with pytest.raises(KeyError, match="a bug"):
            async with closed_loop(client, broken, 1):
                await asyncio.sleep(0)
