"""OpenAI's package: chat, completions, responses, their streams, tools, parsed answers, errors, retries."""

import json

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from tests.conformance.grammars import allows
from tests.conformance.samples import CALLS, PARIS, THOUGHTFUL, chat_tools, response_tools
from tests.conformance.world import SAID, chat, user

pytestmark = pytest.mark.asyncio(loop_scope="module")
HI = [user("Hi")]
BOTH = [("get_weather", json.loads(PARIS)), ("get_time", {"zone": "UTC"})]


class Weather(BaseModel):
    city: str
    degrees: int


RAIN = '{"city": "Paris", "degrees": 12}'


@pytest_asyncio.fixture(loop_scope="module")
async def client(here):
    async with openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_a_chat_answer_comes_whole_and_streamed(here, client):
    whole = await client.chat.completions.create(model="small", messages=HI)
    assert whole.choices[0].message.content == SAID
    async with client.chat.completions.stream(
        model="small", messages=HI, stream_options={"include_usage": True}
    ) as stream:
        streamed = await stream.get_final_completion()
    assert streamed.choices[0].message.content == SAID
    assert streamed.usage == whole.usage


async def test_streamed_calls_are_put_together_by_the_package(here, client):
    here.say(f"I'll look.\n{CALLS}")
    async with client.chat.completions.stream(model="small", messages=HI, tools=chat_tools()) as stream:
        kinds = [event.type async for event in stream]
        message = (await stream.get_final_completion()).choices[0].message
    assert [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls] == BOTH
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert message.content.strip() == "I'll look."


async def test_an_answer_is_parsed_into_the_callers_model(here, client):
    here.say(RAIN)
    answer = await client.chat.completions.parse(model="small", messages=HI, response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Paris", degrees=12)
    assert allows(here, RAIN)
    assert not allows(here, '{"city": "Paris"}')


async def test_calls_are_parsed_into_the_callers_model(here, client):
    here.say(f'<tool_call>\n{{"name": "Weather", "arguments": {RAIN}}}\n</tool_call>')
    answer = await client.chat.completions.parse(
        model="small", messages=HI, tools=[openai.pydantic_function_tool(Weather)]
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == Weather(city="Paris", degrees=12)


async def test_completions_come_whole_and_streamed(here, client):
    whole = await client.completions.create(model="small", prompt=["a", "b"])
    assert [choice.text for choice in whole.choices] == [SAID, SAID]
    stream = await client.completions.create(model="small", prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == SAID


async def test_a_response_comes_whole_and_streamed(here, client):
    here.say(f"{THOUGHTFUL}{CALLS}")
    whole = await client.responses.create(model="small", input="Hi", tools=response_tools())
    async with client.responses.stream(model="small", input="Hi", tools=response_tools()) as stream:
        kinds = {event.type async for event in stream}
        streamed = await stream.get_final_response()
    for response in (whole, streamed):
        calls = [item for item in response.output if item.type == "function_call"]
        assert [(call.name, json.loads(call.arguments)) for call in calls] == BOTH
        assert response.output[0].type == "reasoning"
    assert "response.function_call_arguments.delta" in kinds


async def test_a_response_is_parsed_into_the_callers_model(here, client):
    here.say(RAIN)
    response = await client.responses.parse(model="small", input="Hi", text_format=Weather)
    assert response.output_parsed == Weather(city="Paris", degrees=12)


async def test_a_conversation_goes_on_by_the_id_of_a_response(here, client):
    first = await client.responses.create(model="small", input="I am Ann.")
    await client.responses.create(model="small", input="Who am I?", previous_response_id=first.id)
    assert "I am Ann." in here.prompt


async def test_models_are_listed(client):
    assert "small" in [model.id async for model in client.models.list()]
    assert (await client.models.retrieve("small")).id == "small"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (openai.NotFoundError, {"model": "gpt-4"}),
        (openai.BadRequestError, {"messages": []}),
        (openai.BadRequestError, {"temperature": 3}),
        (openai.BadRequestError, {"stream": True, "temperature": 3}),
        (openai.BadRequestError, {"extra_body": {"banana": 1}}),
    ],
)
async def test_errors_are_raised_as_the_right_classes(client, kind, fields):
    with pytest.raises(kind) as caught:
        await client.chat.completions.create(**{**chat(), **fields})
    assert caught.value.body["message"]
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]


async def test_what_is_refused_for_now_is_asked_again_when_the_answer_says(here, client, monkeypatch):
    """The worker is gone, and a client that waits for no start is refused; it comes back when it was told."""
    await here.kill_worker()
    impatient = client.with_options(default_headers={"x-slo-ttft-ms": "10"})
    with pytest.raises(openai.InternalServerError) as caught:
        await impatient.chat.completions.create(**chat())
    assert caught.value.status_code == 503
    slept_s = []

    async def sleep(seconds):
        slept_s.append(seconds)
        await here.start()

    monkeypatch.setattr("openai._base_client.anyio.sleep", sleep)
    answer = await impatient.with_options(max_retries=1).chat.completions.create(**chat())
    assert answer.choices[0].message.content == SAID
    told_ms = int(caught.value.response.headers["retry-after-ms"])
    # Each refusal's time to come back is a fifth off, at random: other clients are told another.
    assert slept_s == [pytest.approx(told_ms / 1000, rel=0.6)]


async def test_a_stream_that_is_left_gives_its_row_back(here, client):
    here.say("x" * 2000)
    stream = await client.chat.completions.create(**chat(stream=True))
    async for _ in stream:
        break
    await stream.close()
    await here.idle()
