"""What clients and operators see of prompts that begin alike: usage, texts, metrics, health."""

import asyncio

import aiohttp
import pytest

from shared.limits import PREFIX_BLOCK_TOKENS
from tests.served.client import MODEL, chat, complete, stream
from tests.served.gateway import wait_until

pytestmark = [pytest.mark.served, pytest.mark.timeout(300)]

RULES = "You keep a list of rooms. " + " ".join(
    f"Room {room} is {room % 7} steps wide and {room % 5} steps long." for room in range(40)
)
# What mlx-lm itself says to each behind these rules, alone; no other token was within 0.1 of any of these.
SAID = {
    "How wide is room 3?": "Room 3 is 2 steps wide.",
    "How wide is room 21?": "Room 21 is 21 steps wide.",
    "How wide is room 24?": "Room 24 is 24 steps wide.",
    "How wide is room 27?": "Room 27 is 27 steps wide.",
    "Tell me of room 2.": "Room 2 is 2 steps wide and 2 steps",
    "Tell me of room 13.": "Room 13 is 13 steps wide and ",
    "Which room is the widest?": "The room with the largest number of steps is room 2",
    "How many rooms are there?": "There are 10 rooms in total.",
}
COMMON = 605 // PREFIX_BLOCK_TOKENS * PREFIX_BLOCK_TOKENS  # of their prompts' tokens, in whole blocks
STORY = chat("Tell me the story of the mill at the river. " * 12, max_tokens=10, temperature=0)


def ruled(question: str) -> dict:
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0}


def cached(usage: dict) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]


async def answer(session: aiohttp.ClientSession, url: str, body: dict) -> tuple[str, dict]:
    """Return the text and the usage of one answer that isn't streamed."""
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        whole = await response.json()
    return whole["choices"][0]["message"]["content"], whole["usage"]


async def streamed(session: aiohttp.ClientSession, url: str, body: dict) -> tuple[str, dict]:
    """Return the text and the usage of one streamed answer."""
    said = await stream(session, url, {**body, "stream_options": {"include_usage": True}})
    assert said.done
    return said.text, said.chunks[-1]["usage"]


def test_a_prompt_that_was_asked_before_costs_its_last_token_and_the_next_turn_only_what_is_new(gateway):
    """Of the turn before, the answer's last token was shown and never computed."""

    async def converse() -> None:
        async with aiohttp.ClientSession() as session:
            first, usage = await answer(session, gateway.url, STORY)
            for ask in (answer, streamed):
                again, used = await ask(session, gateway.url, STORY)
                assert again == first
                assert cached(used) == used["prompt_tokens"] - 1 == usage["prompt_tokens"] - 1
            turns = [{"role": "assistant", "content": first}, {"role": "user", "content": "And the miller?"}]
            body = {**STORY, "messages": [*STORY["messages"], *turns]}
            _, used = await answer(session, gateway.url, body)
            assert cached(used) == usage["prompt_tokens"] + usage["completion_tokens"] - 1

    asyncio.run(converse())


def test_eight_requests_behind_one_system_prompt_hold_it_once_and_say_what_each_says_alone(gateway):
    """All come at once: one computes the rules, the others wait for it and begin behind them."""
    seen: list[tuple[int, float]] = []

    async def watch() -> None:
        while True:
            prefixes = (await asyncio.to_thread(gateway.ready_body))["worker"]["prefixes"]
            metric = await asyncio.to_thread(gateway.metric, "forebay_prefix_shared_bytes")
            seen.append((prefixes["shared_bytes"], metric[""]))
            await asyncio.sleep(0.05)

    async def together() -> list[tuple[str, dict]]:
        async with aiohttp.ClientSession() as session:
            watching = asyncio.create_task(watch())
            try:
                return await asyncio.gather(*(streamed(session, gateway.url, ruled(each)) for each in SAID))
            finally:
                watching.cancel()

    before = gateway.ready_body()
    answers = asyncio.run(together())
    assert [text for text, _ in answers] == list(SAID.values())
    found = sorted(cached(usage) for _, usage in answers)
    assert found[0] < PREFIX_BLOCK_TOKENS, "one of them had to compute it"
    assert found[1] >= COMMON, "and only one"

    after = gateway.ready_body()
    assert after["cached_tokens"] == before["cached_tokens"] + sum(found)
    shared = {nbytes for nbytes, _ in seen} - {0}
    assert shared, "health says that rows share something"
    assert {metric for _, metric in seen} - {0}, "and metrics do"
    # Eight copies would be eight times as much.
    assert max(shared) <= COMMON * _token_bytes(gateway) * 1.1
    wait_until(lambda: gateway.metric("forebay_prefix_shared_bytes")[""] == 0, "nobody reads it any more")
    kept = gateway.ready_body()["worker"]["prefixes"]
    assert kept["kept_bytes"] >= COMMON * _token_bytes(gateway)
    assert kept["blocks"] >= COMMON // PREFIX_BLOCK_TOKENS


def test_what_a_client_that_left_had_computed_of_a_long_prompt_is_there_when_it_asks_again(gateway):
    """It leaves in the middle of the prefill, when two blocks and more of it are there."""
    body = chat("The ferry of the upper lake sails at dawn, at noon and at dusk. " * 28, max_tokens=2)
    least_bytes = 2 * PREFIX_BLOCK_TOKENS * _token_bytes(gateway)

    def is_computing() -> bool:
        return gateway.ready_body()["worker"]["kv_bytes"] >= least_bytes

    async def leave_and_ask_again() -> dict:
        async with aiohttp.ClientSession() as session:
            leaving = asyncio.create_task(complete(session, gateway.url, body))
            await asyncio.to_thread(wait_until, is_computing, "two blocks are computed")
            leaving.cancel()
            return (await answer(session, gateway.url, body))[1]

    wait_until(lambda: gateway.ready_body()["worker"]["kv_bytes"] == 0, "nothing runs")
    assert cached(asyncio.run(leave_and_ask_again())) >= 2 * PREFIX_BLOCK_TOKENS


def _token_bytes(gateway) -> int:
    """What a token's keys and values take: 30 layers, 3 heads of 64 numbers, in float32."""
    assert "SmolLM2-135M" in MODEL, "these are that model's"
    return 30 * 3 * 64 * 2 * 4
