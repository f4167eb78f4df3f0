"""Chats with any OpenAI-compatible address: what was said and when, and what its usage tells."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import aiohttp

from ops.prefixes.plan import NotMeasured

_TIMEOUT: Final = aiohttp.ClientTimeout(total=1200)
_REASON_CHARS_MAX: Final = 300
_NEVER: Final = -100  # the API's word for a token that mustn't be drawn

Messages = Sequence[dict[str, str]]


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@dataclass(slots=True)
class Said:
    """One answer. `texts_at` is when each piece of it came, by `time.time`.

    `first_at` is when its first token was there, also where that was one that ends it and no text.
    """

    sent_at: float
    text: str = ""
    texts_at: list[float] = field(default_factory=list)
    first_at: float | None = None
    prompt_tokens: int = 0
    answer_tokens: int = 0
    cached_tokens: int = 0

    @property
    def first_s(self) -> float:
        """The time from sending to the first token. NotMeasured if there was none."""
        if self.first_at is None:
            raise NotMeasured("an answer had no token, so no time to its first one")
        return self.first_at - self.sent_at

    def take(self, event: dict[str, Any], now: float) -> bool:
        """Take an event of the stream; return whether it brought text."""
        if "error" in event:
            raise NotMeasured(f"an answer broke off: {event['error']}")
        if event.get("usage"):
            usage = event["usage"]
            self.prompt_tokens = int(usage["prompt_tokens"])
            self.answer_tokens = int(usage["completion_tokens"])
            self.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        choices = event.get("choices", ())
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        if self.first_at is None and (text or any(choice.get("finish_reason") for choice in choices)):
            self.first_at = now
        if text:
            self.text += text
            self.texts_at.append(now)
        return bool(text)


class Chat:
    """One client with one session, whose connection is used again."""

    def __init__(self, port: int, model: str) -> None:
        self._base = f"http://127.0.0.1:{port}/v1"
        self._model = model

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()

    async def connect(self) -> None:
        """Open the connection: what it takes is no part of the first answer's time."""
        async with self._session.get(f"{self._base}/models") as response:
            await response.read()

    async def say(
        self,
        messages: Messages,
        max_tokens: int,
        *,
        never: Sequence[int] = (),
        on_text: Callable[[int], None] = lambda _number: None,
    ) -> Said:
        """Return the most likely answer without the tokens `never`.

        Tell the number of each piece of text as it comes.
        """
        body = {
            "model": self._model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if never:
            body["logit_bias"] = {str(token): _NEVER for token in never}
        said = Said(time.time())
        async with self._session.post(f"{self._base}/chat/completions", json=body) as response:
            if response.status != 200:
                reason = (await response.text())[:_REASON_CHARS_MAX]
                raise NotMeasured(f"a request was refused with {response.status}: {reason}")
            async for line in response.content:
                if line.startswith(b"data: {") and said.take(json.loads(line[6:]), time.time()):
                    on_text(len(said.texts_at))
        return said
