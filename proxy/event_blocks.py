"""Bodies as bytes. What comes once a token is put together from pieces made beforehand.

Log probabilities come as JSON and take the place of the null that bodies have for them. They are written
token by token: those of long answers as objects would take gigabytes, and seconds at once to encode.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

DONE: Final = b"data: [DONE]\n\n"
KEEPALIVE: Final = b": keep-alive\n\n"

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# A text that no chunk has elsewhere: as JSON it has bare quotation marks at both ends, which no text inside
# another one has, and only a chunk's own text is ever a lone NUL.
_TEXT: Final = "\0"
# One in each choice, and nowhere else: a text's own quotation marks are escaped, and no colon follows a text.
_LOGPROBS: Final = '"logprobs":'
NO_LOGPROBS: Final = "null"
# Where a chunk that has a usage ends. No text has this in it: as JSON, its own ends of lines are escaped.
_NO_USAGE: Final = b'"usage":null}\n\n'


def encoded(body: Mapping[str, Any], logprobs: Sequence[str] = ()) -> bytes:
    """Return a body as JSON; `logprobs` are those of its choices, as JSON, if any has some."""
    text = _encode(body)
    if logprobs:
        head, *parts = text.split(_LOGPROBS + NO_LOGPROBS)
        text = head + "".join(f"{_LOGPROBS}{each}{part}" for each, part in zip(logprobs, parts, strict=True))
    return text.encode()


def block(body: Mapping[str, Any], logprobs: str = NO_LOGPROBS) -> bytes:
    """Return an event whose data is one JSON object."""
    return b"data: " + encoded(body, () if logprobs == NO_LOGPROBS else (logprobs,)) + b"\n\n"


def with_usage(blocks: bytes, usage: Mapping[str, Any]) -> bytes:
    """Return events with a usage in the place of the null that each of them ends with."""
    return blocks.replace(_NO_USAGE, b'"usage":' + encoded(usage) + b"}\n\n")


class TextBlocks:
    """Makes `block(chunk(index, text), logprobs)` of one answer, where all else is always the same.

    The text may stand in several places of a chunk, all of them before its log probabilities.
    """

    def __init__(self, chunk: Callable[[int, str], Mapping[str, Any]], index: int) -> None:
        *befores, after = block(chunk(index, _TEXT)).split(_encode(_TEXT).encode())
        self._befores, self._after = befores, after
        self._between, self._end = after.split((_LOGPROBS + NO_LOGPROBS).encode())
        self._between += _LOGPROBS.encode()

    def block(self, text: str, logprobs: str = NO_LOGPROBS) -> bytes:
        own = _encode(text).encode()
        start = b"".join([before + own for before in self._befores])
        if logprobs == NO_LOGPROBS:
            return start + self._after
        return start + self._between + logprobs.encode() + self._end
