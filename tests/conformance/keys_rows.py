"""Keys, quotas and Idempotency-Keys; deaths of the worker; responses that are kept; clients that are slow."""

import contextlib
import tempfile
from pathlib import Path

from tests.conformance.hostile_rows import head
from tests.conformance.reading import chat_of, message_of, refused, refused_as
from tests.conformance.row import ANTHROPIC, OPENAI, OURS, RESPONSES, Section
from tests.conformance.world import (
    CHAT,
    COMPLETIONS,
    COUNT,
    EMBEDDINGS,
    MESSAGES,
    TOKENIZE,
    World,
    chat,
    completion,
    message,
    response,
    world,
)
from tests.conformance.world import RESPONSES as RESPONSES_PATH

SECTION = Section("every endpoint")
row = SECTION.row
BODIES = {CHAT: chat(), COMPLETIONS: completion(), RESPONSES_PATH: response(), MESSAGES: message()}


@contextlib.asynccontextmanager
async def guarded(**bounds):
    """Run a gateway that takes one key only; `headers` show it."""
    with tempfile.TemporaryDirectory(prefix="forebay-keys") as folder:
        async with world(Path(folder), key=bounds) as there:
            await there.begin()
            yield there


@row(OPENAI + "errors, invalid_api_key")
async def without_a_good_key_it_is_a_401(here):
    async with guarded() as there:
        for headers in ({}, {"Authorization": "Bearer sk-wrong"}, {"x-api-key": "wrong"}):
            for path in (CHAT, COMPLETIONS, RESPONSES_PATH, EMBEDDINGS, TOKENIZE):
                refused(await there.post(path, {}, headers=headers), 401, code="invalid_api_key")
        assert chat_of(await there.post(CHAT, chat(), headers=there.key))


@row(ANTHROPIC + "errors, authentication_error")
async def without_a_good_key_it_is_an_authentication_error(here):
    async with guarded() as there:
        for path in (MESSAGES, COUNT):
            refused_as(
                await there.post(path, message(), headers={"x-api-key": "x"}), 401, "authentication_error"
            )
        shown = {"x-api-key": there.key["Authorization"].removeprefix("Bearer ")}
        assert message_of(await there.post(MESSAGES, message(), headers=shown))


@row(OPENAI + "rate limits: 429, Retry-After, x-ratelimit-*")
async def a_key_that_asks_too_often_is_told_when_to_come_back(here):
    async with guarded(requests_per_minute=1) as there:
        first = await there.post(CHAT, chat(), headers=there.key)
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        again = await there.post(CHAT, chat(), headers=there.key)
        refused(again, 429, code="rate_limit_exceeded")
        assert again.error["type"] == "rate_limit_error"
        assert int(again.headers["Retry-After"]) >= 1
        refused_as(await there.post(MESSAGES, message(), headers=there.key), 429, "rate_limit_error")


@row(OURS + "an Idempotency-Key is answered by one run")
async def the_same_question_under_one_idempotency_key_is_answered_once(here):
    for number, (path, body) in enumerate(BODIES.items()):
        headers = {"Idempotency-Key": f"k-{number}"}
        first, second = [await here.post(path, body, headers=headers) for _ in range(2)]
        assert (first.status, first.raw) == (200, second.raw), path
        assert second.headers["x-forebay-idempotent-replay"] == "true"
        assert len(here.submits) == number + 1
        assert (await here.post(path, {**body, "temperature": 0}, headers=headers)).status == 422


@row(OURS + "an answer goes on after the worker's death")
async def an_answer_goes_on_after_the_workers_death_as_if_nothing_had_been(here):
    for path, body in BODIES.items():
        before = (await here.post(path, {**body, "stream": True})).raw.count(b"\n\n")
        here.worker.pause_at = 3
        asked = here.asking(path, {**body, "stream": True})
        await here.reached(3)
        await here.replace_worker()
        assert (await asked).raw.count(b"\n\n") == before, path
        assert len(here.submits[-1].emitted_ids) == 3


@row(OURS + "a grammar goes on after the worker's death")
async def an_answer_of_a_given_form_goes_on_under_the_same_grammar(here):
    here.say('{"a": 5}')
    here.worker.pause_at = 3
    asked = here.asking(CHAT, chat(response_format={"type": "json_object"}))
    await here.reached(3)
    grammar = here.sampling.grammar
    await here.replace_worker()
    assert chat_of(await asked).choices[0].message.content == '{"a": 5}'
    assert here.sampling.grammar == grammar != ""
    assert list(here.submits[-1].emitted_ids) == here.ids('{"a": 5}')[:3]


@row(OURS + "an answer that is cut by deaths never looks whole")
async def a_stream_whose_answer_is_lost_ends_with_an_error_and_no_end(here):
    ends = {
        CHAT: b"[DONE]",
        COMPLETIONS: b"[DONE]",
        RESPONSES_PATH: b"response.completed",
        MESSAGES: b"message_stop",
    }
    for path, body in BODIES.items():
        here.worker.pause_at = 1
        asked = here.asking(path, {**body, "stream": True})
        for index in (1, 2, 3):
            await here.reached(index)
            await here.kill_worker()
            await here.start(pause_at=index + 1)
        raw = (await asked).raw
        assert b"error" in raw, (path, raw)
        assert ends[path] not in raw, path


@row(RESPONSES + "get, delete and list input items")
async def a_stored_response_can_be_read_and_deleted(here):
    made = (await here.respond()).body
    at = f"{RESPONSES_PATH}/{made['id']}"
    assert (await here.get(at)).body == made
    items = (await here.get(f"{at}/input_items")).body
    assert [item["content"][0]["text"] for item in items["data"]] == ["Hi"]
    async with here.session.delete(at) as answered:
        assert (answered.status, (await answered.json())["deleted"]) == (200, True)
    refused(await here.get(at), 404)
    refused(await here.respond(previous_response_id=made["id"]), 400, "previous_response_id")


@row(OURS + "clients that send by drops are ended")
async def headers_and_bodies_that_come_by_drops_are_ended(here):
    with tempfile.TemporaryDirectory(prefix="forebay-slow") as folder:
        async with World(Path(folder) / "small", request_timeout_s=0.3) as there:
            for sent in (b"POST /v1/messages HTTP/1.1\r\nHos", b""):
                reader, writer = await there.raw()
                writer.write(sent)
                assert b" 200 " not in await reader.read()
                writer.close()
            for path in (CHAT, MESSAGES, RESPONSES_PATH):
                reader, writer = await there.raw()
                writer.write(head(path, "Content-Length: 9") + b"{")
                assert b" 408 " in await reader.readuntil(b"\r\n"), path
                writer.close()
