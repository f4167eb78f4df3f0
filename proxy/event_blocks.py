"""Blocks of an event stream as bytes. What comes once a token is put together from pieces made beforehand."""

import json
from collections.abc import Mapping
from typing import Any, Final

from proxy.bodies import Chunks

DONE: Final = b"data: [DONE]\n\n"
KEEPALIVE: Final = b": keep-alive\n\n"

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# A text that no chunk has elsewhere: as JSON it has bare quotation marks at both ends, which no text inside
# another one has, and only a chunk's own text is ever a lone NUL.
_TEXT: Final = "\0"


def block(body: Mapping[str, Any]) -> bytes:
    """Return an event whose data is one JSON object."""
    return b"data: " + _encode(body).encode() + b"\n\n"


class TextBlocks:
    """Makes `block(chunks.text(index, text))` of one answer, where all but the text is always the same."""

    def __init__(self, chunks: Chunks, index: int) -> None:
        before, after = block(chunks.text(index, _TEXT)).split(_encode(_TEXT).encode())
        self._before, self._after = before, after

    def block(self, text: str) -> bytes:
        return self._before + _encode(text).encode() + self._after
