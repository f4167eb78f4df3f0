"""Anthropic's package: messages, their stream, tools, thoughts, counting, errors."""

import json

import anthropic
import pytest
import pytest_asyncio
from pydantic import BaseModel

from tests.conformance.samples import CALLS, PARIS, THOUGHT, THOUGHTFUL, message_tools
from tests.conformance.world import SAID, message, user

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASKED = {"model": "small", "messages": [user("Hi")], "max_tokens": 2000}
THINKS = {"type": "enabled", "budget_tokens": 1024}


class Weather(BaseModel):
    city: str


@pytest_asyncio.fixture(loop_scope="module")
async def client(here):
    async with anthropic.AsyncAnthropic(base_url=here.url, api_key="none", max_retries=0) as client:
        yield client


async def test_a_message_comes_whole_and_streamed(here, client):
    whole = await client.messages.create(**ASKED)
    async with client.messages.stream(**ASKED) as stream:
        text = "".join([text async for text in stream.text_stream])
        streamed = await stream.get_final_message()
    assert whole.content[0].text == text == streamed.content[0].text == SAID
    assert streamed.usage.output_tokens == whole.usage.output_tokens


async def test_streamed_thoughts_and_calls_are_put_together_by_the_package(here, client):
    here.say(f"{THOUGHTFUL}I'll look.\n{CALLS}")
    async with client.messages.stream(**ASKED, thinking=THINKS, tools=message_tools()) as stream:
        streamed = await stream.get_final_message()
    assert [block.type for block in streamed.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert streamed.content[0].thinking.strip() == THOUGHT
    assert [block.input for block in streamed.content[2:]] == [json.loads(PARIS), {"zone": "UTC"}]
    assert streamed.stop_reason == "tool_use"


async def test_a_conversation_with_results_goes_on(here, client):
    here.say(THOUGHTFUL + CALLS)
    first = await client.messages.create(**ASKED, thinking=THINKS, tools=message_tools())
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": f"result {place}"}
        for place, block in enumerate(block for block in first.content if block.type == "tool_use")
    ]
    messages = [user("Hi"), {"role": "assistant", "content": first.content}, user(results)]
    here.say("Done.")
    second = await client.messages.create(
        **{**ASKED, "messages": messages}, thinking=THINKS, tools=message_tools()
    )
    assert second.content[0].text == "Done."
    assert "result 1" in here.prompt


async def test_an_answer_is_parsed_into_the_callers_model(here, client):
    here.say('{"city": "Paris"}')
    answer = await client.messages.parse(**ASKED, output_format=Weather)
    assert answer.parsed_output == Weather(city="Paris")


async def test_tokens_are_counted_as_the_answer_will_say(client):
    counted = await client.messages.count_tokens(
        model="small", messages=ASKED["messages"], tools=message_tools(), system="Be brief."
    )
    answer = await client.messages.create(**ASKED, tools=message_tools(), system="Be brief.")
    assert counted.input_tokens == answer.usage.input_tokens


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (anthropic.NotFoundError, {"model": "claude"}),
        (anthropic.BadRequestError, {"messages": []}),
        (anthropic.BadRequestError, {"stop_sequences": [""]}),
        (anthropic.BadRequestError, {"extra_body": {"banana": 1}}),
    ],
)
async def test_errors_are_raised_as_the_right_classes(client, kind, fields):
    with pytest.raises(kind) as caught:
        await client.messages.create(**{**ASKED, **fields})
    assert caught.value.body["error"]["message"]
    assert caught.value.request_id


async def test_too_much_is_raised_as_overloaded_and_asked_again_by_the_package(here, client, monkeypatch):
    await here.kill_worker()
    impatient = client.with_options(default_headers={"x-slo-ttft-ms": "10"})
    with pytest.raises(anthropic._exceptions.OverloadedError) as caught:
        await impatient.messages.create(**ASKED)
    assert caught.value.status_code == 529

    async def sleep(_seconds):
        await here.start()

    monkeypatch.setattr("anthropic._base_client.anyio.sleep", sleep)
    answer = await impatient.with_options(max_retries=1).messages.create(**ASKED)
    assert answer.content[0].text == SAID


async def test_the_beta_client_is_answered_too(client):
    answer = await client.beta.messages.create(**message(), betas=["interleaved-thinking-2025-05-14"])
    assert answer.content[0].text == SAID
