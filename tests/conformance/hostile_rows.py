"""Bodies and connections of clients that mean no good or know no better, at every endpoint with a body."""

import asyncio
import json

from tests.conformance.row import OURS, REPORTED, Section
from tests.conformance.world import (
    CHAT,
    COMPLETIONS,
    COUNT,
    DETOKENIZE,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    SAID,
    TOKENIZE,
    chat,
    completion,
    message,
    response,
    user,
)

SECTION = Section("every endpoint")
row = SECTION.row
PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT, EMBEDDINGS, TOKENIZE, DETOKENIZE)
JSON = {"Content-Type": "application/json"}


async def all_refuse(here, raw: bytes, status: int, headers=JSON) -> None:
    """Check that every endpoint refuses a body with this status, in words, and goes on."""
    for path in PATHS:
        answered = await here.post(path, raw, headers=headers)
        assert answered.status == status, (path, answered.status, answered.raw)
        assert answered.error["message"], path
        assert answered.headers["x-request-id"], path
    assert (await here.post(CHAT, chat())).text == SAID


@row(REPORTED + "a body that isn't UTF-8 was a 500")
async def a_body_that_isnt_utf8_is_refused(here):
    await all_refuse(here, b'{"model": "\xff\xfe"}', 400)


@row(REPORTED + "JSON of ten thousand levels ended the process")
async def json_of_ten_thousand_levels_is_refused(here):
    await all_refuse(here, b'{"model":' * 10_000 + b"1" + b"}" * 10_000, 400)
    await all_refuse(here, b"[" * 10_000, 400)


@row(REPORTED + "a key that came twice was taken once")
async def keys_that_come_twice_are_refused(here):
    await all_refuse(here, b'{"model": "small", "model": "small"}', 400)


@row(REPORTED + "NaN and Infinity were numbers")
async def numbers_that_json_doesnt_have_are_refused(here):
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"01", b".5"):
        await all_refuse(here, b'{"model": "small", "temperature": %b}' % number, 400)


@row(OURS + "what is no JSON object is refused")
async def what_is_no_json_object_is_refused(here):
    for raw in (
        b"",
        b"[]",
        b'"x"',
        b"null",
        b"{",
        b'{"a": 1}}',
        b"{'a': 1}",
        b"\xef\xbb\xbf{}",
        b'{"a": "\\ud800"}',
    ):
        await all_refuse(here, raw, 400)


@row(REPORTED + "a body of another type was parsed, or a 500")
async def a_body_of_another_type_is_a_415(here):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        await all_refuse(here, b"{}", 415, {"Content-Type": kind})


@row(REPORTED + "a body of 100 MB was read")
async def a_body_that_is_too_large_is_a_413_before_it_is_read(here):
    for path in PATHS:
        reader, writer = await here.raw()
        writer.write(head(path, "Content-Length: 104857600"))
        assert b" 413 " in await reader.readuntil(b"\r\n"), path
        writer.close()


@row(REPORTED + "a body in chunks was a 411")
async def a_body_in_chunks_is_read(here):
    raw = json.dumps(chat()).encode()
    reader, writer = await here.raw()
    pieces = b"".join(b"%x\r\n%b\r\n" % (1, raw[place : place + 1]) for place in range(len(raw)))
    writer.write(head(CHAT, "Transfer-Encoding: chunked") + pieces + b"0\r\n\r\n")
    assert b" 200 " in await reader.readuntil(b"\r\n")
    writer.close()


@row(REPORTED + "a client that waited for 100 Continue waited for ever")
async def a_client_that_waits_for_leave_to_send_gets_it(here):
    raw = json.dumps(completion()).encode()
    reader, writer = await here.raw()
    writer.write(head(COMPLETIONS, f"Content-Length: {len(raw)}\r\nExpect: 100-continue"))
    assert b" 100 " in await reader.readuntil(b"\r\n")
    writer.write(raw)
    await reader.readuntil(b"\r\n")
    assert b" 200 " in await reader.readuntil(b"\r\n")
    writer.close()


@row(OURS + "headers are bounded")
async def headers_that_are_too_long_are_refused(here):
    for extra in ("X-A: " + "a" * 100_000, "\r\n".join(f"X-{n}: a" for n in range(40_000))):
        reader, writer = await here.raw()
        writer.write(head(CHAT, extra))
        line = await reader.readline()
        assert line.split(b" ")[1].startswith(b"4"), line
        writer.close()


@row(OURS + "a method that a URL doesn't take is a 405, an unknown URL a 404")
async def wrong_methods_and_unknown_urls_are_refused(here):
    for path in PATHS:
        answered = await here.get(path)
        assert (answered.status, bool(answered.error["message"])) == (405, True), path
        assert "POST" in answered.headers["Allow"]
    for path in ("/v1/banana", "/v1/chat", "/", "/v1/messages/banana"):
        answered = await here.post(path, {})
        assert answered.status in (404, 405), path


@row(OURS + "the depth of what is valid is bounded")
async def deep_but_valid_fields_are_refused_everywhere(here):
    deep = []
    for _ in range(200):
        deep = [deep]
    bodies = [
        (CHAT, chat(metadata=deep)),
        (CHAT, chat(tools=deep)),
        (COMPLETIONS, completion(prompt=deep)),
        (RESPONSES, response(input=deep)),
        (MESSAGES, message(messages=[user(deep)])),
    ]
    for path, body in bodies:
        assert (await here.post(path, body)).status == 400, path


@row(OURS + "many small things are bounded")
async def very_many_of_anything_are_refused_or_answered(here):
    many = {
        CHAT: [
            chat(messages=[user("x")] * 5000),
            chat(tools=[{"type": "function", "function": {"name": f"f{n}"}} for n in range(5000)]),
            chat(stop=["a"] * 1000),
            chat(logit_bias={str(n): 1 for n in range(200)} | {str(n): 1 for n in range(300, 700)}),
            chat(metadata={str(n): "x" for n in range(5000)}),
        ],
        COMPLETIONS: [completion(prompt=["a"] * 5000), completion(prompt=[["a"]])],
        MESSAGES: [message(messages=[user("x")] * 5000), message(stop_sequences=["a"] * 5000)],
        RESPONSES: [response(input=[user("x")] * 5000)],
    }
    for path, bodies in many.items():
        for body in bodies:
            assert (await here.post(path, body)).status in (200, 400), path
    assert (await here.post(CHAT, chat())).text == SAID


@row(OURS + "odd texts are texts")
async def odd_characters_are_answered(here):
    for text in (
        "\u0000",
        "\u202e\ufeff",
        "\U0001f468\u200d\U0001f469",
        "a" * 10_000,
        "<|im_end|>",
        "{{ 7*7 }}",
        "{% x",
    ):
        assert (await here.post(CHAT, chat(messages=[user(text)]))).status in (200, 400), text


@row(REPORTED + "fifty clients that came and left took all places")
async def clients_that_come_and_leave_leave_nothing_behind(here):
    for _ in range(50):
        _reader, writer = await here.raw()
        writer.write(head(CHAT, "Content-Length: 100")[:20])
        writer.close()
    tasks = [here.asking(path, body) for path, body in ((CHAT, chat(stream=True)), (MESSAGES, message())) * 5]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await here.idle()
    assert (await here.post(CHAT, chat())).text == SAID


def head(path: str, extra: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{extra}\r\n\r\n".encode()
