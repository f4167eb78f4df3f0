"""Idempotency-Key over HTTP: one run for all that ask, heard whole by each, stored when it's an answer."""

import asyncio

import pytest

from tests.proxy.small_gateway import (
    CHAT,
    COMPLETIONS,
    TEXT,
    chat,
    completion,
    gateway,
    request,
)
from tests.waiting import until

STREAMED_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
KEY = {"Idempotency-Key": "one"}
REPLAY = "x-forebay-idempotent-replay"


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        yield running


def asked(stream=False, **fields):
    return chat(max_tokens=20, stream=stream, **fields)


def listeners(here):
    """Return how many clients hear each run."""
    return [recording.listeners for recording in here.proxy.keyed._running]


async def ask_and_leave(here, body):
    """Begin a keyed request, wait until it runs, and leave."""
    _, writer = await here.raw()
    writer.write(request(CHAT, body, extra="Idempotency-Key: one\r\n"))
    await until(lambda: here.live and here.paused_at(here.worker.pause_at))
    writer.close()
    await writer.wait_closed()


# --- joining and replaying ----------------------------------------------------------------------------------


@STREAMED_OR_NOT
async def test_twenty_requests_at_once_are_one_submit_and_the_same_bytes(here, stream):
    answers = await asyncio.gather(*(here.post(CHAT, asked(stream), headers=KEY) for _ in range(20)))
    assert len(here.worker.submits) == 1
    assert {answered.status for answered in answers} == {200}
    assert len({answered.raw for answered in answers}) == 1
    assert sorted(answered.headers.get(REPLAY, "") for answered in answers) == [""] + ["true"] * 19
    assert len({answered.headers["x-request-id"] for answered in answers}) == 20
    await here.idle()


@STREAMED_OR_NOT
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat), (COMPLETIONS, completion)])
async def test_the_answer_is_like_one_without_a_key_and_is_replayed_byte_for_byte(here, path, body, stream):
    plain = await here.post(path, body(max_tokens=20, stream=stream))
    first = await here.post(path, body(max_tokens=20, stream=stream), headers=KEY)
    again = await here.post(path, body(max_tokens=20, stream=stream), headers=KEY)
    assert len(here.worker.submits) == 2
    assert (first.status, again.status, again.raw) == (200, 200, first.raw)
    assert REPLAY not in first.headers
    assert again.headers[REPLAY] == "true"
    for name in ("Content-Type", "x-forebay-lane"):
        assert plain.headers[name] == first.headers[name] == again.headers[name]
    assert (first.streamed() if stream else first.text) == (plain.streamed() if stream else plain.text)


async def test_who_joins_in_the_middle_hears_every_byte_from_the_beginning(here):
    here.worker.pause_at = 5
    first = here.asking(CHAT, asked(stream=True), headers=KEY)
    await until(lambda: here.live and here.paused_at(5))
    second = here.asking(CHAT, asked(stream=True), headers=KEY)
    await until(lambda: listeners(here) == [2])
    here.worker.pause_at = None
    one, two = await asyncio.gather(first, second)
    assert one.raw == two.raw
    assert one.streamed() == (TEXT, "stop")
    assert two.headers["x-forebay-lane"] == "interactive"
    assert len(here.worker.submits) == 1


@STREAMED_OR_NOT
async def test_who_comes_back_after_leaving_finds_the_answer_going_on(here, stream):
    here.worker.pause_at = 5
    await ask_and_leave(here, asked(stream))
    await until(lambda: listeners(here) == [0])
    (running,) = here.proxy.keyed._running.values()
    timer = running.timer
    assert timer.when() > asyncio.get_running_loop().time()
    second = here.asking(CHAT, asked(stream), headers=KEY)
    await until(lambda: listeners(here) == [1])
    assert timer.cancelled()
    here.worker.pause_at = None
    answered = await second
    assert (answered.streamed()[0] if stream else answered.text) == TEXT
    assert (len(here.worker.submits), here.worker.cancelled) == (1, [])


async def test_an_answer_that_ends_while_nobody_listens_is_stored(here):
    here.worker.pause_at = 5
    await ask_and_leave(here, asked())
    await until(lambda: listeners(here) == [0])
    here.worker.pause_at = None
    await until(lambda: not here.proxy.keyed._running)
    answered = await here.post(CHAT, asked(), headers=KEY)
    assert (answered.text, answered.headers[REPLAY]) == (TEXT, "true")
    assert len(here.worker.submits) == 1


