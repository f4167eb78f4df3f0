"""LangChain's ChatOpenAI: invoke, stream, tools, structured answers, through both of OpenAI's APIs."""

import json

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from tests.conformance.samples import CALLS, PARIS, WEATHER, chat_tools
from tests.conformance.world import SAID

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Weather(BaseModel):
    """Tells the weather."""

    city: str


def model(here, **fields):
    return ChatOpenAI(
        base_url=f"{here.url}/v1", api_key=SecretStr("none"), model="small", max_retries=0, **fields
    )


@pytest.fixture(params=[False, True], ids=["chat", "responses"])
def chain(here, request):
    return model(here, use_responses_api=request.param)


async def test_an_answer_comes_whole_and_streamed(chain):
    assert (await chain.ainvoke("Hi")).text == SAID
    chunks = [chunk async for chunk in chain.astream("Hi")]
    assert "".join(chunk.text for chunk in chunks) == SAID
    assert len(chunks) > 3


async def test_streamed_calls_are_put_together(here, chain):
    here.say(CALLS)
    bound = chain.bind_tools(chat_tools())
    whole = await bound.ainvoke("Hi")
    together = None
    async for chunk in bound.astream("Hi"):
        together = chunk if together is None else together + chunk
    for message in (whole, together):
        assert [(call["name"], call["args"]) for call in message.tool_calls] == [
            ("get_weather", json.loads(PARIS)),
            ("get_time", {"zone": "UTC"}),
        ]


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_an_answer_has_the_callers_form(here, chain, method):
    call = f'<tool_call>\n{{"name": "Weather", "arguments": {PARIS}}}\n</tool_call>'
    here.say(call if method == "function_calling" else PARIS)
    answer = await chain.with_structured_output(Weather, method=method).ainvoke("Hi")
    assert answer == Weather(city=json.loads(PARIS)["city"])


async def test_a_tool_can_be_forced(here, chain):
    here.say(CALLS.partition('\n<tool_call>\n{"name": "get_time"')[0])
    message = await chain.bind_tools(chat_tools(), tool_choice=WEATHER["name"]).ainvoke("Hi")
    assert [call["name"] for call in message.tool_calls] == ["get_weather"]
