"""/v1/messages and its count of tokens: that the count is exact, and how errors look."""

import json

from anthropic.types import MessageTokensCount

from tests.conformance.hostile_rows import head
from tests.conformance.messages_rows import INVALID, THINKS, blocks_of
from tests.conformance.reading import message_events_of, message_of, refused_as, strictly, whole
from tests.conformance.row import ANTHROPIC, MESSAGES, OURS, REPORTED, Section
from tests.conformance.samples import CALL, WEATHER, message_tools
from tests.conformance.world import CONTEXT_TOKENS, COUNT, message, user
from tests.conformance.world import MESSAGES as PATH

SECTION = Section(PATH)
COUNTED = Section(COUNT)
row = SECTION.row
JSON = {"Content-Type": "application/json"}


async def count(here, **fields):
    body = message(**{"max_tokens": ..., **fields})
    return whole(MessageTokensCount, await here.post(COUNT, body)).input_tokens


@COUNTED.row(REPORTED + "tools of 20k tokens were a 400")
async def tools_of_twenty_thousand_tokens_are_taken_and_counted(here):
    tools = message_tools(
        WEATHER, *({**WEATHER, "name": f"t{n}", "description": "d" * 400} for n in range(45))
    )
    counted = await count(here, tools=tools)
    assert counted > 20_000
    assert message_of(await here.message(tools=tools)).usage.input_tokens == counted


@COUNTED.row(ANTHROPIC + "count tokens in a message")
async def the_count_is_what_the_answers_usage_says(here):
    bodies = [
        {},
        {"system": "Be brief."},
        {"tools": message_tools(), "tool_choice": {"type": "any"}},
        {"thinking": THINKS, "messages": [user("x"), {"role": "assistant", "content": "y"}, user("z")]},
    ]
    here.say(CALL)
    for body in bodies:
        usage = message_of(await here.message(**body, max_tokens=2000)).usage
        assert await count(here, **body) == usage.input_tokens
    assert await count(here, messages=[user("x" * 2 * CONTEXT_TOKENS)]) > 2 * CONTEXT_TOKENS


@row(ANTHROPIC + "errors: the error object")
async def errors_have_anthropics_shape(here):
    refused_as(await here.message(messages=[]), 400, INVALID)
    refused_as(await here.message(model="claude"), 404, "not_found_error")
    refused_as(await here.message(stream=True, max_tokens=0), 400, INVALID)
    refused_as(await here.post(PATH, b"{", headers=JSON), 400, INVALID)
    refused_as(await here.message(messages=[user("x" * CONTEXT_TOKENS)]), 400, INVALID)
    refused_as(await here.post("/v1/messages/banana", {}), 404, "not_found_error")
    reader, writer = await here.raw()
    writer.write(head(PATH, "Content-Length: 104857600"))
    status, headers = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n", 1)
    length = int(headers.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    writer.close()
    assert b" 413 " in status
    assert body["error"]["type"] == "request_too_large"


@row(ANTHROPIC + "errors: request-id")
async def every_answer_has_a_request_id(here):
    for fields in ({}, {"stream": True}, {"max_tokens": 0}):
        assert (await here.message(**fields)).headers["request-id"]


@row(ANTHROPIC + "errors: 529 overloaded_error")
async def too_much_is_a_529_that_says_when_to_come_back(here):
    await here.kill_worker()
    answered = await here.message(headers={"x-slo-ttft-ms": "10"})
    await here.start()
    refused_as(answered, 529, "overloaded_error")
    assert int(answered.headers["retry-after"]) >= 1


@row(OURS + "an unknown field is refused by name")
async def an_unknown_field_is_refused_by_name(here):
    assert "banana" in refused_as(await here.message(banana=1), 400, INVALID)


@row(MESSAGES + "messages: errors")
async def bad_messages_are_refused_by_name(here):
    for messages in ("x", [{}], [{"role": "king", "content": "x"}], [user(5)], [user([{"type": "banana"}])]):
        assert "messages" in refused_as(await here.message(messages=messages), 400, INVALID)


@row(REPORTED + "an answer that is empty had no message")
async def an_empty_answer_is_a_message_without_blocks(here):
    here.say("")
    assert message_of(await here.message()).content == []
    assert blocks_of(message_events_of(await here.message(stream=True))) == []


@row(OURS + "a conversation through both vendors' APIs is one prompt")
async def a_prompt_is_the_same_through_either_vendors_api(here):
    message_of(await here.message(system="S", messages=[user("x")]))
    other = await here.chat(messages=[{"role": "system", "content": "S"}, user("x")])
    assert strictly(dict, other.body)
    assert here.submits[0].prompt_ids == here.submits[1].prompt_ids