async def test_an_answer_survives_a_death_of_the_worker_and_is_one_still(here):
    here.worker.pause_at = 5
    both = [here.asking(CHAT, asked(stream=True), headers=KEY) for _ in range(2)]
    await until(lambda: here.live and here.paused_at(5) and listeners(here) == [2])
    await here.replace_worker()
    one, two = await asyncio.gather(*both)
    assert one.raw == two.raw
    assert one.streamed() == (TEXT, "stop")


@STREAMED_OR_NOT
async def test_an_answer_that_nobody_comes_back_for_is_cancelled(tmp_path, stream):
    async with gateway(tmp_path, detached_s=0) as here:
        await here.start_worker(pause_at=5)
        await ask_and_leave(here, asked(stream))
        await until(lambda: len(here.worker.cancelled) == 1)
        here.worker.pause_at = None
        await here.idle()
        answered = await here.post(CHAT, asked(stream), headers=KEY)
        assert (answered.status, REPLAY in answered.headers) == (200, False)
        assert len(here.worker.submits) == 2


async def test_one_listener_who_stays_is_enough(tmp_path):
    async with gateway(tmp_path, detached_s=0) as here:
        await here.start_worker(pause_at=5)
        staying = here.asking(CHAT, asked(), headers=KEY)
        await until(lambda: here.live and here.paused_at(5))
        joined = here.asking(CHAT, asked(), headers=KEY)
        await until(lambda: listeners(here) == [2])
        joined.cancel()
        await until(lambda: listeners(here) == [1])
        here.worker.pause_at = None
        assert (await staying).text == TEXT
        assert here.worker.cancelled == []


async def test_a_keyed_stream_that_waits_is_kept_alive_and_the_comments_are_nobodys_answer(here, monkeypatch):
    monkeypatch.setattr("proxy.playing.KEEPALIVE_INTERVAL_S", 0.01)
    here.worker.pause_at = 0
    reader, writer = await here.raw()
    writer.write(request(CHAT, asked(stream=True), extra="Idempotency-Key: one\r\n"))
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    for _ in range(3):
        await reader.readuntil(b": keep-alive\n\n")
    here.worker.pause_at = None
    await reader.readuntil(b"data: [DONE]\n\n")
    writer.close()
    again = await here.post(CHAT, asked(stream=True), headers=KEY)
    assert again.streamed() == (TEXT, "stop")
    assert ": keep-alive" not in again.blocks


# --- other requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("running", [False, True])
async def test_another_body_under_the_same_key_is_a_422(here, running):
    here.worker.pause_at = 5 if running else None
    first = here.asking(CHAT, asked(), headers=KEY)
    await until(lambda: first.done() or (here.live and here.paused_at(5)))
    for headers, body in ((KEY, asked(seed=1)), (KEY | {"x-forebay-lane": "batch"}, asked())):
        refused = await here.post(CHAT, body, headers=headers)
        assert (refused.status, refused.error["code"]) == (422, "idempotency_key_reused")
        assert refused.error["param"] == "Idempotency-Key"
        assert refused.headers["x-should-retry"] == "false"
    here.worker.pause_at = None
    assert (await first).text == TEXT
    assert len(here.worker.submits) == 1


async def test_the_same_key_at_another_url_is_another_request(here):
    assert (await here.post(CHAT, asked(), headers=KEY)).status == 200
    assert (await here.post(COMPLETIONS, completion(max_tokens=20), headers=KEY)).status == 200
    assert len(here.worker.submits) == 2


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "ü"])
async def test_a_key_that_is_none_is_a_400_that_names_the_header(here, key):
    reader, writer = await here.raw()
    writer.write(request(CHAT, asked(), extra=f"Idempotency-Key: {key}\r\n"))
    assert b" 400 " in await reader.readuntil(b"\r\n")
    assert b"Idempotency-Key" in await reader.readuntil(b'"param": "Idempotency-Key"')
    writer.close()
    assert here.worker.submits == []


async def test_callers_do_not_hear_each_others_answers(tmp_path):
    async with gateway(tmp_path) as here:
        keys = [here.add_key(name) for name in ("one", "two")]
        await here.proxy.admin.reload()
        await here.start_worker()
        answers = [await here.post(CHAT, asked(), headers=KEY | key) for key in keys]
        assert answers[0].body["id"] != answers[1].body["id"]
        assert len(here.worker.submits) == 2
        assert (await here.post(CHAT, asked(), headers=KEY)).status == 401


