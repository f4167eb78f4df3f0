"""Requests that ended other servers: each gets its right answer, and a good one after it still succeeds."""

import asyncio
import json

import aiohttp
import pytest

from tests.served.client import MODEL, chat, complete
from tests.served.gateway import wait_until

pytestmark = [pytest.mark.served, pytest.mark.timeout(180)]


def completion(**fields) -> dict:
    return {"model": MODEL, "prompt": "The sun", "max_tokens": 4, **fields}


GOOD = completion(max_tokens=2, temperature=0)


REFUSED = [
    ("completions", completion(prompt=""), "prompt"),
    ("completions", completion(stop=5), "stop"),
    ("completions", completion(stop=[""]), "stop.0"),
    ("completions", completion(seed=2**70), "seed"),
    ("completions", completion(prompt=[1, 999_999]), "prompt"),
    ("completions", completion(logit_bias={"999999": 5}), "logit_bias"),
    ("completions", completion(logit_bias={"5": 101}), "logit_bias"),
    ("completions", completion(logprobs=21), "logprobs"),
    ("completions", completion(repetition_penalty=0), "repetition_penalty"),
    ("chat/completions", chat("x", presence_penalty=2.1), "presence_penalty"),
    ("chat/completions", chat("x", top_logprobs=2), "top_logprobs"),
    ("completions", completion(banana=1), "banana"),
    ("chat/completions", chat("x", response_format={"type": "banana"}), "response_format.type"),
    ("chat/completions", {"model": MODEL, "messages": []}, "messages"),
    ("chat/completions", chat("x", n=0), "n"),
    ("chat/completions", chat("x", max_tokens=0), "max_tokens"),
]

ANSWERED = [
    ("completions", completion(temperature=0.7, top_k=100_000)),
    ("completions", completion(prompt=["a", "b"])),
    ("completions", completion(seed=-1)),
    ("completions", completion(prompt=[7])),
    ("completions", completion(logprobs=20, logit_bias={"0": -100, "49151": 100}, temperature=2)),
    ("completions", completion(repetition_penalty=0.01, presence_penalty=-2, frequency_penalty=2)),
    ("chat/completions", chat("x", n=2, max_tokens=3)),
    ("chat/completions", chat("😀 和", max_tokens=3, temperature=1.5)),
    ("chat/completions", chat("x" * 800, max_tokens=2)),
]


def post(gateway, path: str, body) -> tuple[int, dict]:
    async def send() -> tuple[int, dict]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{gateway.url}/v1/{path}", data=data, headers=headers) as response,
        ):
            return response.status, await response.json()

    return asyncio.run(send())


@pytest.fixture(autouse=True)
def no_worker_died_of_it(gateway):
    yield
    assert gateway.ready_body()["worker"]["deaths"] == 0


@pytest.fixture
def a_good_request_succeeds_afterwards(gateway):
    """For what reaches the worker; what is refused before has so many of these behind it."""
    yield
    status, body = post(gateway, "completions", GOOD)
    assert status == 200, body
    assert body["choices"][0]["text"]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
def test_a_bad_field_is_a_400_that_names_it(gateway, path, body, param):
    status, answer = post(gateway, path, body)
    assert status == 400
    assert answer["error"]["param"].split(".")[0] == param.split(".")[0]


@pytest.mark.parametrize(("path", "body"), ANSWERED)
@pytest.mark.usefixtures("a_good_request_succeeds_afterwards")
def test_what_is_odd_but_allowed_is_answered(gateway, path, body):
    status, answer = post(gateway, path, body)
    assert status == 200, answer
    assert all(choice["finish_reason"] in ("stop", "length") for choice in answer["choices"])


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe", b"[" * 10_000, b'{"model": NaN}', b"", b"[]", b'{"a":1,"a":2}', b'"x"'],
    ids=["not-utf8", "deep", "nan", "empty", "array", "twice", "string"],
)
def test_a_body_that_is_no_json_object_is_a_400(gateway, body):
    status, answer = post(gateway, "completions", body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.usefixtures("a_good_request_succeeds_afterwards")
def test_the_same_prompt_twice_and_less_its_last_token_are_answered(gateway):
    ids = [504, 3575, 314, 260]
    for prompt in (ids, ids, ids[:-1]):
        assert post(gateway, "completions", completion(prompt=prompt))[0] == 200


@pytest.mark.usefixtures("a_good_request_succeeds_afterwards")
def test_a_prompt_over_the_context_is_refused_at_once_also_when_the_server_is_busy(gateway):
    async def while_busy() -> None:
        async with aiohttp.ClientSession() as session:
            url = f"{gateway.url}/v1/chat/completions"
            long = chat("Tell a long story.", max_tokens=200, stream=True)
            async with session.post(url, json=long) as running:
                await running.content.readline()
                too_long = chat("word " * 9000, max_tokens=5)
                async with session.post(url, json=too_long) as refused:
                    assert refused.status == 400
                    error = (await refused.json())["error"]
                    assert error["code"] == "context_length_exceeded"
                    assert "8192" in error["message"]

    asyncio.run(while_busy())


async def leave(gateway, body: dict, *, after_first_line: bool) -> None:
    """Send a request and close the connection: after its first line, or right away."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    writer.write(head.encode() + data)
    await writer.drain()
    if after_first_line:
        await reader.readline()
    else:
        await asyncio.sleep(0.3)
    writer.transport.abort()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.usefixtures("a_good_request_succeeds_afterwards")
def test_a_client_that_leaves_gives_its_row_and_bytes_back(gateway, stream):
    """Running, prefilling and queued: twenty answers are more than the batch has rows."""

    async def all_leave() -> None:
        body = chat("Tell a very long story. " * 30, max_tokens=1000, stream=stream)
        await asyncio.gather(*(leave(gateway, body, after_first_line=False) for _ in range(20)))

    asyncio.run(all_leave())
    wait_until(lambda: gateway.ready_body()["live"] == 0, "no answer is live")
    assert gateway.ready_body()["reserved_bytes"] == 0


@pytest.mark.usefixtures("a_good_request_succeeds_afterwards")
def test_fifty_clients_that_connect_and_close_leave_nothing_behind(gateway):
    async def come_and_go() -> None:
        body = chat("Hello.", max_tokens=100, stream=True)
        for _ in range(50):
            await leave(gateway, body, after_first_line=False) if _ % 10 == 0 else await touch()

    async def touch() -> None:
        _reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.close()

    asyncio.run(come_and_go())
    wait_until(lambda: gateway.ready_body()["live"] == 0, "no answer is live")


@pytest.mark.usefixtures("a_good_request_succeeds_afterwards")
def test_a_long_prompt_does_not_stop_the_streams(gateway):
    """While 400 tokens are prefilled, a running stream gets many tokens, not none."""

    async def beside() -> tuple[int, str]:
        url = f"{gateway.url}/v1/chat/completions"
        async with aiohttp.ClientSession() as session:
            running = chat("Tell a long story.", max_tokens=150, stream=True, temperature=0)
            async with session.post(url, json=running) as stream:
                await stream.content.readline()
                long = asyncio.create_task(complete(session, gateway.url, chat("word " * 400, max_tokens=2)))
                lines = 0
                while not long.done():
                    line = await stream.content.readline()
                    lines += line.startswith(b"data: ")
                    if not line:
                        break
                return lines, await long

    lines, _text = asyncio.run(beside())
    assert lines >= 3, "a server that prefills the whole prompt at once gives none, or one"
