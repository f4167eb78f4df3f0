"""Over HTTP when something is lost: workers that die, clients that leave, a server that ends."""

import asyncio

import pytest

from tests.proxy.small_gateway import CHAT, COMPLETIONS, TEXT, chat, completion, gateway, ids, request
from tests.waiting import until

TOKENS = len(ids(TEXT))
STREAMED_OR_NOT = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture
async def here(tmp_path):
    async with gateway(tmp_path) as running:
        await running.start_worker()
        yield running


def read(answered, stream):
    """Return (text, reason) of a complete answer."""
    assert answered.status == 200
    if not stream:
        return answered.text, answered.body["choices"][0]["finish_reason"]
    assert answered.events[-1] == "DONE"
    return answered.streamed()


# --- deaths -------------------------------------------------------------------------------------------------


@STREAMED_OR_NOT
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_death_at_any_token_leaves_no_trace_in_the_answer(here, path, stream):
    body = chat if path == CHAT else completion
    for position in range(TOKENS + 1):
        here.worker.pause_at = position
        asked = here.asking(path, body(max_tokens=20, stream=stream))
        await until(lambda position=position: here.paused_at(position))
        await here.replace_worker()
        assert read(await asked, stream) == (TEXT, "stop")
        (submit,) = here.worker.submits
        assert (submit.attempt, len(submit.emitted_ids)) == (2, position)
    await here.idle()


@STREAMED_OR_NOT
async def test_a_death_after_the_last_token_allowed_needs_no_worker_at_all(here, stream):
    here.worker.pause_at = TOKENS
    asked = here.asking(CHAT, chat(max_tokens=TOKENS, stream=stream))
    await until(lambda: here.paused_at(TOKENS))
    await here.kill_worker()
    assert read(await asked, stream) == (TEXT, "length")


@STREAMED_OR_NOT
async def test_an_answer_survives_two_deaths(here, stream):
    here.worker.pause_at = 3
    asked = here.asking(CHAT, chat(max_tokens=20, stream=stream))
    for position in (3, 7):
        await until(lambda position=position: here.paused_at(position))
        await here.replace_worker(pause_at=7 if position == 3 else None)
    answered = await asked
    assert read(answered, stream) == (TEXT, "stop")
    assert answered.headers["x-forebay-attempts"] == ("1" if stream else "3")


@STREAMED_OR_NOT
@pytest.mark.parametrize("position", [0, 5])
async def test_a_third_death_ends_the_request_and_never_looks_complete(here, stream, position):
    here.worker.pause_at = position
    asked = here.asking(CHAT, chat(max_tokens=20, stream=stream, stream_options=None))
    for _ in range(2):
        await until(lambda: here.paused_at(position))
        await here.replace_worker(pause_at=position)
    await until(lambda: here.paused_at(position))
    await here.kill_worker()
    answered = await asked
    if stream and position:
        assert answered.status == 200
        *chunks, last = answered.events
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "hélo"
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
        assert last["error"]["code"] == "worker_crashed"
    else:
        assert (answered.status, answered.error["code"]) == (503, "worker_crashed")
        assert 1 <= int(answered.headers["Retry-After"]) <= 60
    assert here.live == 0


async def test_a_stop_string_that_a_death_cut_in_two_is_found(here):
    here.answer = lambda _submit: ids("one END two")
    here.worker.pause_at = 6
    asked = here.asking(COMPLETIONS, completion(max_tokens=20, stop="END", stream=True))
    await until(lambda: here.paused_at(6))
    await here.replace_worker()
    assert read(await asked, True) == ("one ", "stop")
    await here.idle()


async def test_all_answers_of_a_request_go_on_after_a_death(here):
    here.worker.pause_at = 5
    asked = here.asking(COMPLETIONS, completion(prompt=["a", "b"], n=2, max_tokens=20, stream=True))
    await until(lambda: len(here.worker.rows) == 4 and here.paused_at(5))
    await here.replace_worker()
    answered = await asked
    assert [answered.streamed(index) for index in range(4)] == [(TEXT, "stop")] * 4


async def test_requests_that_come_while_the_worker_restarts_wait_for_it(here):
    await here.kill_worker()
    asked = [here.asking(CHAT, chat(max_tokens=20, stream=number == 0)) for number in range(3)]
    await until(lambda: here.live == 3)
    await here.start_worker()
    answers = await asyncio.gather(*asked)
    assert [read(answer, number == 0) for number, answer in enumerate(answers)] == [(TEXT, "stop")] * 3


