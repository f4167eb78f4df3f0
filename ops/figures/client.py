"""The load: chat answers from any OpenAI-compatible address, counted and timed."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp

_TIMEOUT = aiohttp.ClientTimeout(total=600)


def _body(model: str, prompt: str, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": max_tokens}


async def tokens_per_second(port: int, model: str, prompts: list[str], max_tokens: int) -> float:
    """Ask all prompts at once, each streamed; return the tokens of all answers over the time of the run."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as session:
        started = time.perf_counter()
        counts = await asyncio.gather(
            *(_count(session, port, _body(model, prompt, max_tokens)) for prompt in prompts)
        )
        return sum(counts) / (time.perf_counter() - started)


async def _count(session: aiohttp.ClientSession, port: int, body: dict[str, Any]) -> int:
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    tokens = 0
    async with session.post(_url(port), json={**body, **usage}) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                told = json.loads(line[6:]).get("usage")
                tokens = told["completion_tokens"] if told else tokens
    return tokens


async def first_token_s(port: int, model: str, prompt: str) -> float:
    """Return the time from sending a request to its first text."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        started = time.perf_counter()
        async for _moment in _token_times(session, port, _body(model, prompt, 2)):
            return time.perf_counter() - started
    raise ValueError("the stream had no text")


async def token_times(
    port: int, model: str, prompt: str, max_tokens: int, on_token: Callable[[int], None]
) -> list[float]:
    """Stream one answer; return the wall-clock time of each text, telling each one's number as it comes."""
    times: list[float] = []
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
        async for moment in _token_times(session, port, _body(model, prompt, max_tokens)):
            times.append(moment)
            on_token(len(times))
    return times


async def _token_times(session: aiohttp.ClientSession, port: int, body: dict[str, Any]) -> Any:
    async with session.post(_url(port), json={**body, "stream": True}) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    yield time.time()


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1/chat/completions"
