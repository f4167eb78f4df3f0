"""Rows of a batch don't meet: each text is as when run alone."""

import asyncio
import functools

import aiohttp
import pytest

from tests.served import small_model
from tests.served.client import chat, complete, stream, together

pytestmark = [pytest.mark.served, pytest.mark.timeout(300)]

small_chat = functools.partial(chat, model=small_model.NAME, max_tokens=40, ignore_eos=True)
SUBJECTS = (
    *("bread", "winter", "music", "iron", "sleep", "rain", "glass", "a horse"),
    *("a clock", "a violin", "the moon", "a mountain", "the sea", "paper", "salt", "an owl"),
)
PROMPTS = [chat(f"What is {subject}?", max_tokens=6, temperature=0) for subject in SUBJECTS]


@pytest.fixture(scope="module")
def alone(gateway) -> list[str]:
    """Each of the sixteen answers, run by itself."""

    async def one_by_one() -> list[str]:
        async with aiohttp.ClientSession() as session:
            return [await complete(session, gateway.url, body) for body in PROMPTS]

    texts = asyncio.run(one_by_one())
    assert len(set(texts)) > 12, "else nobody would see rows that took each other's places"
    return texts


def test_sixteen_prompts_at_once_say_what_each_says_alone(gateway, alone):
    said = asyncio.run(together(gateway.url, PROMPTS))
    assert [each.text for each in said] == alone


def test_rows_that_join_and_leave_change_nobodys_text(gateway, alone):
    """Ten answers that begin one after the other, among others that are broken off."""

    async def come_and_go() -> list[str]:
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(staggered(session, place) for place in range(10)))

    async def staggered(session: aiohttp.ClientSession, place: int) -> str:
        await asyncio.sleep(0.1 * place)
        if place % 3 == 0:
            await broken_off(session, place)
        return (await stream(session, gateway.url, PROMPTS[place])).text

    async def broken_off(session: aiohttp.ClientSession, place: int) -> None:
        body = {**chat(f"Count from {place}.", max_tokens=50), "stream": True}
        async with session.post(f"{gateway.url}/v1/chat/completions", json=body) as response:
            await response.content.readline()

    assert asyncio.run(come_and_go()) == alone[:10]


def test_seeded_and_greedy_rows_with_different_parameters_share_a_batch(small_gateway):
    """The same seven requests, together and one by one."""
    kinds = [
        {"temperature": 0},
        {"temperature": 0.7, "seed": 1},
        {"temperature": 0.7, "seed": 1, "top_p": 0.9},
        {"temperature": 1.2, "seed": 2, "top_k": 40},
        {"temperature": 1.0, "seed": 3, "min_p": 0.05},
        {"temperature": 1.8, "seed": 4, "top_p": 0.99},
        {"temperature": 0.9, "seed": 5, "top_k": 5000},
    ]
    requests = [small_chat("Describe a garden.", **kind) for kind in kinds]
    joined = asyncio.run(together(small_gateway.url, requests))
    one_by_one = [asyncio.run(together(small_gateway.url, [request]))[0] for request in requests]
    assert [each.text for each in joined] == [each.text for each in one_by_one]
    assert len({each.text for each in joined}) > 4


def test_rows_behind_one_long_prefix_say_what_each_says_alone_however_each_is_drawn(small_gateway):
    """Greedy, seeded, penalised and biased rows share a prefix of some 150 tokens, and differ in its end."""
    prefix = "You keep a list of rooms. " + " ".join(
        f"Room {room} is {room % 7} steps wide." for room in range(6)
    )
    kinds = [
        {"temperature": 0},
        {"temperature": 0, "repetition_penalty": 1.3},
        {"temperature": 0, "presence_penalty": 1.5, "logit_bias": {"28": -5}},
        {"temperature": 0.8, "seed": 1},
        {"temperature": 0.8, "seed": 1, "frequency_penalty": 1.0, "logprobs": True, "top_logprobs": 3},
        {"temperature": 1.0, "seed": 2, "top_p": 0.9, "repetition_penalty": 1.1},
    ]
    requests = [
        small_chat(f"{prefix} Tell me of room number {place}.", **kind) for place, kind in enumerate(kinds)
    ]
    one_by_one = [asyncio.run(together(small_gateway.url, [request]))[0] for request in requests]
    joined = asyncio.run(together(small_gateway.url, requests[::-1]))[::-1]
    assert [each.text for each in joined] == [each.text for each in one_by_one]
    assert len({each.text for each in one_by_one}) > 4