# --- failures -----------------------------------------------------------------------------------------------


@STREAMED_OR_NOT
@pytest.mark.parametrize("position", [0, 5])
async def test_a_failure_is_told_to_all_who_wait_for_it_and_is_not_stored(here, stream, position):
    here.worker.pause_at = position
    both = [here.asking(CHAT, asked(stream), headers=KEY) for _ in range(2)]
    await until(lambda: here.live and here.paused_at(position) and listeners(here) == [2])
    for _ in range(2):
        await here.replace_worker(pause_at=position)
        await until(lambda: here.paused_at(position))
    await here.kill_worker()
    for answered in await asyncio.gather(*both):
        if stream and position:
            assert (answered.status, answered.events[-1]["error"]["code"]) == (200, "worker_crashed")
        else:
            assert (answered.status, answered.error["code"]) == (503, "worker_crashed")
    await here.start_worker()
    answered = await here.post(CHAT, asked(stream), headers=KEY)
    assert (answered.streamed()[0] if stream else answered.text) == TEXT
    assert REPLAY not in answered.headers


async def test_a_failure_after_a_comment_is_an_event_for_who_got_the_comment(here, monkeypatch):
    monkeypatch.setattr("proxy.playing.KEEPALIVE_INTERVAL_S", 0.001)
    here.worker.pause_at = 0
    waiting = here.asking(CHAT, asked(stream=True), headers=KEY)
    for _ in range(2):
        await until(lambda: here.live and here.paused_at(0))
        await here.replace_worker(pause_at=0)
    await until(lambda: here.paused_at(0))
    await here.kill_worker()
    answered = await waiting
    assert answered.status == 200
    assert answered.events == [answered.events[-1]]
    assert answered.events[-1]["error"]["code"] == "worker_crashed"


async def test_an_error_that_nobody_foresaw_is_a_500_for_all_and_the_next_try_runs(here, monkeypatch):
    here.worker.pause_at = 3
    both = [here.asking(CHAT, asked(), headers=KEY) for _ in range(2)]
    await until(lambda: here.live and here.paused_at(3) and listeners(here) == [2])

    def broken(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("proxy.answer_text.AnswerText.feed", broken)
        here.worker.pause_at = None
        assert [answered.status for answered in await asyncio.gather(*both)] == [500, 500]
    await here.idle()
    assert (await here.post(CHAT, asked(), headers=KEY)).text == TEXT


async def test_what_is_refused_for_now_is_not_stored(tmp_path):
    async with gateway(tmp_path) as here:
        refused = await here.post(CHAT, asked(), headers=KEY)
        assert (refused.status, refused.error["code"]) == (503, "loading")
        await here.start_worker()
        assert (await here.post(CHAT, asked(), headers=KEY)).text == TEXT


async def test_what_is_wrong_in_itself_is_stored_until_the_rules_change(here):
    first = await here.post(CHAT, asked(temperature=-1), headers=KEY)
    again = await here.post(CHAT, asked(temperature=-1), headers=KEY)
    assert (first.status, REPLAY in first.headers) == (400, False)
    assert (again.status, again.raw, again.headers[REPLAY]) == (400, first.raw, "true")
    assert (await here.post(CHAT, asked(), headers=KEY)).status == 422
    await here.proxy.admin.reload()
    anew = await here.post(CHAT, asked(temperature=-1), headers=KEY)
    assert (anew.status, REPLAY in anew.headers) == (400, False)


async def test_what_is_wrong_with_a_header_beside_the_key_is_not_stored(here):
    """It isn't part of what is asked, and the next try may come without it."""
    wrong = await here.post(CHAT, asked(), headers=KEY | {"x-slo-ttft-ms": "soon"})
    assert (wrong.status, wrong.error["param"]) == (400, "x-slo-ttft-ms")
    assert (await here.post(CHAT, asked(), headers=KEY)).text == TEXT


async def test_what_is_too_long_is_judged_anew_each_time(here):
    for _ in range(2):
        refused = await here.post(CHAT, chat(max_tokens=6000), headers=KEY)
        assert (refused.error["code"], REPLAY in refused.headers) == ("context_length_exceeded", False)
