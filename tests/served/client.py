"""A plain client: many streams at once, each read event by event."""

import asyncio
import json
from dataclasses import dataclass, field

import aiohttp

MODEL = "SmolLM2-135M-Instruct"


@dataclass
class Streamed:
    """What one stream said."""

    text: str = ""
    reason: str | None = None
    done: bool = False
    error: dict | None = None
    chunks: list[dict] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)


def chat(prompt: str, **fields) -> dict:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **fields}


async def stream(session: aiohttp.ClientSession, url: str, body: dict, on_chunk=None) -> Streamed:
    """Read one streamed chat answer to its end; `on_chunk` is called with each chunk's number."""
    said = Streamed()
    async with session.post(f"{url}/v1/chat/completions", json={**body, "stream": True}) as response:
        said.headers = dict(response.headers)
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: "):
                _take(said, line[6:].strip(), on_chunk)
    return said


def _take(said: Streamed, data: bytes, on_chunk) -> None:
    assert not said.done, "nothing follows [DONE]"
    if data == b"[DONE]":
        said.done = True
        return
    chunk = json.loads(data)
    said.chunks.append(chunk)
    if "error" in chunk:
        said.error = chunk["error"]
        return
    for choice in chunk["choices"]:
        said.text += choice["delta"].get("content") or ""
        said.reason = choice["finish_reason"] or said.reason
    if on_chunk is not None:
        on_chunk(len(said.chunks))


async def complete(session: aiohttp.ClientSession, url: str, body: dict) -> str:
    """Return the text of one chat answer that isn't streamed."""
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return (await response.json())["choices"][0]["message"]["content"]


async def together(url: str, bodies: list[dict], on_chunk=None) -> list[Streamed]:
    """Stream all bodies at once."""
    timeout = aiohttp.ClientTimeout(total=180)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        return await asyncio.gather(*(stream(session, url, body, on_chunk) for body in bodies))
