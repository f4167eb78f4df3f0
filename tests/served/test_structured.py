"""Answers of a real model at temperature 1 are what their schemas say, side by side and beside free ones."""

import asyncio
import json

import aiohttp
import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.proxy.grammars.test_generated_schemas import SCHEMAS
from tests.served.client import chat

pytestmark = [pytest.mark.served, pytest.mark.timeout(1200)]

TOGETHER = 8
TOKENS = 64
# Without a bound of its own a text or a list goes on for as long as a small model likes.
BOUNDED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "next"],
    "additionalProperties": False,
}


def shaped(schema, seed, tokens=TOKENS):
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    return chat("Fill this in.", max_tokens=tokens, temperature=1.0, seed=seed, response_format=form)


async def answers(url, bodies):
    """Return (status, body) of each, asked all at once."""
    async with aiohttp.ClientSession(f"{url}/") as session:

        async def answer(body):
            async with session.post("v1/chat/completions", json=body) as response:
                return response.status, await response.json()

        return await asyncio.gather(*map(answer, bodies))


def text_of(answered):
    """Return an answer's text if it ended by itself, None if it was cut off or refused."""
    status, body = answered
    if status != 200:
        assert status == 400, body
        # Its vocabulary has no token for some bytes: what has one in it is begun, and can't be ended.
        no_token = body["error"]["message"].startswith("the grammar can't be followed here")
        assert no_token or body["error"]["param"].startswith("response_format"), body
        return None
    (choice,) = body["choices"]
    return choice["message"]["content"] if choice["finish_reason"] == "stop" else None


def test_generated_schemas_are_followed_side_by_side(gateway, request):
    finished = 0
    all_schemas = request.config.getoption("--all-schemas")
    tokens = TOKENS if all_schemas else TOKENS * 5 // 8

    @settings(
        max_examples=25 if all_schemas else 1,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(schemas=st.lists(SCHEMAS, min_size=TOGETHER, max_size=TOGETHER))
    def ask(schemas):
        nonlocal finished
        bodies = [shaped(each, seed, tokens) for seed, each in enumerate(schemas)]
        found = asyncio.run(answers(gateway.url, bodies))
        for schema, answered in zip(schemas, found, strict=True):
            text = text_of(answered)
            if text is not None:
                jsonschema.Draft202012Validator(schema).validate(json.loads(text))
                finished += 1

    ask()
    assert finished > 0


def test_bounded_objects_come_to_their_end_and_free_answers_beside_them_are_as_ever(gateway):
    free = chat("Tell me about the sea.", max_tokens=16, temperature=1.0, seed=5)
    (alone,) = asyncio.run(answers(gateway.url, [free]))
    bodies = [free, *(shaped(BOUNDED, seed, 2 * TOKENS) for seed in range(3))]
    beside, *found = asyncio.run(answers(gateway.url, bodies))
    assert beside[1]["choices"] == alone[1]["choices"]
    texts = [text_of(each) for each in found]
    assert sum(text is not None for text in texts) >= len(texts) - 1, found
    for text in texts:
        if text is not None:
            jsonschema.validate(json.loads(text), BOUNDED)
    assert len(set(texts)) > 1


def test_a_choice_and_an_expression_are_followed_to_the_letter(gateway):
    bodies = [
        chat("Yes or no?", max_tokens=8, guided_choice=["yes", "no", "perhaps"]),
        chat("A date, please.", max_tokens=16, guided_regex=r"20[0-9]{2}-(0[1-9]|1[0-2])-[0-2][0-9]"),
    ]
    choice, date = asyncio.run(answers(gateway.url, bodies))
    assert text_of(choice) in ("yes", "no", "perhaps")
    assert len(text_of(date) or "") == len("2026-01-01")