async def test_a_worker_that_says_hello_again_is_given_its_work_again(here):
    """It missed pings, thought the proxy was gone, and cancelled everything."""
    here.worker.pause_at = 4
    asked = here.asking(CHAT, chat(max_tokens=20, stream=True))
    await until(lambda: here.paused_at(4))
    here.worker.rows.clear()
    here.worker.pause_at = None
    here.worker.greet()
    assert read(await asked, True) == (TEXT, "stop")


# --- clients that leave -------------------------------------------------------------------------------------


async def ask_raw(here, body):
    reader, writer = await here.raw()
    writer.write(request(CHAT, body))
    await writer.drain()
    return reader, writer


async def leave(writer):
    writer.close()
    await writer.wait_closed()


@STREAMED_OR_NOT
@pytest.mark.parametrize("position", [0, 1, 6])
async def test_a_client_that_leaves_has_its_row_cancelled_at_once(here, stream, position):
    here.worker.pause_at = position
    _, writer = await ask_raw(here, chat(max_tokens=40, stream=stream))
    await until(lambda: here.paused_at(position))
    (name,) = here.worker.rows
    await leave(writer)
    await until(lambda: here.worker.cancelled == [name])
    await here.idle()


async def test_a_client_that_leaves_after_reading_some_has_its_row_cancelled(here):
    here.answer = lambda _submit: ids("a" * 40)
    here.worker.pause_at = 6
    reader, writer = await ask_raw(here, chat(max_tokens=40, stream=True))
    await reader.readuntil(b'"content":"a')
    await leave(writer)
    await here.idle()
    assert len(here.worker.cancelled) == 1


async def test_all_answers_of_a_client_that_leaves_are_cancelled(here):
    here.worker.pause_at = 2
    _, writer = await ask_raw(here, chat(max_tokens=40, n=3, stream=True))
    await until(lambda: len(here.worker.rows) == 3)
    names = sorted(here.worker.rows)
    await leave(writer)
    await until(lambda: sorted(here.worker.cancelled) == names)
    await here.idle()


@STREAMED_OR_NOT
async def test_a_client_that_leaves_the_queue_never_reaches_the_worker(here, stream):
    here.worker.pause_at = 1
    running = [here.asking(CHAT, chat(max_tokens=20)) for _ in range(4)]
    await until(lambda: here.live == 4)
    _, writer = await ask_raw(here, chat(max_tokens=40, stream=stream))
    await until(lambda: here.live == 5)
    await leave(writer)
    await until(lambda: here.live == 4)
    here.worker.pause_at = None
    await asyncio.gather(*running)
    await here.idle()
    assert (len(here.worker.submits), here.worker.cancelled) == (4, [])


async def test_a_client_that_leaves_while_the_worker_restarts_is_not_resumed(here):
    here.worker.pause_at = 3
    _, writer = await ask_raw(here, chat(max_tokens=40, stream=True))
    await until(lambda: here.paused_at(3))
    await here.kill_worker()
    await leave(writer)
    await until(lambda: here.live == 0)
    await here.start_worker()
    assert (await here.post(CHAT, chat(max_tokens=20))).text == TEXT
    assert len(here.worker.submits) == 1


async def test_fifty_clients_that_come_and_go_leave_nothing_behind(here):
    here.answer = lambda _submit: ids("a" * 40)
    for number in range(50):
        _, writer = await ask_raw(here, chat(max_tokens=40, stream=number % 2 == 0))
        await leave(writer)
    await here.idle()
    here.answer = lambda _submit: ids(TEXT)
    assert (await here.post(CHAT, chat(max_tokens=20))).text == TEXT


# --- waiting ------------------------------------------------------------------------------------------------


async def test_a_stream_that_waits_is_kept_alive_with_comments(here, monkeypatch):
    monkeypatch.setattr("proxy.stream.KEEPALIVE_INTERVAL_S", 0.01)
    here.worker.pause_at = 0
    reader, writer = await ask_raw(here, chat(max_tokens=20, stream=True))
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"200 OK" in head
    for _ in range(3):
        await reader.readuntil(b": keep-alive\n\n")
    here.worker.pause_at = None
    assert b'"finish_reason":"stop"' in await reader.readuntil(b"data: [DONE]\n\n")
    await leave(writer)


