"""Clients that ask a real model for answers of a form of their own: a real grammar holds it to them."""

from typing import Literal

import anthropic
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from tests.served.client import MODEL

pytestmark = [pytest.mark.served, pytest.mark.timeout(180)]

ASKED = [{"role": "user", "content": "Which city is the capital of France, and since when?"}]


class Capital(BaseModel):
    """Names a capital."""

    model_config = ConfigDict(extra="forbid")

    city: str = Field(max_length=20)
    since: int = Field(ge=0, le=2100)


class Answer(BaseModel):
    """Has no bounds: Anthropic's package tells those in words, and a small model doesn't keep to words."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Lyon"]
    is_sure: bool


@pytest.fixture
def client(gateway):
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_an_answer_is_parsed_into_the_callers_model(client):
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASKED, response_format=Capital, max_tokens=200, temperature=1, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Capital)
    response = client.responses.parse(
        model=MODEL, input=ASKED, text_format=Capital, max_output_tokens=200, temperature=1
    )
    assert isinstance(response.output_parsed, Capital)


def test_anthropics_client_parses_an_answer_too(gateway):
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0, timeout=60) as client:
        answer = client.messages.parse(model=MODEL, messages=ASKED, max_tokens=200, output_format=Answer)
    assert isinstance(answer.parsed_output, Answer)


def test_langchains_structured_answer_is_of_the_callers_model(gateway):
    key = SecretStr("none")
    chain = ChatOpenAI(
        base_url=f"{gateway.url}/v1", api_key=key, model=MODEL, max_retries=0, timeout=60, max_tokens=200
    )
    answer = chain.with_structured_output(Capital, method="json_schema").invoke("The capital of France?")
    assert isinstance(answer, Capital)