async def test_what_is_kept_alive_is_the_same_answer(here, monkeypatch):
    monkeypatch.setattr("proxy.stream.KEEPALIVE_INTERVAL_S", 0.001)
    here.worker.pause_at = 5
    asked = here.asking(CHAT, chat(max_tokens=20, stream=True))
    await until(lambda: here.paused_at(5))
    await here.replace_worker()
    answered = await asked
    assert read(answered, True) == (TEXT, "stop")
    assert ": keep-alive" in answered.blocks


async def test_a_failure_after_the_first_comment_is_an_event_without_done(here, monkeypatch):
    monkeypatch.setattr("proxy.stream.KEEPALIVE_INTERVAL_S", 0.001)
    here.worker.pause_at = 0
    asked = here.asking(CHAT, chat(max_tokens=20, stream=True))
    for _ in range(2):
        await until(lambda: here.paused_at(0))
        await here.replace_worker(pause_at=0)
    await until(lambda: here.paused_at(0))
    await here.kill_worker()
    answered = await asked
    assert answered.status == 200
    assert answered.events[-1]["error"]["code"] == "worker_crashed"
    assert "DONE" not in answered.events


async def test_an_error_that_nobody_foresaw_cuts_the_stream_so_that_it_does_not_look_complete(
    here, monkeypatch
):
    """No second response may be written into the first one's body."""
    here.worker.pause_at = 3
    reader, writer = await ask_raw(here, chat(max_tokens=20, stream=True))
    await reader.readuntil(b'"content":"h')

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("proxy.answer_text.AnswerText.feed", broken)
    here.worker.pause_at = None
    rest = await reader.read()
    assert b"HTTP/1.1" not in rest
    assert b"[DONE]" not in rest
    assert not rest.endswith(b"0\r\n\r\n")
    await leave(writer)
    await here.idle()


# --- the end ------------------------------------------------------------------------------------------------


async def test_a_server_that_is_told_to_stop_finishes_what_runs_and_takes_nothing_new(here):
    here.worker.pause_at = 4
    running = [here.asking(CHAT, chat(max_tokens=20, stream=number == 0)) for number in range(2)]
    await until(lambda: len(here.worker.rows) == 2 and here.paused_at(4))
    here.stop.ask(at_once=False)
    await until(lambda: here.proxy.dispatcher.draining)
    refused = await here.post(CHAT, chat())
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert not here.serving.done()
    here.worker.pause_at = None
    answers = await asyncio.gather(*running)
    assert [read(answer, number == 0) for number, answer in enumerate(answers)] == [(TEXT, "stop")] * 2
    await until(here.serving.done)
    assert here.serving.exception() is None


async def test_a_server_that_is_told_to_stop_resumes_what_a_death_interrupts(here):
    here.worker.pause_at = 4
    running = here.asking(CHAT, chat(max_tokens=20))
    await until(lambda: here.paused_at(4))
    here.stop.ask(at_once=False)
    await until(lambda: here.proxy.dispatcher.draining)
    await here.replace_worker()
    assert read(await running, False) == (TEXT, "stop")
    await until(here.serving.done)


async def test_an_idle_server_stops_at_once(here):
    here.stop.ask(at_once=False)
    await until(here.serving.done)
    assert here.serving.exception() is None


async def test_a_link_that_fails_ends_the_server(here):
    """Or it would take requests that nobody can answer."""

    async def broken():
        raise OSError("the socket is gone")

    here.proxy.link._channel.receive = broken
    here.supervisor.send(b"")
    await until(here.serving.done)
    assert here.serving.exception().subgroup(OSError)
    here.serving = asyncio.create_task(asyncio.sleep(0))


async def test_a_drain_ends_when_the_link_fails_for_nobody_is_left_to_finish_anything(tmp_path, monkeypatch):
    """Ten minutes are allowed here, which the test's own limit is far below."""
    monkeypatch.setattr("proxy.app._SHUTDOWN_S", 0.1)
    async with gateway(tmp_path, drain_s=600) as here:
        await here.start_worker(pause_at=1)
        running = here.asking(COMPLETIONS, completion(max_tokens=12))
        await until(lambda: here.worker.paused_at(1))
        here.stop.ask(at_once=False)
        await until(lambda: here.proxy.dispatcher.draining)

        def fail(_identity, _frame):
            raise RuntimeError("a bug")

        monkeypatch.setattr(here.proxy.link, "take", fail)
        here.worker.pause_at = None
        with pytest.raises(ExceptionGroup):
            await here.serving
        running.cancel()
        here.serving = asyncio.create_task(asyncio.sleep(0))
